"""The two kernels of a stage on one board: F and B folded together, then told apart.

Both stand on the board at once, so they are one network of engines to the search: every engine of
either keeps one interval T, and the least T at which all of them fit is the best division of the
board between forward and backward for schedules that run both at the same time (BaPipe's FBP-AS).
F then takes about a third of the multipliers, B, with two products for each of F's, the rest.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.compile import best_design
from pipec.backends.fpga.design import Resources, StageDesign
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.flow import schedule
from pipec.backends.fpga.lowering.layers import Layer, Use
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.lowering.network import NetPort, Network
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.training.phases import Phases
from pipec.graph.ir import Graph, OutputKind

PREFIX = {"F": "f_", "B": "b_"}
"""What the names of a phase's engines begin with."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of one stage.

    Attributes:
        F: Forward.
        B: Backward, weight gradients included.
        interval: Cycles per microbatch when both run at the same time.
        saved: Names of the values that B reads and that F yields or reads.
    """

    F: StageDesign
    B: StageDesign
    interval: int
    saved: tuple[str, ...]


def networks_of(
    phases: Sequence[Phases], precision: str = "float32"
) -> tuple[tuple[Network, Network], ...]:
    """The networks of F and B of every stage, names prefixed.

    A value keeps the axis order in which its producer sends it: values go down the pipeline,
    gradients come up it, saved values stay in their stage.

    Args:
        phases: The graphs, stage by stage.
        precision: Element type.

    Raises:
        BackendError: Ops that no engine computes.
    """
    sent: dict[str, tuple[int, ...]] = {}
    forward = []
    for p in phases:
        forward.append(lower(p.F, precision, sent))
        sent |= _orders(forward[-1], p.F, OutputKind.VALUE)
    found = []
    for p, f in zip(reversed(phases), reversed(forward), strict=True):
        arriving = {port.value: port.order for port in (*f.inputs, *f.outputs)}
        b = lower(p.B, precision, {**sent, **arriving})
        sent |= _orders(b, p.B, OutputKind.GRADIENT)
        found.append((prefixed(f, PREFIX["F"]), prefixed(b, PREFIX["B"])))
    return tuple(reversed(found))


def _orders(network: Network, graph: Graph, kind: OutputKind) -> dict[str, tuple[int, ...]]:
    names = {o.name for o in graph.outputs_of(kind)}
    return {port.value: port.order for port in network.outputs if port.value in names}


def prefixed(network: Network, prefix: str) -> Network:
    """The network with a prefix to the names of all layers and edges."""

    def use(u: Use) -> Use:
        return dataclasses.replace(u, edge=prefix + u.edge)

    def layer(y: Layer) -> Layer:
        return dataclasses.replace(y, name=prefix + y.name, inputs=tuple(map(use, y.inputs)))

    def port(p: NetPort) -> NetPort:
        return dataclasses.replace(p, node=prefix + p.node, use=use(p.use))

    return Network(
        tuple(map(layer, network.layers)),
        tuple(map(port, network.inputs)),
        tuple(map(port, network.outputs)),
    )


def kernels_on(
    networks: tuple[Network, Network], board: Board, name: str, saved: tuple[str, ...]
) -> Kernels:
    """F and B folded onto one board such that both keep the least interval.

    Raises:
        BackendError: They do not fit.
    """
    layers, inputs, outputs = (
        tuple(x for n in networks for x in getattr(n, field)) for field in _FIELDS
    )
    both = Network(layers, inputs, outputs)
    whole = best_design(both, board, name)
    parts = [
        _part(whole, f"{name}_{suffix}", PREFIX[phase])
        for phase, suffix in (("F", "forward"), ("B", "backward"))
    ]
    return Kernels(parts[0], parts[1], whole.interval, saved)


_OUTPUT = re.compile(r"^out_[0-9]+_")
"""What stands before the prefix in the name of a width converter at an output."""
_FIELDS = ("layers", "inputs", "outputs")


def _part(whole: StageDesign, name: str, prefix: str) -> StageDesign:
    """The engines of one kernel, with their streams and ports."""
    engines = tuple(e for e in whole.engines if _OUTPUT.sub("", e.name).startswith(prefix))
    names = {e.name for e in engines}
    streams = {k: s for k, s in whole.streams.items() if s.producer in names or s.consumer in names}
    found = dataclasses.replace(
        whole,
        name=name,
        engines=engines,
        streams=streams,
        inputs=tuple(p for p in whole.inputs if p.node.startswith(prefix)),
        outputs=tuple(p for p in whole.outputs if p.node.startswith(prefix)),
        ddr=tuple(p for p in whole.ddr if p.engine in names),
        floorplan=dataclasses.replace(
            whole.floorplan,
            regions={e: r for e, r in whole.floorplan.regions.items() if e in names},
        ),
        resources=sum((e.resources for e in engines), Resources()),
    )
    interval, _ = busiest(found)
    latency = math.ceil(schedule(found, None).end)
    return dataclasses.replace(found, interval=interval, latency=latency)
