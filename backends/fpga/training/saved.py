"""The kernel in which saved values wait on chip between F and B, for all microbatches in flight.

```text
F ── out_saved_x ──► in_saved_x ─ KEEP ─► FIFO ─► out_saved_x ──► in_saved_x ── B
```

One FIFO per value, in the memory that the plan chose, as deep as the schedule keeps microbatches
in flight: where it is full, F waits. It is a kernel of its own, started once for all microbatches
of a step, so that it takes tokens while B is not running.
"""

import dataclasses
from collections.abc import Iterable

from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, busy_cycles
from pipec.backends.fpga.engines.parts import Memory, Resources
from pipec.backends.fpga.engines.route import Fork
from pipec.backends.fpga.fifo import MIN_DEPTH, timed
from pipec.backends.fpga.memory import Item, placed
from pipec.backends.fpga.resources import logic
from pipec.backends.fpga.training.features import Feature


def saved_kernel(
    forward: StageDesign, features: Iterable[Feature], name: str
) -> StageDesign | None:
    """The FIFOs of the values that stay on chip; None if there are none.

    Args:
        forward: F on its board, whose ports the values leave.
        features: Saved values and their places.
        name: Of the kernel.
    """
    kept = {f.value: f for f in features if f.memory is not Memory.DDR}
    if not kept:
        return None
    leaving = {p.value: p for p in forward.outputs if p.value in kept}
    engines = {value: _keep(feature) for value, feature in kept.items()}
    streams = [s for f in kept.values() for s in _fifo(f)]
    design = StageDesign(
        name,
        tuple(engines.values()),
        {s.name: s for s in streams},
        tuple(dataclasses.replace(leaving[v], stream=e.inputs[0]) for v, e in engines.items()),
        tuple(dataclasses.replace(leaving[v], stream=e.outputs[0]) for v, e in engines.items()),
        device=forward.device,
        part=forward.part,
        clock_mhz=forward.clock_mhz,
        limits=forward.limits,
        interval=max(map(busy_cycles, engines.values())),
    )
    items = [Item(s.name, "fifo", s.token_bits, s.depth) for s in streams if s.memory is not None]
    return timed(placed(design, [f.memory for f in kept.values()], items))


def logic_between(features: Iterable[Feature]) -> Resources:
    """What the kernel takes besides memories."""
    return sum((logic(_keep(f)) for f in features if f.memory is not Memory.DDR), Resources())


def _keep(feature: Feature) -> Engine:
    value, stream = feature.value, feature.stream
    return Engine(
        identifier(f"keep_{value}"),
        Fork(stream.tokens, 1),
        (f"{value}_arriving",),
        (f"{value}_waiting",),
        depth=1,
        dtype=stream.dtype,
        origin=f"{value} on chip",
    )


def _fifo(feature: Feature) -> tuple[Stream, Stream]:
    """What leads into the FIFO, and the FIFO."""
    keep, stream = _keep(feature), feature.stream
    arriving = dataclasses.replace(
        stream, name=keep.inputs[0], depth=MIN_DEPTH, producer=None, consumer=keep.name
    )
    waiting = dataclasses.replace(
        stream,
        name=keep.outputs[0],
        depth=feature.sets * stream.tokens,
        producer=keep.name,
        consumer=None,
        memory=feature.memory,
    )
    return arriving, waiting
