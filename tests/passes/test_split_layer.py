"""A layer in two halves computes what it computed, gives its gradients, and lets a cut pass."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.verify import verify_artifacts
from pipec.cost.table import CostTable
from pipec.errors import BackendError, GraphError
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Origin, Source
from pipec.graph.lower import lower
from pipec.graph.rules import verify
from pipec.graph.split_node import is_splittable, split_node
from pipec.graph.units import placement_units
from pipec.passes.split_layer import SplitLayer
from pipec.plan.model import Plan
from tests.toys import Builder, aten, mlp, run

COSTED = "simplify,annotate-cost"


def layer_graph(kind: str) -> Graph:
    """One layer of every kind that can be split, called ``layer``."""
    b = Builder()
    if kind.startswith("conv"):
        x, w, bias = b.input("x", 2, 3, 6, 6), b.parameter("w", 5, 3, 3, 3), b.parameter("b", 5)
        if kind == "convolution":
            args = (x, w, bias, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
            y = b.call(aten.convolution.default, *args, name="layer")
        elif kind == "conv2d-same":
            y = b.call(aten.conv2d.padding, x, w, None, [1, 1], "same", name="layer")
        else:
            y = b.call(aten.conv2d.default, x, w, bias, [1, 1], [1, 1], name="layer")
    else:
        x, w, t = b.input("x", 4, 6), b.parameter("w", 6, 5), b.parameter("t", 5, 6)
        bias = b.parameter("b", 5)
        if kind.endswith("-t"):
            w = b.call(aten.t.default, t, name="turned")
        y = {
            "linear": lambda: b.call(aten.linear.default, x, t, bias, name="layer"),
            "linear-bare": lambda: b.call(aten.linear.default, x, t, name="layer"),
            "matmul": lambda: b.call(aten.matmul.default, x, w, name="layer"),
            "mm": lambda: b.call(aten.mm.default, x, w, name="layer"),
            "mm-t": lambda: b.call(aten.mm.default, x, w, name="layer"),
            "addmm": lambda: b.call(aten.addmm.default, bias, x, w, name="layer"),
            "addmm-t": lambda: b.call(aten.addmm.default, bias, x, w, name="layer"),
        }[kind]()
    return b.graph(b.call(aten.relu.default, y, name="after"))


KINDS = ["linear", "linear-bare", "matmul", "mm", "mm-t", "addmm", "addmm-t"]
CONVS = ["conv2d", "conv2d-same", "convolution"]


def outputs(graph: Graph, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Result and gradients of every weight and of the input."""
    leaves = {n: w.detach().requires_grad_() for n, w in graph.weights.items()}
    leaves["x"] = x.detach().requires_grad_()
    args = [leaves[i.name] for i in graph.inputs]
    (y,) = fx.Interpreter(graph.module).run(*args)
    y.square().sum().backward()
    return y, {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize("share", [0.5, 0.01, 0.7])
@pytest.mark.parametrize("kind", [*KINDS, *CONVS])
def test_halves_compute_the_layer_and_its_gradients(kind: str, share: float) -> None:
    graph = layer_graph(kind)
    halves = split_node(graph, "layer", share)
    verify(halves)
    x = torch.randn(2, 3, 6, 6) if kind in CONVS else torch.randn(4, 6)
    y, gradients = outputs(graph, x)
    z, again = outputs(halves, x)
    torch.testing.assert_close(z, y)
    torch.testing.assert_close(again, gradients)
    first, second = (halves.node(f"layer_{w}").meta["val"] for w in ("first", "second"))
    dim = 1
    assert first.shape[dim] == max(1, round(share * 5))
    assert first.shape[dim] + second.shape[dim] == 5


def test_slices_stay_with_their_half() -> None:
    units = placement_units(split_node(layer_graph("linear"), "layer"))
    assert units["layer_first"] == units["layer_first_1"] == units["layer_first_2"]
    assert units["layer_second"] == units["layer_second_1"]
    assert len({units["layer_first"], units["layer_second"], units["layer"]}) == 3


def test_what_cannot_be_split_is_told() -> None:
    b = Builder()
    x, w = b.input("x", 2, 4, 6, 6), b.parameter("w", 4, 1, 3, 3)
    grouped = b.call(aten.conv2d.default, x, w, None, [1, 1], [1, 1], [1, 1], 4, name="grouped")
    graph = b.graph(b.call(aten.mul.Tensor, grouped, grouped, name="product"))
    assert not any(is_splittable(graph, n) for n in graph.calls)
    for name, error in (("grouped", "cannot be split"), ("nowhere", "no such node")):
        with pytest.raises(GraphError, match=error):
            split_node(graph, name)
    with pytest.raises(GraphError, match="share"):
        split_node(mlp(), "linear0", 1.0)


def lopsided(batch: int = 64) -> Graph:
    model = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 32))
    return trace(
        model,
        (torch.zeros(batch, 32),),
        loss=Loss(functional.mse_loss, torch.zeros(batch, 32)),
        source=Source("memory", "lopsided"),
    )


