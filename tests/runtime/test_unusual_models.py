"""Models that people write and test suites forget: state, frozen parts, writes in place."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pipec
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.reside import save_to_host
from pipec.errors import GraphError, PlanError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, OutputKind, Source
from pipec.plan.model import Plan
from pipec.plan.rules.verify import verify
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.registry import generate
from tests.autodiff.chain import Case
from tests.autodiff.zoo import floats, seeded
from tests.runtime.pipelines import accumulated, batches, scheduled, staged, staged_graph
from tests.toys import FirstToAll


class Layers(nn.Module):
    """Three layers and a buffer; what is done with them is up to the subclass."""

    mean: Tensor
    b: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.full((8,), 0.1))

    @torch.no_grad()
    def follow(self, h: Tensor) -> None:
        self.mean.mul_(0.5).add_(h.mean(0), alpha=0.5)


class ReadEarly(Layers):
    """The first layer reads what the last one writes."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.b(torch.tanh(self.a(x * self.mean.clone()))))
        self.follow(h)
        result: Tensor = self.c(h)
        return result


class ReadLate(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        scale = self.mean.clone()
        self.follow(h)
        result: Tensor = self.c(torch.tanh(self.b(h)) * self.mean.clone() * scale)
        return result


class Replaced(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        self.mean = 0.5 * self.mean + h.detach().mean(0)
        result: Tensor = self.c(torch.tanh(self.b(h * self.mean)))
        return result


class LastInput(Layers):
    """The next value of the buffer is an input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Tensor
        self.register_buffer("before", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x - self.before.clone()))
        self.before.copy_(x)
        result: Tensor = self.c(torch.tanh(self.b(h)))
        return result


class SharedNorm(Layers):
    """One BatchNorm behind two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.a(x)))
        result: Tensor = self.c(torch.tanh(self.norm(self.b(h))))
        return result


class Normed(Layers):
    """Spectral norm keeps two vectors, and reads them in each of its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.utils.parametrizations.spectral_norm(self.b)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.b(torch.tanh(self.a(x))))
        result: Tensor = self.c(torch.tanh(self.b(h)))
        return result


class Frozen(Layers):
    """A first part that is not trained, and one bias."""

    def __init__(self) -> None:
        super().__init__()
        for p in [*self.a.parameters(), *self.b.parameters(), self.c.bias]:
            p.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return result


class Adapted(Layers):
    """Gradients pass through layers that are not trained."""

    def __init__(self) -> None:
        super().__init__()
        for p in [*self.b.parameters(), *self.c.parameters()]:
            p.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return result


class Complex(Layers):
    """A complex parameter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.irfft(torch.fft.rfft(self.a(x)) * self.w, n=8)
        result: Tensor = self.c(torch.tanh(self.b(h)))
        return result


