"""One stage of each network of `benchmarks.fpga_training` in training, emitted and run.

    python -m benchmarks.fpga_training_stages [MODEL ...]

A stage in the middle of ResNet-50, VGG-16 and AlexNet at 224 x 224 pixels, one image per
microbatch, float32, is put on one VCU118 with six microbatches in flight, and its F, B and update
are written. Their C simulation runs one microbatch of random values; outputs and gradients are
held against autograd on the uncut stage, the updated weights against torch.optim.SGD.

cycles   modelled: the interval of `benchmarks.fpga_training` for the same layers (DSPs and DDR).
         planned: F and B side by side as they were folded, FIFOs and memories placed.
         F, B, update: simulated handshake by handshake from `stage.json`.

Seconds are processor seconds, those of g++ and of the simulation included.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from torch import Tensor

from benchmarks._imagenet import NETWORKS, training_graph
from benchmarks.fpga_csim import cpu
from benchmarks.fpga_training import Model, cycles_alone
from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga.cycles import cycles_of
from pipec.backends.fpga.emit.stage import Golden
from pipec.backends.fpga.search import Board
from pipec.backends.fpga.stagejson import read_design
from pipec.backends.fpga.training.artifacts import KERNELS, emit_stage
from pipec.backends.fpga.training.kernels import networks_of
from pipec.backends.fpga.training.phases import gradient_name, phases_of
from pipec.backends.fpga.training.run import TrainedRunner, load_training
from pipec.backends.fpga.training.stage import TrainedStage, make_stage
from pipec.backends.fpga.training.update import WORDS_MOVED, Sgd
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.sizes import run_graph
from pipec.graph.ir import Graph, InputKind, OutputKind, origin, tensor
from pipec.graph.written import extract

STAGES = {"resnet50": ("15", "15"), "vgg16": ("24", "30"), "alexnet": ("6", "12")}
"""First and last module of the stage: a bottleneck of 7 x 7 pixels; three convolutions of 14 x 14,
and of 13 x 13, with the pooling behind them."""
PRECISION, IN_FLIGHT = "float32", 6
TOLERANCE = 1e-4

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """A stage of a network.

    Attributes:
        model: The whole network with weights.
        graph: The stage, values in and out.
        trained: The stage on its board.
        origins: Origins of its nodes, in the model's words.
    """

    model: Graph
    graph: Graph
    trained: TrainedStage
    origins: frozenset[str]


def part_of(name: str, board: Board) -> Part:
    """The stage of a network on a board."""
    model = training_graph(name, 1, "cpu")
    first, last = STAGES[name]
    where = [_section(origin(n).name, int(first), int(last)) for n in model.calls]
    pieces = [{n.name for n, at in zip(model.calls, where, strict=True) if at == k}
              for k in range(3)]  # fmt: skip
    stages = [extract(model, piece, f"Stage{k}") for k, piece in enumerate(pieces)]
    phases = [phases_of(t) for t in differentiate(model, stages, portable=True)]
    networks = networks_of(phases, PRECISION)
    trained = make_stage(phases[1], networks[1], board, "stage1", IN_FLIGHT)
    origins = frozenset(str(origin(n)) for n in stages[1].calls)
    return Part(model, stages[1], trained, origins)


def _section(module: str, first: int, last: int) -> int:
    """0, 1 or 2: before, in or behind the stage; the loss, which has no module, is behind."""
    head = module.split(".", maxsplit=1)[0]
    at = int(head) if head else last + 1
    return 0 if at < first else 1 if at <= last else 2


def truth(graph: Graph, values: Mapping[str, Tensor]) -> tuple[Values, Values]:
    """Outputs of a stage by torch, and the gradients by autograd.

    Args:
        graph: The stage.
        values: What it reads, and gradients of the values that it yields (`gradient_name`).
    """
    known = {n: w.detach().clone() for n, w in graph.weights.items()} | dict(values)
    names = [i.name for i in graph.inputs if i.kind in (InputKind.PARAMETER, InputKind.VALUE)]
    for name in names:
        known[name] = known[name].clone().requires_grad_()
    found = graph.module(*[known[i.name] for i in graph.inputs])
    outputs = {o.name: v for o, v in zip(graph.outputs, found, strict=True)}
    sent = [o.name for o in graph.outputs_of(OutputKind.VALUE)]
    gradients = torch.autograd.grad(
        [outputs[n] for n in sent],
        [known[n] for n in names],
        [values[gradient_name(n)] for n in sent],
    )
    return {n: v.detach() for n, v in outputs.items()}, dict(zip(names, gradients, strict=True))


def random_values(graph: Graph) -> Values:
    """Inputs of the stage, and the gradients of its outputs."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, node in (
        *((i.name, i.node) for i in graph.inputs_of(InputKind.VALUE)),
        *((gradient_name(o.name), o.node) for o in graph.outputs_of(OutputKind.VALUE)),
    ):
        found[name] = torch.randn(tuple(tensor(graph.node(node)).shape), generator=generator)
    return found


