"""The built-in passes on a small graph: what they promise, twice, and what the verifier catches."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.cluster import Cluster, Link, parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.pass_manager import check_pipeline, parse_pipeline, run_passes
from pipec.compiler.problem import build_problem
from pipec.cost.count import count
from pipec.cost.stage import MessageCost, StageCost
from pipec.cost.table import CostTable
from pipec.errors import PartitionError, PassError, PipecError, PlanError
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import Graph, InputKind
from pipec.graph.lower import lower
from pipec.graph.units import placement_units
from pipec.plan.model import Plan
from pipec.plan.rules.verify import verify
from tests.toys import Builder, aten, mlp, run

CUT = "simplify,annotate-cost,partition,insert-comm"


def compiled(graph: Graph, devices: str = "3xh100", passes: str = CUT) -> Plan:
    return run_passes(parse_pipeline(passes), Plan(graph, parse_cluster(devices)))


def test_stages_in_a_chain_compute_what_the_model_computes() -> None:
    graph, x = mlp(layers=6), torch.randn(2, 8)
    for route in ("direct", "relay"):
        plan = compiled(graph, passes=f"{CUT}{{route={route}}}")
        values = {"x": x}
        for stage in plan.stages:
            low = lower(stage.graph)
            values |= run(low.graph, **values)
        assert torch.equal(values["y0"], run(graph, x=x)["y0"])


def test_costs_of_a_graph_that_simplify_changes_follow_it() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(torch.flatten(self.a(x), 1))
            return y

    graph = from_module(Flat(), torch.randn(2, 8)).graph
    measured = {n.name: 1.0 + k for k, n in enumerate(graph.calls)}
    message = MessageCost((1,), (1e-5,), (1e-6,), (1e-6,))
    stage = StageCost(1.0, 2.0, 0.5, 0.0, 0, 0, 0)
    costs = CostTable(
        count(graph), {"cpu": measured}, {"cpu": "measured"}, {"cpu": {"key": stage}},
        {"cpu": message}, {"cpu": {n: 2 * s for n, s in measured.items()}},
    )  # fmt: skip
    plan = make_plan(graph, parse_cluster("2xcpu"), passes=parse_pipeline(CUT), costs=costs)
    names = {n.name for n in plan.graph.calls}
    assert names < measured.keys()
    assert plan.costs is not None
    assert plan.costs.of("cpu") == {n: measured[n] for n in names}
    assert plan.costs.backward_of("cpu") == {n: 2 * measured[n] for n in names}
    assert plan.costs.stages == costs.stages
    assert plan.costs.messages == costs.messages


def test_stages_that_exchange_nothing_need_no_channels() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(y)

    graph = from_module(Towers(), (torch.randn(2, 8), torch.randn(2, 8))).graph
    plan = make_plan(graph, parse_cluster("2xh100"), "torch")
    assert len(plan.stages) == 2
    assert plan.channels == ()
    assert plan.timeline is not None


def test_removing_a_communication_node_names_channel_and_stages() -> None:
    plan = compiled(mlp(layers=6))
    for stage, word in ((0, "send"), (1, "recv")):
        graph = plan.stages[stage].graph
        fx_graph = graph.module.graph
        node = next(n for n in fx_graph.nodes if f"pipec.{word}" in str(n.target))
        copy = type(fx_graph)()
        env: dict[object, object] = {}
        for n in fx_graph.nodes:
            if n is node and word == "recv":
                env[n] = copy.placeholder(n.name)
                env[n].meta = dict(n.meta)  # type: ignore[attr-defined]
            elif n is not node:
                env[n] = copy.node_copy(n, env.__getitem__)  # type: ignore[arg-type]
        inputs = graph.inputs
        if word == "recv":
            value = type(inputs[0])(node.name, InputKind.VALUE, node.name)
            inputs = (*inputs, value)
        broken = graph.replace(module=torch.fx.GraphModule({}, copy), inputs=inputs)
        stages = list(plan.stages)
        stages[stage] = type(stages[stage])(stage, broken)
        want = rf"got nothing; want pipec\.{word}\.default\(.*channel='s0\.s\d\.\w+'"
        with pytest.raises(PlanError, match=rf"stage {stage}, node \w+: {want}"):
            verify(plan.replace(stages=tuple(stages)))


def test_passes_are_idempotent() -> None:
    plan = compiled(mlp(), devices="2xh100", passes="simplify")
    plan = run_passes(default_passes()[:4], plan)
    for p in default_passes()[:4]:
        assert p.run(plan) is plan


def test_pieces_that_must_stay_together() -> None:
    b = Builder()
    x = b.input("x", 2, 8)
    split = b.call(aten.split.Tensor, x, 4, 1)
    from operator import getitem

    left, right = b.call(getitem, split, 0), b.call(getitem, split, 1)
    flat = b.call(aten.reshape.default, b.call(aten.add.Tensor, left, right), [8])
    units = placement_units(b.graph(b.call(aten.relu.default, flat)))
    assert list(units.values()) == [0, 0, 0, 1, 1, 2]


def test_unlike_devices_and_free_order() -> None:
    graph = mlp(layers=8, width=256, batch=256)
    fixed = compiled(graph, "1xcpu,1xh100")
    free = compiled(graph, "1xcpu,1xh100", "annotate-cost,partition{order=free}")
    assert fixed.partition is not None
    assert free.partition is not None
    assert free.partition.step_seconds <= fixed.partition.step_seconds
    assert sorted(d.kind for d in free.cluster.devices) == ["cpu", "h100"]
    assert fixed.partition.answers.endswith(", devices in this order")
    assert "order" not in free.partition.answers
    alike = compiled(graph, "2xcpu", "annotate-cost,partition").partition
    assert alike is not None
    assert "order" not in alike.answers


def test_reordered_cluster_keeps_each_pairs_link() -> None:
    own = Link(1.0, 0.0)
    cluster = Cluster(parse_cluster("a100,v100,h100").devices, {(0, 2): own})
    turned = cluster.reorder([2, 0, 1])
    assert [d.kind for d in turned.devices] == ["h100", "a100", "v100"]
    assert turned.link(0, 1) is own


def test_limits_are_told_with_numbers() -> None:
    with pytest.raises(PartitionError, match="99 stages"):
        compiled(mlp(), "99xh100")
    with pytest.raises(PartitionError, match="does not fit the cluster"):
        compiled(mlp(), "2xh100", "annotate-cost,partition{stages=3}")


def test_pipelines_are_checked_before_they_run() -> None:
    plan = Plan(mlp(), parse_cluster("2xh100"))
    with pytest.raises(PassError, match="requires the fact partition") as caught:
        check_pipeline(parse_pipeline("annotate-cost,insert-comm"), plan)
    assert "put partition before it" in str(caught.value)


def test_errors_name_the_pass_and_those_before_it() -> None:
    with pytest.raises(PipecError) as caught:
        compiled(mlp(), "99xh100")
    assert caught.value.__notes__ == ["in pass partition, after simplify, annotate-cost"]


def test_the_default_pipeline_ends_in_a_timeline() -> None:
    plan = make_plan(mlp(), parse_cluster("2xh100"))
    assert plan.timeline is not None
    slowest = max(t.compute_seconds for t in plan.timing)
    assert plan.timeline.seconds >= 8 * slowest


def test_stages_of_one_device_add_up_in_memory() -> None:
    """Eight equal layers in two rounds over two devices: any stage fits, five layers do not."""

    def held(memory_bytes: float | None) -> list[float]:
        cluster = parse_cluster("2xh100")
        if memory_bytes is not None:
            devices = tuple(replace(d, memory_bytes=memory_bytes) for d in cluster.devices)
            cluster = replace(cluster, devices=devices)
        passes = parse_pipeline("simplify,annotate-cost,partition{schedule=interleaved}")
        plan = run_passes(passes, Plan(mlp(layers=8), cluster))
        assert plan.partition is not None
        assert plan.placement is not None
        problem = build_problem(plan)
        bytes_ = dict(zip(problem.names, problem.weight_bytes.tolist(), strict=True))
        total = [0.0, 0.0]
        for name, stage in plan.partition.stage_of.items():
            total[plan.placement.forward[stage][0]] += bytes_[name]
        return total

    free = held(None)
    assert max(free) == 5 * 256
    assert held(max(free) - 1) == [4 * 256] * 2