def with_seconds(plan: Plan, heavy: str, seconds: float) -> Plan:
    """Measured costs: one node takes long, all others next to nothing."""
    assert plan.costs is not None
    rows = {k: dict.fromkeys(row, 1e-9) for k, row in plan.costs.seconds.items()}
    rows = {k: row | {heavy: seconds} for k, row in rows.items()}
    return plan.replace(costs=CostTable(plan.costs.nodes, rows, dict.fromkeys(rows, "measured")))


def test_the_cut_runs_through_the_slowest_layer() -> None:
    plan = run_passes(parse_pipeline(COSTED), Plan(mlp(), parse_cluster("2xv100")))
    plan = with_seconds(plan, "linear1", 1.0)
    whole = run_passes(parse_pipeline("partition"), plan).partition
    halves = run_passes(parse_pipeline("split-layer,partition,insert-comm"), plan)
    assert whole is not None
    assert halves.partition is not None
    assert whole.max_load > 1
    assert halves.partition.max_load == pytest.approx(0.5, rel=1e-3)
    stage_of = halves.partition.stage_of
    assert stage_of["linear1_first"] != stage_of["linear1_second"]
    assert halves.find_tied() == {"layer1.weight": (0, 1)}
    x = torch.randn(2, 8)
    values = {"x": x}
    for stage in halves.stages:
        values |= run(lower(stage.graph).graph, **values)
    torch.testing.assert_close(values["y0"], run(mlp(), x=x)["y0"])


def test_automatic_splitting_gains_or_leaves_the_plan_alone() -> None:
    plan = run_passes(parse_pipeline(COSTED), Plan(mlp(), parse_cluster("2xv100")))
    even = with_seconds(plan, "linear0", 1e-9)
    assert SplitLayer().run(even) is even
    one = with_seconds(plan, "linear1", 1.0)
    assert SplitLayer(stages=1).run(one) is one
    named = SplitLayer(node="linear1", share=0.25).run(one)
    assert SplitLayer(node="linear1").run(named) is named
    assert named.costs is not None
    assert named.costs.of("v100")["linear1_first"] == pytest.approx(0.25)
    cut = run_passes(parse_pipeline("partition"), plan)
    assert SplitLayer(node="linear1").run(cut) is cut


def test_split_stages_train() -> None:
    graph = lopsided()
    passes = f"{COSTED},split-layer{{node=linear}},partition,insert-comm,differentiate"
    plan = run_passes(parse_pipeline(passes), Plan(graph, parse_cluster("2xv100")))
    assert all(s.training is not None for s in plan.stages)
    trained = {n for s in plan.stages if s.training for n in s.training.trained}
    assert trained == set(graph.weights)


def test_an_onnx_node_that_is_split_is_not_emitted_as_onnx(tmp_path: Path) -> None:
    graph = mlp()
    graph = graph.replace(source=replace(graph.source, kind="onnx"))
    graph.node("linear1").meta["origin"] = Origin("MatMul_1", "MatMul", 3)
    plan = run_passes(parse_pipeline("annotate-cost"), Plan(graph, parse_cluster("2xv100")))
    split = SplitLayer(node="linear1").run(plan)
    assert split.graph.node("linear1").meta["origin"] == Origin("MatMul_1", "MatMul")
    with pytest.raises(BackendError, match="rewritten ONNX nodes"):
        load_backend("onnx").emit(replace(split, target="onnx"), tmp_path)


def test_split_stages_verify_against_the_source(tmp_path: Path) -> None:
    loaded = from_module(nn.Sequential(nn.Linear(8, 256), nn.Tanh()), (torch.randn(4, 8),))
    passes = f"{COSTED},split-layer{{node=linear}},partition,insert-comm,time-stages,schedule"
    plan = run_passes(parse_pipeline(passes), Plan(loaded.graph, parse_cluster("2xv100")))
    emit(plan, tmp_path / "out")
    report = verify_artifacts(tmp_path / "out", loaded)
    assert report.ok
    assert "linear_first" in {b.name for b in report.boundaries}


def test_measured_backward_seconds_of_the_whole_are_those_of_the_halves() -> None:
    plan = run_passes(parse_pipeline(COSTED), Plan(mlp(), parse_cluster("1xv100")))
    plan = with_seconds(plan, "linear1", 1.0)
    assert plan.costs is not None
    backward = {
        kind: {n: 2 * t for n, t in row.items()} for kind, row in plan.costs.seconds.items()
    }
    costs = replace(plan.costs, backward=backward)
    after = SplitLayer(node="linear1").run(plan.replace(costs=costs)).costs
    assert after is not None
    assert sum(after.backward["v100"].values()) == pytest.approx(2.0, rel=1e-3)
    assert after.backward["v100"]["linear1"] < 1e-3  # joins the halves, no more
