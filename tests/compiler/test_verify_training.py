"""A training plan is verified down to its gradients."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import pipec
from pipec.compiler.comparison import SAME_KERNELS, rounding_tolerance
from pipec.compiler.verify_training import compare_gradients, compare_wide_gradients
from pipec.frontends.base import LoadOptions
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import Graph, OutputKind
from pipec.graph.written import with_outputs
from pipec.plan.model import Plan
from tests.autodiff.chain import cut
from tests.autodiff.zoo import CASES, seeded
from tests.runtime.pipelines import batches, scheduled, staged, staged_graph
from tests.sampling import without


def plan_and_inputs(name: str) -> tuple[Plan, list[Mapping[str, Tensor]]]:
    case = CASES[name]
    plan = staged(case, seeded(case), case.stages)
    inputs = [batches(case, plan.graph)(k) for k in range(2)]
    return plan.replace(schedule=scheduled(plan, "gpipe", 2)), inputs


GRADIENTS = ("cnn", "dropout", "long skip", "many in and out", "gpt-2", "t5")


@pytest.mark.parametrize("name", without(GRADIENTS, ["t5"]))
def test_the_gradients_of_stages_are_the_models(name: str) -> None:
    plan, inputs = plan_and_inputs(name)
    tolerance = rounding_tolerance(plan.graph, SAME_KERNELS)
    found = compare_gradients(plan, plan.graph, inputs, tolerance, seed=1)
    trained = {n for s in plan.stages if s.training for n in s.training.trained}
    assert {c.name for c in found if c.kind == "gradient"} == trained
    assert all(c.ok for c in found)
    assert sum(c.kind == "loss" for c in found) == 2
    assert max(c.scale for c in found) > 0


def damaged(graph: Graph, op: str, args: Callable[[fx.Node], tuple[Any, ...]]) -> tuple[Graph, int]:
    """A graph whose first node of an op reads something else; how many such nodes there are."""
    module = fx.GraphModule(graph.module, fx.Graph(), "wrong")
    module.graph, values, changed = type(graph.module.graph)(), dict[fx.Node, fx.Node](), 0
    for node in graph.module.graph.nodes:
        values[node] = copied = module.graph.node_copy(node, values.__getitem__)
        if op in str(node.target):
            copied.args = copied.args if changed else args(copied)
            changed += 1
    module.recompile()
    return graph.replace(module=module), changed


class Added(nn.Module):
    """A bias that begins as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.weight + self.bias)


def test_a_forward_that_drops_a_bias_of_zeros_is_found() -> None:
    loaded = from_module(Added(), torch.randn(4, 4), lambda y: y.square().mean())
    plan = staged_graph(loaded.graph, cut(loaded.graph, 1))
    plan = plan.replace(schedule=scheduled(plan, "gpipe", 1))
    (stage,) = plan.stages
    assert stage.training
    wrong, changed = damaged(stage.training.F, "add.Tensor", lambda n: (n.args[0], 0.0))
    assert changed == 1
    for forward, ok in ((stage.training.F, True), (wrong, False)):
        now = replace(stage, training=replace(stage.training, F=forward))
        found = compare_gradients(
            plan.replace(stages=(now,)), plan.graph, [loaded.example_inputs], 1e-5, 1,
            loaded.gradients,
        )  # fmt: skip
        assert all(c.ok for c in found) == ok
    assert not loaded.graph.weights["bias"].any()


def test_a_wrong_backward_graph_is_found() -> None:
    plan, inputs = plan_and_inputs("cnn")
    stage = plan.stages[1]
    assert stage.training
    wrong, changed = damaged(stage.training.B, "threshold_backward", lambda n: (*n.args[:2], 0.3))
    assert changed
    training = replace(stage.training, B=wrong)
    stages = list(plan.stages)
    stages[1] = replace(stage, training=training)
    found = compare_gradients(plan.replace(stages=tuple(stages)), plan.graph, inputs, 1e-5, seed=1)
    off = [c.stage for c in found if not c.ok]
    assert off
    assert max(off) <= 1  # nothing behind the damage is wrong


