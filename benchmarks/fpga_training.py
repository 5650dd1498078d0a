"""Training on clusters of boards, from closed forms of the engines.

    python benchmarks/fpga_training.py [--boards 100] [MODEL ...]

The experiments of BaPipe (pipelines against data parallelism on VCU118 and VCU129) and of FPDeep
(scaling to 100 boards). ResNet-50, VGG-16 and AlexNet are lowered to engines for F and B (input
and weight gradients), one image of 224 x 224 per microbatch, fp16. For an interval T every layer
takes its cheapest factors (`pipec.backends.fpga.engines.base.Nest.fold`); a board holds layers in
order, B on the board of its F, as far as its DSPs and the traffic of its DDR allow (FBP-AS: F and B
run at once); T is the least at which all fit.

whole     Layers stay whole. M images a step take (M + 2N - 1) T and one update.
split     A layer may straddle boards by output channels: DSPs, DDR and memory of all boards are
          one pool, and the largest map crosses a link twice.
parallel  Each board trains a whole copy on its share of the images (in proportion to its rate);
          then a ring all-reduce of fp16 gradients, 2 (N-1)/N of their bytes over the slowest link,
          not overlapped, and the update of all weights.

Assumptions, nothing fitted: 200 MHz; 4 DSPs per fp16 multiply-accumulate; 70 % of the DSPs; 80 % of
on-chip memory, less controllers and network cores, and of DDR bandwidth; links at 90 % of 100 Gb/s.
Through DDR go, per image, every saved value and every microbatch-deep FIFO of a batch normalisation
(written and read once), the gradients (added to fp32 sums: 8 bytes per parameter), and one read of
what does not fit on chip of weights, buffers and accumulators (optimistic). Update: 20 bytes per
parameter. No C++ is written here. The papers' minibatch, precision, clock and links are not known:
no figure of theirs is compared.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import click

from benchmarks._imagenet import NETWORKS, training_graph
from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga.engines.base import Layer, busy_cycles
from pipec.backends.fpga.folding import build
from pipec.backends.fpga.memory import items_of, logic
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.training.kernels import networks_of
from pipec.backends.fpga.training.phases import Phases, name_saved, phases_of
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.device import ram_bits
from pipec.graph.ir import InputKind, OutputKind, nbytes, op_name, origin, tensor, tensors

PRECISION = "float16"
IMAGES = 128
"""Images of a step."""
CLUSTERS = ("4xvcu118", "4xvcu129", "2xvcu129,2xvcu118", "8xvcu118")
STEP = 1.02
"""Ratio of neighbouring intervals that are tried."""
LONGEST = 1000
"""Intervals that are tried."""
NEVER = 1 << 62
"""Cycles of what does not fit."""


@dataclasses.dataclass(frozen=True)
class Demand:
    """Resources of the layers of a model at one interval, unit by unit.

    Attributes:
        dsp: DSPs; ``bits`` on-chip bits.
        slow: Units some layer of which cannot keep the interval, to a step of `STEP`.
    """

    dsp: tuple[float, ...]
    bits: tuple[float, ...]
    slow: frozenset[int]

    @property
    def late(self) -> bool:
        """Whether any unit is slow."""
        return bool(self.slow)


class Model:
    """A network's engines by unit: the layers of one module, F and B together."""

    def __init__(self, name: str, precision: str = PRECISION) -> None:
        self.name = name
        self.precision = precision
        self.element = bits_of(precision) // 8
        graph = training_graph(name, 1)
        (training,) = differentiate(graph, [graph])
        norms = [n for n in training.F.calls if "batch_norm" in op_name(n)]
        self.normalised = [(str(origin(n)), tensors(n)[0].numel()) for n in norms]
        self.phases: Phases = phases_of(training)
        self.parameters = sum(
            tensor(self.phases.B.node(o.node)).numel()
            for o in self.phases.B.outputs_of(OutputKind.WEIGHT_GRADIENT)
        )
        self._demands: dict[int, Demand] = {}

    @property
    def units(self) -> list[list[Layer]]:
        """Layers by module, in the order of F; those of B at their module."""
        return self._laid_out[0]

    @property
    def place(self) -> dict[str, int]:
        """Module, in the words of `pipec.graph.ir.Origin`, to its unit."""
        return self._laid_out[1]

    @cached_property
    def _laid_out(self) -> tuple[list[list[Layer]], dict[str, int]]:
        ((forward, backward),) = networks_of([self.phases], self.precision)
        place: dict[str, int] = {}
        units: list[list[Layer]] = []
        last = 0
        for layer in (*forward.layers, *backward.layers):
            is_forward = layer.name.startswith("f_")
            if layer.origin not in place and is_forward:
                place[layer.origin] = len(units)
                units.append([])
            last = place.get(layer.origin, last)
            units[last].append(layer)
        return units, place

    @cached_property
    def shapes(self) -> tuple[list[Layer], list[Counter[int]]]:
        """Layers that differ in more than names, and how many of each every unit has."""
        known: dict[object, int] = {}
        layers: list[Layer] = []
        counts = []
        for unit in self.units:
            count: Counter[int] = Counter()
            for layer in unit:
                key = _shape(layer)
                if key not in known:
                    known[key] = len(layers)
                    layers.append(layer)
                count[known[key]] += 1
            counts.append(count)
        return layers, counts

    def demand(self, target: int) -> Demand:
        """Resources of the units at an interval of ``target`` cycles."""
        if target not in self._demands:
            layers, counts = self.shapes
            each = [self.cost_at(layer, target) for layer in layers]
            dsp, bits = (
                tuple(sum(each[k][i] * n for k, n in c.items()) for c in counts) for i in (0, 1)
            )
            slow = frozenset(
                u for u, c in enumerate(counts) if any(each[k][2] > STEP * target for k in c)
            )
            self._demands[target] = Demand(dsp, bits, slow)
        return self._demands[target]

    def slowest(self, target: int) -> str:
        """The layer that bounds an interval; nothing where none is within a step of it."""
        layers, _ = self.shapes
        busy, origin_of = max((self.cost_at(y, target)[2], y.name) for y in layers)
        return origin_of if busy * STEP**2 > target and _floor(self, target) else ""

    def cost_at(self, layer: Layer, target: int) -> tuple[float, float, int]:
        """DSPs, bits and busy cycles of a layer folded for an interval."""
        made = layer.nest.fold(layer, target, self.precision)
        engines = build(layer, made, self.precision).engines
        bits = sum(i.width * i.depth for e in engines for i in items_of(e))
        return sum(logic(e).dsp for e in engines), float(bits), max(map(busy_cycles, engines))

    @cached_property
    def traffic(self) -> list[float]:
        """Bytes to and from DDR per image and unit: saved values, deep FIFOs, gradient sums."""
        found = [0.0] * len(self.units)
        nodes = self.phases.F.nodes
        for i in self.phases.B.inputs_of(InputKind.SAVED):
            source = nodes.get(i.name.removeprefix(name_saved("")))
            unit = self.place.get(str(origin(source)), 0) if source is not None else 0
            node = self.phases.B.node(i.node)
            found[unit] += 2 * nbytes(node) * self.element / tensor(node).element_size()
        for where, elements in self.normalised:
            found[self.place.get(where, 0)] += 8.0 * self.element * elements
        for o in self.phases.B.outputs_of(OutputKind.WEIGHT_GRADIENT):
            node = self.phases.B.node(o.node)
            found[self.place.get(str(origin(node)), 0)] += 8.0 * tensor(node).numel()
        return found

    @cached_property
    def cut_bytes(self) -> list[float]:
        """Bytes that cross in one direction behind every unit (its largest output)."""
        return [float(max(self.element * y.rows * y.channels for y in u if y.name.startswith("f_")))
                for u in self.units]  # fmt: skip


