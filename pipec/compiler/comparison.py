"""How far a tensor lies from its reference, and may: by its dtype and the depth of the model."""

import math
import sys
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pipec.graph.copies import PACK
from pipec.graph.ir import Graph, origin, tensors

_HUGE = 1e30
"""Masks fill with numbers like -3.4e38: such elements count one by one, not in the scale."""

_ORDERED = (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)
"""Dtypes of which equal tensors are recognised at once."""

MOST_STEPS, _FEW = 4, 0.05
"""How many steps floats that stand for integers may be apart, at which share of places (at two at
least) by more than one: where operands were rounded to the other side, as at ties of an average
pooling, sums of their products lie several steps apart.
"""

INCOMPARABLE = sys.float_info.max
"""The error of what cannot be compared: finite, so that it is JSON."""


@dataclass(frozen=True)
class Allowed:
    """The largest relative error that is allowed.

    Attributes:
        relative: The error.
        basis: What it follows from, in a word; nothing where it is a rule of thumb.
        share: For integers, the share of places that may be off, by one step; one place if that
            is less than one.
        step: For floats that stand for integers, what one stands for; then one step is allowed, and
            `MOST_STEPS` at few places.
    """

    relative: float
    basis: str = ""
    share: float = 0.0
    step: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """One tensor against its reference.

    Attributes:
        name: The value or output.
        kind: ``value``, ``output``, ``loss``, ``buffer_update`` or ``gradient``.
        stage: The stage that computed it.
        dtype: The dtype of the value.
        max_abs_error: Largest difference; `INCOMPARABLE` where one side is not finite and the
            other is, or where shapes or dtypes differ.
        scale: Largest magnitude of the reference, or the floor of `compare` if that is larger.
        relative_error: ``max_abs_error / scale``; 0 for two zeros.
        ok: Whether it is within the tolerance; integers must be equal, or as `Allowed.share` says.
        tolerance: Largest relative error that was allowed; ``basis`` what that follows from.
    """

    name: str
    kind: str
    stage: int
    dtype: str
    max_abs_error: float
    scale: float
    relative_error: float
    ok: bool
    tolerance: float = 0.0
    basis: str = ""

    @property
    def blind(self) -> bool:
        """Whether zeros, which are off by 1, would be within the tolerance as well."""
        return (
            self.ok and self.tolerance >= 1 and self.relative_error > 0 and "int" not in self.dtype
        )


def compare(
    found: Tensor,
    want: Tensor,
    tolerance: float | Allowed,
    *,
    name: str,
    kind: str,
    stage: int,
    floor: float = 0.0,
) -> Comparison:
    """Compare element by element; NaN equals NaN.

    Args:
        found: What a stage computed.
        want: What it should be.
        tolerance: Largest relative error of a float.
        name: For the report.
        kind: For the report.
        stage: For the report.
        floor: The error is measured against no smaller magnitude than this.

    Example:
        >>> c = compare(torch.ones(2), torch.tensor([1.0, 2.0]), 0.1, name="y", kind="v", stage=0)
        >>> c.max_abs_error, c.relative_error, c.ok
        (1.0, 0.5, False)
    """
    dtype = str(want.dtype).removeprefix("torch.")
    by = tolerance if isinstance(tolerance, Allowed) else Allowed(tolerance)
    made = partial(Comparison, name, kind, stage, dtype)
    if (found.shape, found.dtype) != (want.shape, want.dtype):
        return made(INCOMPARABLE, 0.0, INCOMPARABLE, False, by.relative, by.basis)
    absolute, scale = _errors(found, want)
    scale = max(scale, floor)
    relative = (
        min(absolute / scale, INCOMPARABLE) if scale else (0.0 if absolute == 0 else INCOMPARABLE)
    )
    exact = not (want.dtype.is_floating_point or want.dtype.is_complex)
    if by.step:
        by = _allow_steps((found - want).abs() / by.step, by.step / scale if scale else 0.0)
    off = int((found != want).sum()) if absolute else 0
    places = max(1.0, by.share * want.numel()) if by.share else 0.0
    ok = off <= places and absolute <= 1 if exact else relative <= by.relative
    return made(absolute, scale, relative, ok, by.relative, by.basis)


def _allow_steps(apart: Tensor, step: float) -> Allowed:
    """What is allowed of values that are so many steps apart; one is ``step`` of the largest."""
    off = int((apart > 1.01).sum())
    if 0 < off <= max(2.0, _FEW * apart.numel()):
        return Allowed(1.01 * MOST_STEPS * step, f"{MOST_STEPS} steps, few")
    return Allowed(1.01 * step, "one step")


def _errors(found: Tensor, want: Tensor) -> tuple[float, float]:
    """Largest difference and largest magnitude of the reference."""
    if want.dtype in _ORDERED and want.numel() and torch.equal(found, want):
        peak = max(abs(float(end)) for end in want.detach().aminmax())
        if peak < _HUGE:
            return 0.0, peak
    wide = torch.complex128 if want.dtype.is_complex else torch.float64
    a, b = found.detach().to(wide).flatten(), want.detach().to(wide).flatten()
    differ = ~((a == b) | (a.isnan() & b.isnan()))
    magnitude = b.abs()
    ordinary = magnitude[magnitude.isfinite() & (magnitude < _HUGE)]
    scale = float(ordinary.max()) if len(ordinary) else 1.0
    if not bool(differ.any()):
        return 0.0, scale
    huge = differ & a.isfinite() & b.isfinite() & (magnitude >= _HUGE)
    error = (a - b).abs()
    error = torch.where(huge, error / magnitude * (scale or 1.0), error)
    error = error[differ].nan_to_num(nan=INCOMPARABLE, posinf=INCOMPARABLE)
    return float(error.max()), scale


LARGEST = 0.1
"""No tolerance is larger than this, however coarse the dtype."""

SAME_KERNELS, OTHER_KERNELS = 2, 128
"""Roundings per node between runs of the same kernels, and of another engine's: sums of hundreds
of products in another order, fused operations, other approximations of transcendental functions."""

REWRITTEN = "rewritten"
"""Option of a plan whose ops are not those of the model, with the name of the last such pass."""


def rounding_tolerance(graph: Graph, roundings_per_node: float) -> float:
    """Error relative to a value's largest magnitude that reordered arithmetic explains.

    Roundings of independent sign grow as a random walk (Higham, Accuracy and Stability of
    Numerical Algorithms, section 2.8): ``eps x roundings per node x sqrt(nodes)``.

    Args:
        graph: The whole model; what values are packed into on their way is not arithmetic of it.
        roundings_per_node: How unlike the two engines' kernels are.
    """
    return min(LARGEST, coarsest(graph) * roundings_per_node * math.sqrt(len(graph.calls)))


def coarsest(graph: Graph) -> float:
    """The largest machine epsilon of a graph's own arithmetic; 0 without floats."""
    own = [n for n in graph.calls if origin(n).op != PACK]
    dtypes = {t.dtype for n in own for t in tensors(n) if t.dtype.is_floating_point}
    return max((torch.finfo(d).eps for d in dtypes), default=0.0)


def packing_step(graph: Graph) -> float:
    """How far packing may move a value, relative to its largest magnitude: a step of its dtypes."""
    dtypes = {t.dtype for n in graph.calls if origin(n).op == PACK for t in tensors(n)}
    return max(
        (
            torch.finfo(d).eps if d.is_floating_point else 1 / torch.iinfo(d).max
            for d in dtypes - {torch.bool}
        ),
        default=0.0,
    )
