"""How far rounding takes the values that leave the stages, along a frame that is really run.

A stage in narrow numbers computes ``F(W~, rho)``: the network with its weights as they are stored,
values beyond a format's range cut off, and an error ``rho`` added to every value that an engine
rounds, ``|rho| <= u`` (half a step). The model computes ``F(W, 0)`` without limits. Per output::

    F(W~, rho) - F(W, 0) = shift + <J, rho> + rest

- ``shift = F(W~, 0) - F(W, 0)``: what rounded weights and saturation do, computed exactly;
- ``J``: derivatives of the output by every value that is rounded, at ``F(W~, 0)``, from one
  backward pass per output;
- ``rest``: what first order leaves out (products of errors, clamps and maxima that switch),
  computed for the rounding errors that rounding in the same places makes on this frame.

Two bounds follow. *worst*: ``|shift| + sum |J| u + |rest|``; no signs of the rounding errors can
do more, to first order. *likely*: ``|shift| + 6 sigma + |rest|``, where
``sigma^2 = sum J^2 u^2 / 3``: roundings that are uniform (Widrow, 1956) and independent with mean
zero (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci.
Comput. 41(5), 2019); such sums are sub-Gaussian, so that more has a probability below 1e-7.

Of values with more than `ALL` elements some outputs are looked at: those that rounding in the same
places takes farthest, and others at random.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.numbers import MINIMUM, round_to, saturate, unit
from pipec.backends.fpga.quantise.execute import Chain, store_tables

DEVIATIONS = 6.0
"""Standard deviations that are allowed."""
ALL = 16
"""Elements of a value, up to which all are looked at."""
_SAMPLED = 2
"""Elements of a larger value that are farthest off, and as many others, of every frame."""
_HUGE = 1e30
"""A magnitude from here on is a mask, no value."""


@dataclass(frozen=True)
class Bound:
    """How far a value may be off, relative to its largest magnitude.

    Attributes:
        stage: The stage that computes it; ``value`` its name.
        worst: Whatever the signs of the rounding errors; infinite where a value is no number.
        likely: If they are independent.
    """

    stage: int
    value: str
    worst: float
    likely: float

    @property
    def relative(self) -> float:
        """The smaller one."""
        return min(self.worst, self.likely)

    @property
    def basis(self) -> str:
        """Its name."""
        return "worst" if self.worst <= self.likely else "likely"

    @classmethod
    def of_json(cls, stage: int, data: Mapping[str, Any]) -> "Bound":
        """The inverse of `to_json`."""
        worst, likely = (math.inf if data[k] is None else data[k] for k in ("worst", "likely"))
        return cls(stage, data["value"], worst, likely)

    def to_json(self) -> dict[str, str | float | None]:
        """JSON data: ``value``, ``worst`` and ``likely``, null where infinite."""
        worst, likely = (b if math.isfinite(b) else None for b in (self.worst, self.likely))
        return {"value": self.value, "worst": worst, "likely": likely}


def tolerance_of(bounds: Sequence[Bound]) -> float:
    """The largest relative error that the bounds explain: that of float32 at least, 1 at most."""
    return min(1.0, max([MINIMUM, *(b.relative for b in bounds)]))


def bounds_of(
    exact: Sequence[Network],
    ready: Sequence[Network],
    precision: str,
    frames: Sequence[Mapping[str, Tensor]],
) -> list[Bound]:
    """The bound of every floating-point value that leaves a stage, over some frames of inputs.

    Networks are one per stage: as lowered, in real numbers, and ready to be folded.
    """
    found: dict[tuple[int, str], tuple[float, ...]] = {}
    real, narrow = Chain(exact), Chain([store_tables(n, precision) for n in ready])
    for number, frame in enumerate(frames):
        trace = _Trace(exact, ready, precision)
        with torch.no_grad():
            want = real.run(frame, lambda _stage, _edge, _layer, x: x)
            rounded = narrow.run(frame, trace.round_edge)
        smooth = narrow.run(frame, trace.open_edge)
        for stage, values in enumerate(smooth):
            for name, value in values.items():
                if value.dtype.is_floating_point:
                    triple = (value, rounded[stage][name], want[stage][name])
                    now = trace.bound_value(triple, number)
                    before = found.get((stage, name), now)
                    found[stage, name] = tuple(map(max, before, now))
    return [Bound(stage, name, *each) for (stage, name), each in found.items()]


class _Trace:
    """One frame: its roundings by stage and edge."""

    def __init__(self, exact: Sequence[Network], ready: Sequence[Network], precision: str) -> None:
        self._exact, self._types = exact, list[dict[str, str]]()
        for n in ready:
            own = {p.use.edge: p.use.dtype for p in n.inputs} | {y.name: y.dtype for y in n.layers}
            self._types.append({edge: dtype or precision for edge, dtype in own.items()})
        self._errors: dict[tuple[int, str], Tensor] = {}
        self._units: dict[tuple[int, str], Tensor] = {}
        self._leaves: dict[tuple[int, str], Tensor] = {}

    def round_edge(self, stage: int, edge: str, layer: Layer | None, x: Tensor) -> Tensor:
        """The value as its type holds it; what rounding did is noted."""
        if not _rounds(layer, x):
            return x
        dtype = self._types[stage][edge]
        result = round_to(x, dtype)
        # a model that names formats rounds there itself, perhaps to the other side
        times = 2.0 if edge in self._exact[stage].named else 1.0
        ordinary = x.abs() < _HUGE
        self._errors[stage, edge] = torch.where(ordinary, result - saturate(x, dtype), 0.0)
        self._units[stage, edge] = torch.where(ordinary, unit(x, dtype) * times, 0.0)
        return result

    def open_edge(self, stage: int, edge: str, layer: Layer | None, x: Tensor) -> Tensor:
        """The value, not rounded, plus a zero that derivatives are taken by."""
        if not _rounds(layer, x):
            return x
        leaf = torch.zeros_like(x, requires_grad=True)
        self._leaves[stage, edge] = leaf
        return saturate(x, self._types[stage][edge]) + leaf

    def bound_value(self, values: tuple[Tensor, Tensor, Tensor], seed: int) -> tuple[float, ...]:
        """`Bound.worst` and ``likely`` of a value: not rounded, rounded, and the model's."""
        smooth, rounded, want = (v.reshape(-1) for v in values)
        ordinary = want[want.abs() < _HUGE].abs()
        peak = max(float(ordinary.max()) if len(ordinary) else 0.0, 1e-30)
        worst = likely = 0.0
        for row in _rows((rounded - want).abs(), seed):
            largest, sigma, first = self._row(smooth[row])
            rest = abs(float(rounded[row] - smooth[row].detach()) - first)
            base = abs(float(smooth[row].detach() - want[row])) + rest
            worst = max(worst, _number(base + largest))
            likely = max(likely, _number(base + DEVIATIONS * sigma))
        return worst / peak, likely / peak

    def _row(self, output: Tensor) -> tuple[float, float, float]:
        """``sum |J| u``, sigma and ``<J, rho>`` of one output."""
        keys = list(self._leaves)
        leaves = [self._leaves[key] for key in keys]
        found = torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
        largest = square = first = 0.0
        for key, slope in zip(keys, found, strict=True):
            if slope is not None:
                reach = slope * self._units[key]
                largest += float(reach.abs().sum())
                square += float(reach.square().sum())
                first += float((slope * self._errors[key]).sum())
        return largest, math.sqrt(square / 3), first


def _rounds(layer: Layer | None, x: Tensor) -> bool:
    return x.dtype.is_floating_point and not (layer is not None and layer.moves)


def _rows(errors: Tensor, seed: int) -> list[int]:
    if len(errors) <= ALL:
        return list(range(len(errors)))
    top = errors.nan_to_num(nan=0.0).topk(_SAMPLED).indices
    generator = torch.Generator().manual_seed(seed)
    others = torch.randint(len(errors), (_SAMPLED,), generator=generator)
    return [int(row) for row in torch.cat([top, others])]


def _number(x: float) -> float:
    return x if math.isfinite(x) else math.inf