def _floor(model: Model, target: int) -> bool:
    """Whether some layer cannot be faster than about this."""
    return model.demand(round(target / STEP**2)).late


def _shape(layer: Layer) -> object:
    """A layer without its names and tables."""
    fields = {f.name: getattr(layer, f.name) for f in dataclasses.fields(layer)}
    skip = {"name", "node", "origin", "inputs", "tables", "steps"}
    rest = tuple((k, v) for k, v in fields.items() if k not in skip)
    uses = tuple((u.rows, u.channels, u.dtype) for u in layer.inputs)
    steps = tuple((s.op, s.operand, s.period) for s in fields.get("steps", ()))
    return type(layer), rest, uses, steps


def cycles_per_second(boards: Sequence[Board]) -> float:
    """The boards' clock, one for all."""
    (clock,) = {b.fabric.clock_hz for b in boards}
    return clock


def least(fits: Callable[[int], bool]) -> int:
    """The least interval on a grid of ratio `STEP` at which the model fits; `NEVER` if at none."""
    low, high, first = 0, LONGEST, 1000

    def at(k: int) -> int:
        return round(first * STEP**k)

    while low < high:
        middle = (low + high) // 2
        if fits(at(middle)):
            high = middle
        else:
            low = middle + 1
    return at(low) if low < LONGEST else NEVER


def pipeline(model: Model, boards: Sequence[Board]) -> int:
    """The least interval at which every board in order takes what fits."""
    return least(lambda t: reach(model, boards, t))


def room(board: Board) -> float:
    """On-chip bits that a design may use."""
    return ram_bits(board.limits.bram36, board.limits.uram)


def reach(model: Model, boards: Sequence[Board], interval: int) -> bool:
    """Whether the boards suffice for an interval."""
    demand, clock = model.demand(interval), cycles_per_second(boards)
    if demand.late:
        return False
    seconds, at = interval / clock, 0
    for board in boards:
        start = at
        while at < len(demand.dsp) and holds(model, demand, range(start, at + 1), [board], seconds):
            at += 1
        rate = board.device.link_bandwidth * seconds
        while start < at < len(demand.dsp) and model.cut_bytes[at - 1] > rate:
            at -= 1
    return at == len(demand.dsp)