def in_16_bits(kind: str, layers: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """A model in bfloat16 or float16, or in float32 under autocast."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                found: Tensor = self.layers(x)
                return found

    if kind == "autocast":
        return Cast(), x
    return layers.to(getattr(torch, kind)), x.to(getattr(torch, kind))


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "autocast"])
def test_a_fault_smaller_than_roundings_of_16_bits_is_found(kind: str) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
    model, x = in_16_bits(kind, layers, torch.randn(8, 16))
    loaded = from_module(model, x, lambda y: y.float().square().mean())
    plan = staged_graph(loaded.graph, cut(loaded.graph, 2))
    plan = plan.replace(schedule=scheduled(plan, "1f1b", 1))
    stages, changed = [], 0

    def approximate(n: fx.Node) -> tuple[Any, ...]:
        n.kwargs = {"approximate": "tanh"}
        return n.args

    for stage in plan.stages:
        assert stage.training
        wrong, count = damaged(stage.training.B, "gelu_backward", approximate)
        stages.append(replace(stage, training=replace(stage.training, B=wrong)))
        changed += count
    assert changed == 1
    batch = [loaded.example_inputs]
    tolerance = rounding_tolerance(plan.graph, SAME_KERNELS)
    for now, ok in ((plan, True), (plan.replace(stages=tuple(stages)), False)):
        assert all(c.ok for c in compare_gradients(now, plan.graph, batch, tolerance, 1))
        found = compare_wide_gradients(now, plan.graph, batch, None, 1)
        assert {c.basis for c in found} == {"in float32"}
        assert {c.name for c in found if c.kind == "gradient"} == {
            n for s in plan.stages if s.training for n in s.training.trained
        }
        assert all(c.ok for c in found) == ok


def test_gradients_of_16_bits_are_verified_in_float32_too() -> None:
    def loss(y: Tensor) -> Tensor:
        return y.float().square().mean()

    for kind, bases in (("bfloat16", {"", "in float32"}), ("float32", {""})):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
        model, x = in_16_bits(kind, layers, torch.randn(8, 16))
        plan = pipec.compile(model, x, "2xcpu", microbatches=2, loss=loss)
        found = pipec.verify(plan, model, x, loss=loss)
        assert found.ok
        assert {b.basis for b in found.boundaries} == bases


def test_gradients_are_those_of_the_model_as_written() -> None:
    case = CASES["cnn"]
    module = seeded(case)
    args, target = case.batch(0)
    loaded = from_module(module, args, (case.loss, target))
    assert loaded.gradients
    staged_plan = staged_graph(loaded.graph, cut(loaded.graph, 3))
    plan = staged_plan.replace(schedule=scheduled(staged_plan, "gpipe", 2))
    inputs = [loaded.example_inputs]
    found = compare_gradients(plan, plan.graph, inputs, 1e-5, 1, loaded.gradients)
    assert all(c.ok for c in found)
    assert not any(p.grad is not None for p in module.parameters())

    def halved(inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What eager autograd would give if the trace had lost a factor."""
        assert loaded.gradients
        return {n: g / 2 for n, g in loaded.gradients(inputs, weights).items()}

    found = compare_gradients(plan, plan.graph, inputs, 1e-5, 1, halved)
    assert not all(c.ok for c in found)
    dropout = CASES["dropout"]
    args, target = dropout.batch(0)
    assert from_module(seeded(dropout), args, (dropout.loss, target)).gradients is None


class Fused(nn.Module):
    """Features of two scales, joined in front of a normalisation: it cancels their biases."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(c, 16) for c in (16, 32))
        self.join, self.norm = nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        fine = self.parts[0](x).transpose(1, 2).reshape(2, 16, 8, 8)
        coarse = self.parts[1](y).transpose(1, 2).reshape(2, 16, 4, 4)
        coarse = F.interpolate(coarse, size=(8, 8), mode="bilinear")
        found: Tensor = self.last(self.norm(self.join(torch.cat([coarse, fine], 1))).relu())
        return found


@pytest.mark.parametrize("fault", [0.0, 1e-4])
def test_a_gradient_that_cancels_is_judged_by_its_rounding(fault: float) -> None:
    """One in front of a normalisation is zero but for rounding; a wrong weight still shows."""
    torch.manual_seed(0)
    module, x = Fused(), (torch.randn(2, 64, 16), torch.randn(2, 16, 32))

    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    plan = pipec.compile(module, x, "3xcpu", loss=loss, schedule="1f1b", microbatches=6)
    inputs = [dict(zip(("x", "y"), x, strict=True))] * 2
    source = plan.graph
    name = "parts.0.weight"
    weights = {**source.weights, name: source.weights[name] * (1 + fault)}
    source = source.replace(weights=weights)
    found = compare_gradients(plan, source, inputs, 1e-6, seed=0)
    assert all(c.ok for c in found) == (fault == 0)
    trained = {name for name, _ in module.named_parameters()}
    assert {c.name for c in found if c.kind == "gradient"} == trained


class Rows(nn.Module):
    """A layer whose bias the normalisation behind it cancels, over another dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.linear(x).transpose(1, 2)).relu().transpose(1, 2)
        return found


