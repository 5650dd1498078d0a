"""An order made from the stages' own costs; see `pipec.schedule.synthesis`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf

from pipec.errors import ScheduleError
from pipec.schedule.action import ActionKind
from pipec.schedule.build import build
from pipec.schedule.generators.flush import one_per_device
from pipec.schedule.registry import generate
from pipec.schedule.schedule import Schedule
from pipec.schedule.synthesis import F, I, Rows, StageCosts, W, synthesize

_K = ActionKind
KNOWN = ("1f1b", "gpipe", "1f1b-so", "zb-h1", "zb-h1{memory=2}")
"""Generators whose orders are not faster than what is made; the first three have no W apart."""


def synthesized(
    stages: int,
    microbatches: int,
    F: Sequence[float] = (1.0,),
    I: Sequence[float] = (1.0,),  # noqa: E741
    W: Sequence[float] = (1.0,),
    transfer: Sequence[float] = (0.0,),
    saved: Sequence[float] = (1.0,),
    saved_for_w: Sequence[float] = (),
    memory: Sequence[float] = (inf,),
    split: bool = True,
) -> Schedule:
    """The fastest order of F, I and W that list scheduling finds for given costs, with a flush.

    Every list has one number for all stages, or one per stage. Where a plan or times are at hand
    (``pipec compile``, ``pipec schedule --times``) they fill in what is not given.

    Args:
        stages: N.
        microbatches: M.
        F: Seconds of a forward.
        I: Seconds of the gradient of the input.
        W: Seconds of the gradients of the weights.
        transfer: Seconds from a stage to the next, and back.
        saved: Bytes, of any size, that a microbatch keeps until its W has ended.
        saved_for_w: The part that is kept between I and W; all of it if absent.
        memory: Most of these bytes per device.
        split: Whether I and W may be apart; else the backward is one action that takes both.

    Raises:
        ScheduleError: A list has another length, or no order was found that keeps the memory.

    Example:
        >>> print(synthesized(2, 2, F=(1, 2), memory=(2,)))
        0: 0F0 0F1 0I0 0W0 0I1 0W1
        1: 1F0 1I0 1F1 1I1 1W0 1W1
    """
    given = {"F": F, "I": I, "W": W, "saved": saved, "saved_for_w": saved_for_w or saved,
             "memory": memory, "transfer": transfer}  # fmt: skip
    rows = {name: _per_stage(name, values, stages) for name, values in given.items()}
    backward = [i + w for i, w in zip(rows["I"], rows["W"], strict=True)]
    costs = StageCosts(
        rows["F"], rows["I"] if split else backward, rows["W"] if split else (),
        rows["transfer"], rows["saved"], rows["saved_for_w"], rows["memory"],
    )  # fmt: skip
    known = _rows_of_generators(stages, microbatches, split=split)
    order = synthesize(costs, range(stages), microbatches, known)
    return build(
        "synthesized", order.rows, microbatches, placement=one_per_device(stages),
        options={**{k: list(v) for k, v in given.items() if max(v) < inf}, "split": split},
    )  # fmt: skip


def _rows_of_generators(stages: int, microbatches: int, *, split: bool) -> Iterator[Rows]:
    """The orders of the generators of one stage per device; a B is I and W, where these are."""
    parts: dict[int, tuple[int, ...]]
    parts = {_K.F: (F,), _K.B: (I, W) if split else (I,), _K.I: (I,), _K.W: (W,)}
    for name in KNOWN if split else KNOWN[:3]:
        with suppress(ScheduleError):  # zb-h1 wants a microbatch per stage
            made = generate(name, stages, microbatches)
            every = list(zip(made.kind.tolist(), made.stage.tolist(), strict=True))
            ends = pairwise(made.device_ptr.tolist())
            yield [[(k, s) for kind, s in every[a:b] for k in parts[kind]] for a, b in ends]


def _per_stage(name: str, values: Sequence[float], stages: int) -> list[float]:
    found = list(values) * stages if len(values) == 1 else list(values)
    if len(found) != stages or not all(v >= 0 for v in found):
        raise ScheduleError(
            f"{name} of synthesized cannot be used", got=list(values),
            want=f"numbers >= 0: one, or {stages}",
        )  # fmt: skip
    return found