def build_runner(part: Part, values: Values, folder: Path) -> TrainedRunner:
    """The stage's kernels, written and compiled."""
    known = {**part.model.weights, **values}
    phases, frames = part.trained.phases, []
    for graph in (phases.F, phases.B):
        read = {i.name: known[i.name] for i in graph.inputs if not i.kind.is_weight}
        outputs = run_graph(graph, read)
        frames.append(Golden(read, outputs))
        known |= outputs
    emit_stage(part.trained, folder, (frames[0], frames[1]), part.model.weights, Sgd())
    (runner,) = load_training([folder])
    return runner


def error(found: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> float:
    """The largest error of any value, relative to its largest magnitude."""
    return max(float((found[n] - w).abs().max() / w.abs().max()) for n, w in want.items())


def errors(part: Part, runner: TrainedRunner, values: Values) -> tuple[float, float, float]:
    """How far F, B and the update are off."""
    outputs, gradients = truth(part.graph, values)
    statistics = {o.name for o in part.graph.outputs_of(OutputKind.BUFFER_UPDATE)}
    runner.begin(1)
    received = {i.name: values[i.name] for i in part.graph.inputs_of(InputKind.VALUE)}
    forward = runner.forward(0, received)
    sent = {o.name: values[gradient_name(o.name)]
            for o in part.graph.outputs_of(OutputKind.VALUE)}  # fmt: skip
    backward = runner.backward(0, sent) | runner.gradients()
    new = runner.update()
    held = {n: part.model.weights[n].detach().clone() for n in new}
    for n, w in held.items():
        w.grad = gradients[n]
    torch.optim.SGD(held.values(), Sgd().rate, Sgd().momentum).step()
    counted = {n: v for n, v in outputs.items() if n not in statistics or v.is_floating_point()}
    return error(forward, counted), error(backward, gradients), error(new, held)


def cycles(folder: Path, part: Part, name: str, board: Board) -> str:
    """Modelled, planned and simulated cycles, with those of the update."""
    model = Model(name, PRECISION)
    units = [model.place[o] for o in part.origins if o in model.place]
    modelled = cycles_alone(model, board, range(min(units), max(units) + 1))
    forward, backward, update = (
        cycles_of(read_design(folder / kernel)).interval for kernel in KERNELS[:3]
    )
    planned, trained = part.trained.kernels.interval, part.trained.phases.trained
    moved = 4 * WORDS_MOVED * sum(part.graph.weights[n].numel() for n in trained)
    bound = moved / board.limits.ddr * board.fabric.clock_hz
    shown = [f"{n:>10,}" for n in (modelled, planned, forward, backward, update)]
    shown.insert(2, f"{planned / modelled:6.2f}")
    return " ".join([*shown, f"{update / bound:6.2f}"])


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Print one row per network; exit 1 if any value is off by more than 1e-4."""
    board, failed = Board(parse_cluster("1xvcu118").devices[0], PRECISION), False
    print(
        "network  modules  modelled    planned  ratio          F          B     update  ratio"
        "   error of F, B, update      DDR  seconds"
    )
    for name in names or NETWORKS:
        torch.manual_seed(0)
        start, values = cpu(), dict[str, Tensor]()
        part = part_of(name, board)
        values = random_values(part.graph)
        with tempfile.TemporaryDirectory() as text:
            runner = build_runner(part, values, Path(text) / "stage")
            off = errors(part, runner, values)
            row = cycles(Path(text) / "stage", part, name, board)
        failed |= not max(off) <= TOLERANCE
        features = part.trained.kernels.features
        waiting = f"{sum(f.traffic > 0 for f in features)}/{len(features)}"
        print(
            f"{name:9} {'-'.join(STAGES[name]):6} {row}   "
            f"{off[0]:.1e} {off[1]:.1e} {off[2]:.1e} {waiting:>7} {cpu() - start:8.0f}",
            flush=True,
        )
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