@pytest.mark.parametrize("fault", [0.0, 1.0])
@pytest.mark.parametrize("autocast", ["", "bfloat16"])
def test_what_cancels_is_judged_by_the_rounding_of_its_dtype(autocast: str, fault: float) -> None:
    """Also where that is finer than float32's, or weights are finer than what they are cast to."""
    torch.manual_seed(0)
    module, x = nn.Sequential(*[Rows() for _ in range(4)], nn.Linear(16, 3)), torch.randn(4, 8, 16)
    if not autocast:
        module, x = module.double(), x.double()

    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    loaded = from_module(module, x, loss, LoadOptions(training=True, autocast=autocast))

    def gradients(inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert loaded.gradients
        return {n: (1 + fault) * g for n, g in loaded.gradients(inputs, weights).items()}

    plan = staged_graph(loaded.graph, cut(loaded.graph, 2))
    plan = plan.replace(schedule=scheduled(plan, "gpipe", 2))
    tolerance = rounding_tolerance(plan.graph, SAME_KERNELS)
    found = compare_gradients(plan, plan.graph, [loaded.example_inputs], tolerance, 0, gradients)
    assert all(c.ok for c in found) == (fault == 0)


class Followed(nn.Module):
    """Running statistics, a mean that the next forward reads, and whether there was one."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.full((8,), 0.1))
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)) * self.mean.clone()
        self.seen.logical_or_(h.isfinite().all())
        self.mean = 0.5 * self.mean + h.detach().mean(0)
        found: Tensor = self.last(h)
        return found


@pytest.mark.parametrize("fault", ["none", "a momentum", "buffers swapped", "a loss"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe{replicas=2}"])
def test_what_the_training_forward_leaves_is_compared(schedule: str, fault: str) -> None:
    """No gradient says what F makes of buffers and of the loss."""
    torch.manual_seed(0)
    model, x, target = Followed(), torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    plan = pipec.compile(model, x, "2xcpu" if "{" in schedule else "1xcpu", stages=1,
                         loss=(F.cross_entropy, target),
                         schedule=schedule, microbatches=2)  # fmt: skip
    (stage,) = plan.stages
    assert stage.training
    forward = stage.training.F
    graph = with_outputs(forward, forward.outputs)
    outputs = list(graph.outputs)
    if fault == "a momentum":
        norm = next(n for n in graph.calls if "batch_norm" in str(n.target))
        norm.update_arg(6, 0.5)
    elif fault == "a loss":
        loss = next(k for k, o in enumerate(outputs) if o.kind is OutputKind.LOSS)
        scores = next(n for n in graph.calls if "nll_loss" in str(n.target))
        other = next(n for n in scores.users if n.args[1] == 1)
        outputs[loss] = replace(outputs[loss], node=other.name)
    elif fault == "buffers swapped":
        at = {o.name: k for k, o in enumerate(outputs) if o.kind is OutputKind.BUFFER_UPDATE}
        a, b = at["norm.running_mean"], at["norm.running_var"]
        first, second = outputs[a].node, outputs[b].node
        outputs[a], outputs[b] = (
            replace(outputs[a], node=second),
            replace(outputs[b], node=first),
        )
    training = replace(stage.training, F=with_outputs(graph, tuple(outputs)))
    wrong = plan.replace(stages=(replace(stage, training=training),))
    inputs = [{"x": torch.randn(4, 8), "target": torch.randint(3, (4,))} for _ in range(2)]
    found = compare_gradients(wrong, plan.graph, inputs, 1e-5, seed=0)
    off = {c.name for c in found if not c.ok}
    assert (
        off
        == {
            "none": set(),
            "a momentum": {"norm.running_mean", "norm.running_var"},
            "buffers swapped": {"norm.running_mean", "norm.running_var"},
            "a loss": {"loss"},
        }[fault]
    )