class InPlace(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        y = torch.empty_like(h)
        y[:, ::2], y[:, 1::2] = h[:, 1::2], -h[:, ::2]
        y[:, 3].copy_(h[0, 0])
        z = h.new_zeros(4, 8)
        z.copy_(h[:1].double())
        z.t().mul_(1.5)
        result: Tensor = self.c(torch.tanh(self.b(y + z)))
        return result


class OneToAll(Layers):
    """Attention of a value to itself: one node is query, key and value."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).reshape(1, 2, 4, 4)
        h = F.scaled_dot_product_attention(h, h, h, is_causal=True)
        result: Tensor = self.c(torch.tanh(self.b(h.reshape(4, 8))))
        return result


MODELS: list[Callable[[], nn.Module]] = [
    ReadEarly, ReadLate, Replaced, LastInput, SharedNorm, Normed, Frozen, Adapted, Complex,
    InPlace, OneToAll,
]  # fmt: skip


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    held = [p[1] if isinstance(p, tuple) else p for p in parameters]  # named in a stage
    trained = [p for p in held if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("model", MODELS)
def test_weights_and_buffers_are_those_of_plain_training(model: Callable[[], nn.Module]) -> None:
    case = Case(model, F.cross_entropy, floats(4, 8))
    module = seeded(case)
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    passes = default_passes(stages=2, microbatches=3, schedule="1f1b")
    plan = make_plan(graph, parse_cluster("2xh100"), passes=passes)
    pipeline = LocalPipeline(plan, batches(case, graph), Settings(sgd, clip=0.5))
    losses, got = pipeline.run(2), pipeline.state_dict()
    want_losses, want = accumulated(case, module, sgd, 2, 3, clip=0.5)
    torch.testing.assert_close(losses, want_losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_cut_between_the_readers_of_a_buffer_and_its_update_breaks_a_rule() -> None:
    case = Case(SharedNorm, F.cross_entropy, floats(4, 8))
    plan = staged(case, seeded(case), 2)
    with pytest.raises(PlanError, match=r"stage 0 reads buffer norm\.running_mean"):
        verify(plan)


class Shifted(Layers):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(x + 1)))))
        return result


def agrees(plan: Plan, case: Case, module: nn.Module, graph: Graph, microbatches: int) -> None:
    """One step of a plan has the losses and weights of one process."""
    pipeline = LocalPipeline(plan, batches(case, graph), Settings(sgd))
    losses, got = pipeline.run(1), pipeline.state_dict()
    want_losses, want = accumulated(case, module, sgd, 1, microbatches)
    torch.testing.assert_close(losses, want_losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_stage_that_saves_nothing_trains_apart_from_its_forward() -> None:
    """PipeFB brings the device of B nothing of such a stage."""
    case = Case(Shifted, F.cross_entropy, floats(4, 8))
    module = seeded(case)
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    parts: Any = [SimpleNamespace(calls=graph.calls[:1]), SimpleNamespace(calls=graph.calls[1:])]
    plan = staged_graph(graph, parts)
    plan = save_to_host(plan, generate("pipefb", 2, 1))
    plan = plan.replace(schedule=scheduled(plan, "pipefb", 1))
    agrees(plan, case, module, graph, 1)


@pytest.mark.parametrize("schedule", ["interleaved", "zbv", "dualpipev"])
def test_a_value_that_skips_stages_has_slots_where_it_waits(schedule: str) -> None:
    """The microbatches behind it are in stages between, whose values go over the same links."""
    case = Case(FirstToAll, F.cross_entropy, floats(4, 8))
    module = seeded(case)
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    plan = make_plan(
        graph, parse_cluster("4xh100"), passes=default_passes(schedule=schedule, microbatches=8)
    )
    assert len(plan.stages) == 8
    agrees(plan, case, module, graph, 8)


class Signed(Layers):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.tanh(self.b(torch.copysign(x, self.a(x)))))
        return result


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "pipefb"])
def test_a_stage_takes_a_gradient_that_none_of_its_own_depends_on(schedule: str) -> None:
    """That of a sign is zero, whatever comes from behind it."""
    case = Case(Signed, F.cross_entropy, floats(4, 8))
    module = seeded(case)
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    at = next(k for k, n in enumerate(graph.calls) if "copysign" in n.name) + 1
    parts: Any = [SimpleNamespace(calls=graph.calls[:at]), SimpleNamespace(calls=graph.calls[at:])]
    plan = staged_graph(graph, parts)
    if schedule == "pipefb":
        plan = save_to_host(plan, generate(schedule, 2, 1))
    plan = plan.replace(schedule=scheduled(plan, schedule, 1))
    verify(plan)
    agrees(plan, case, module, graph, 1)


class Counted(Layers):
    """A buffer of sums, whose update needs a stage behind the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        self.sums.add_(result.detach().sum(0))  # type: ignore[operator]
        return result


@pytest.mark.parametrize("saved", ["host", "direct"])
def test_a_stage_behind_the_loss_goes_on_from_round_to_round(saved: str) -> None:
    """Nothing makes its backward wait for a forward."""
    torch.manual_seed(0)
    module, x, target = Counted(), torch.randn(48, 8), torch.randint(3, (48,))
    found = []
    for rounds in (1, 3):
        plan = pipec.compile(
            module, x[:4], "4xcpu", loss=(F.cross_entropy, target[:4]), stages=2,
            schedule=f"pipefb{{saved={saved}}}", microbatches=12 // rounds,
        )  # fmt: skip
        assert not any(o.kind is OutputKind.LOSS for o in plan.stages[1].graph.outputs)
        with pipec.Pipeline(plan, optimizer=sgd) as pipeline:
            for part in zip(x.chunk(rounds), target.chunk(rounds), strict=True):
                pipeline.step(part)
            pipeline.drain()
            found.append(pipeline.state_dict() or {})
    for name, want in module.state_dict().items():
        assert torch.equal(found[0][name], found[1][name])
        assert torch.equal(found[0][name], want) == (name == "mean")  # nobody reads it


def test_a_sparse_gradient_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    loss = Loss(lambda y: y.square().mean())
    graph = trace(model, (torch.arange(3),), loss=loss, source=Source("memory", "test"))
    with pytest.raises(GraphError, match="sparse=False"):
        make_plan(graph, parse_cluster("2xh100"), passes=default_passes(stages=2))


def normalised_twice() -> nn.Module:
    """One normalisation under two names, and a buffer that nothing reads."""
    norm = nn.BatchNorm1d(8)
    norm.register_buffer("unread", torch.ones(2), persistent=False)
    return nn.Sequential(nn.Linear(8, 8), norm, nn.Tanh(), norm, nn.Linear(8, 3))


def test_a_normalisation_that_runs_twice_trains_as_in_one_process() -> None:
    case = Case(normalised_twice, F.cross_entropy, floats(8, 8))
    module = seeded(case)

    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    args, target = case.batch(0)
    plan = pipec.compile(
        module, args, "2xcpu", loss=(case.loss, target), schedule="1f1b", microbatches=4
    )
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(sgd))
    losses, want = accumulated(case, module, sgd, 2, 4)
    assert pipeline.run(2) == pytest.approx(losses, rel=1e-6)
    found = pipeline.state_dict()
    assert int(found["1.num_batches_tracked"]) == int(found["3.num_batches_tracked"]) == 16
    for name, w in want.items():
        torch.testing.assert_close(found[name], w, rtol=1e-5, atol=1e-6)