def holds(
    model: Model, demand: Demand, units: range, boards: Sequence[Board], seconds: float
) -> bool:
    """Whether boards hold units: their DSPs, and the traffic of their DDR in an interval."""
    limits = [b.limits for b in boards]
    if sum(demand.dsp[u] for u in units) > sum(x.dsp for x in limits):
        return False
    over = max(sum(demand.bits[u] for u in units) - sum(map(room, boards)), 0.0)
    moved = sum(model.traffic[u] for u in units) + over / 8
    return moved <= sum(x.ddr for x in limits) * seconds


def cycles_alone(model: Model, board: Board, units: range | None = None) -> int:
    """Cycles per image of a board that trains the whole model, or some of its units."""
    chosen, clock = units or range(len(model.units)), cycles_per_second([board])

    def fits(interval: int) -> bool:
        demand = model.demand(interval)
        on_time = demand.slow.isdisjoint(chosen)
        return on_time and holds(model, demand, chosen, [board], interval / clock)

    return least(fits)


def straddling(model: Model, boards: Sequence[Board]) -> int:
    """Cycles per image where a layer may be split between neighbours by output channels."""
    clock = cycles_per_second(boards)
    rate = min(b.device.link_bandwidth for b in boards) / clock
    crossing = 2 * max(model.cut_bytes) if len(boards) > 1 else 0.0
    every = range(len(model.units))

    def fits(interval: int) -> bool:
        demand = model.demand(interval)
        if demand.late or crossing > rate * interval:
            return False
        return holds(model, demand, every, boards, interval / clock)

    return least(fits)


def step_seconds(model: Model, boards: Sequence[Board], interval: int) -> float:
    """One step of the pipeline: fill, images, update of the largest share of the weights."""
    seconds = interval / cycles_per_second(boards)
    update = max(20 * model.parameters / b.limits.ddr for b in boards) / len(boards)
    return (IMAGES + 2 * len(boards) - 1) * seconds + update


def parallel_seconds(model: Model, boards: Sequence[Board]) -> float:
    """One step of data parallelism on the same boards."""
    clock = cycles_per_second(boards)
    kinds = {b.device.kind: b for b in boards}
    rates = {kind: clock / cycles_alone(model, b) for kind, b in kinds.items()}
    compute = IMAGES / sum(rates[b.device.kind] for b in boards)
    n, link = len(boards), min(b.device.link_bandwidth for b in boards)
    reduce = 2 * (n - 1) / n * model.element * model.parameters / link
    update = max(20 * model.parameters / b.limits.ddr for b in boards)
    return compute + reduce + update


def boards_of(text: str) -> list[Board]:
    """The boards of a cluster such as ``2xvcu129,2xvcu118``."""
    return [Board(d, PRECISION) for d in parse_cluster(text).devices]


def on_cluster(model: Model, text: str) -> str:
    """Images per second of one cluster: whole, split, parallel."""
    boards = boards_of(text)
    seconds = (
        step_seconds(model, boards, pipeline(model, boards)),
        step_seconds(model, boards, straddling(model, boards)),
        parallel_seconds(model, boards),
    )
    return " ".join(f"{IMAGES / s:.1f}" if s < NEVER / 1e12 else "none" for s in seconds)


def scaling(model: Model, counts: Sequence[int]) -> str:
    """Images per second over the number of boards, and that per board, against the first that fit.

    An interval that one layer bounds is marked by a star.
    """
    first: tuple[int, int] | None = None
    cells = []
    for n in counts:
        boards = boards_of(f"{n}xvcu118")
        interval = straddling(model, boards)
        if interval == NEVER:
            cells.append("none")
            continue
        first = first or (n, interval)
        linear = first[0] * first[1] / interval / n
        bound = "*" if model.slowest(interval) else ""
        cells.append(f"{cycles_per_second(boards) / interval:.1f} {linear:.2f}{bound}")
    return f"{model.name:9} {' '.join(f'{cell:>12}' for cell in cells)}"


@click.command()
@click.option("--boards", default=100, help="Most boards of the scaling experiment.")
@click.argument("names", nargs=-1)
def main(boards: int, names: tuple[str, ...]) -> None:
    """Clusters of VCU118 and VCU129 against data parallelism, then scaling of VCU118."""
    models = [Model(name) for name in names or NETWORKS]
    print(f"boards    {' '.join(f'{text:>19}' for text in CLUSTERS)}")
    for model in models:
        cells = [on_cluster(model, text) for text in CLUSTERS]
        print(f"{model.name:9} {' '.join(f'{cell:>19}' for cell in cells)}", flush=True)
    counts = [n for n in (1, 2, 5, 10, 20, 50, 100, 200) if n <= boards]
    print(f"\nVCU118s   {' '.join(f'{n:12}' for n in counts)}")
    for model in models:
        print(scaling(model, counts))


if __name__ == "__main__":
    main()
