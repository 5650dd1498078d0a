"""F and B of a stage on a board against autograd: rewritten graphs, C simulation, timed build."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga.csim.run import check_timing
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.stage import Golden, write_stage
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.outer import Outer
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering import gradients
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.stagejson import stage_record
from pipec.backends.fpga.training.kernels import networks_of
from pipec.backends.fpga.training.phases import Phases, phases_of
from pipec.compiler.sizes import run_graph
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, OutputKind, Source, origin, tensor
from pipec.graph.written import extract
from pipec.runtime.draws import count_draws, drawing, seed_graph
from tests.fpga.training.models import LABELS, MODELS, example
from tests.sampling import without

TARGET = 2_000
"""Cycles per microbatch to fold for: engines of several lanes, tiles that overhang."""


@dataclass(frozen=True)
class Truth:
    """A model, its phases, a microbatch, and what torch and autograd make of it."""

    graph: Graph
    phases: Phases
    inputs: Mapping[str, Tensor]
    loss: Tensor
    gradients: Mapping[str, Tensor]


@lru_cache
def truth(name: str) -> Truth:
    torch.manual_seed(len(name))
    graph = MODELS[name]()
    phases = phases_of(differentiate(graph, [graph], portable=True)[0])
    inputs = {i.name: example(tensor(graph.node(i.node))) for i in graph.inputs_of(InputKind.INPUT)}
    inputs |= {n: LABELS[name] for n, x in inputs.items() if name in LABELS and x.ndim == 1}
    names = [i.name for i in graph.inputs_of(InputKind.PARAMETER)]
    weights = {n: w.detach().clone() for n, w in graph.weights.items()}
    for n in names:
        weights[n].requires_grad_()
    with drawing(int):
        found = seed_graph(graph, tuple(range(count_draws(graph)))).module(
            *[{**weights, **inputs}[i.name] for i in graph.inputs]
        )
    (at,) = [k for k, o in enumerate(graph.outputs) if o.kind is OutputKind.LOSS]
    gradients = torch.autograd.grad(found[at], [weights[n] for n in names])
    masks = {m.name: m.draw_mask(int) for m in phases.masks}
    return Truth(
        graph,
        phases,
        {**inputs, **masks},
        found[at].detach(),
        dict(zip(names, gradients, strict=True)),
    )


def read_by(graph: Graph, known: Mapping[str, Tensor], whole: Graph) -> dict[str, Tensor]:
    """The values that a phase reads: known ones, and running statistics."""
    names = [i.name for i in graph.inputs if not i.kind.is_weight]
    return {n: known[n] if n in known else whole.weights[n] for n in names}


def check_gradients(want: Truth, found: Mapping[str, Tensor], tolerance: float) -> None:
    wrong = {
        name: error
        for name, gradient in want.gradients.items()
        if not (error := relative(found[f"grad_{name}"], gradient)) <= tolerance
    }
    assert wrong == {}


def relative(found: Tensor, want: Tensor) -> float:
    assert found.shape == want.shape
    return float((found - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_rewritten_graphs_give_autograds_gradients(name: str) -> None:
    want = truth(name)
    forward = run_graph(want.phases.F, read_by(want.phases.F, want.inputs, want.graph))
    assert relative(forward["loss"], want.loss) <= 1e-5
    known = {**want.inputs, **forward}
    backward = run_graph(want.phases.B, read_by(want.phases.B, known, want.graph))
    check_gradients(want, backward, 1e-4)


def kernel(graph: Graph, orders: dict[str, tuple[int, ...]]) -> StageDesign:
    network = lower(graph, orders=orders)
    orders |= {port.value: port.order for port in network.outputs}
    design = size_fifos(design_at(network, TARGET))
    return dataclasses.replace(design, device="vcu118", part="xcvu9p-flga2104-2L-e")


def kernels_checked(name: str, tmp_path: Path) -> list[StageDesign]:
    """F and B, whose timed builds give what torch computes in the cycles that are simulated."""
    want, orders = truth(name), dict[str, tuple[int, ...]]()
    known, found = dict(want.inputs), list[StageDesign]()
    for phase, graph in (("F", want.phases.F), ("B", want.phases.B)):
        design, folder = kernel(graph, orders), tmp_path / phase
        read = read_by(graph, known, want.graph)
        known |= run_graph(graph, read)
        write_stage(design, folder, Golden(read, known))
        (folder / "stage.json").write_text(json.dumps(stage_record(design)))
        check = check_timing(folder, 1)
        assert check.handshakes > 300
        assert check.differing == ()
        found.append(design)
    return found


SIMULATED = ("cnn", "ignoring", "resnet", "rows", "encoder", "causal", "dropout", "corners",
             "quantile", "last", "dilated", "padded")  # fmt: skip
OTHERS = ("rows", "dropout")
"""Whose engines others of them have too."""


@pytest.mark.parametrize("name", without(SIMULATED, OTHERS))
def test_c_simulation_computes_the_same_in_the_cycles_simulated(name: str, tmp_path: Path) -> None:
    assert len(kernels_checked(name, tmp_path)) == 2


def test_large_gradients_are_written_row_by_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Products of windows and turned gradients in place of whole matrices summed on chip."""
    monkeypatch.setattr(gradients, "SMALL_MATRIX", 0)
    _, backward = kernels_checked("deep", tmp_path)
    nests = [type(e.nest) for e in backward.engines]
    assert nests.count(Matmul) == 2
    assert Outer not in nests


@pytest.mark.parametrize("name", MODELS)
def test_saved_values_are_those_that_backward_reads(name: str) -> None:
    phases = truth(name).phases
    assert {o.name for o in phases.F.outputs_of(OutputKind.SAVED)} == set(phases.saved)
    assert set(phases.saved) == {i.name for i in phases.B.inputs_of(InputKind.SAVED)}


def test_saved_values_of_several_stages_may_have_one_name() -> None:
    """Indices of a pooling and statistics of a normalisation: each B reads those of its stage."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(100, 3),
    )  # fmt: skip
    classes = torch.tensor([2, 0])
    loss = Loss(functional.cross_entropy, classes)
    graph = trace(net.train(), (torch.randn(2, 3, 16, 16),), loss=loss, source=Source("memory", ""))
    first = {n.name for n in graph.calls if origin(n).name in ("0", "1")}
    pieces = [first, {n.name for n in graph.calls} - first]
    stages = [extract(graph, piece, f"Stage{k}") for k, piece in enumerate(pieces)]
    phases = [phases_of(t) for t in differentiate(graph, stages, portable=True)]
    networks = networks_of(phases)
    kept = [
        {port.value: port.order for port in forward.outputs if port.value.startswith("saved_")}
        for forward, _ in networks
    ]
    shared = {name for name in kept[0].keys() & kept[1].keys() if kept[0][name] != kept[1][name]}
    assert shared
    for orders, (_, backward) in zip(kept, networks, strict=True):
        read = {port.value: port.order for port in backward.inputs if port.value in orders}
        assert read
        assert all(orders[name] == order for name, order in read.items())
