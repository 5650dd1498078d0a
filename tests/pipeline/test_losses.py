"""Losses of another kind than a mean over all targets: shifted ones, and sums."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pipec
from pipec.errors import BackendError, PlanError
from pipec.frontends.base import LoadOptions
from pipec.frontends.leaves import Call
from pipec.frontends.rows import find_growth
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import Flat, Loss, trace
from pipec.graph.ir import GROWTH, Graph, Source
from pipec.graph.printer import graph_to_python
from pipec.graph.written import with_outputs
from pipec.pipeline.valid import weights_of
from pipec.plan.rules.verify import verify as check
from pipec.report.plan import plan_text
from tests.pipeline.test_pipeline import LOSS, Tagger, plan_of, sgd
from tests.plan.edits import in_training


def test_a_last_microbatch_of_one_row_whose_targets_are_shifted() -> None:
    """The backward makes the view of the targets anew; with more rows F saves a copy."""
    model, text = Tagger(), torch.randint(0, 11, (5, 8))
    plain = copy.deepcopy(model)
    plan = plan_of(model, "1f1b", _next)
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=_next) as pipeline:
        pipeline.step({"tokens": text, "target": text})
        weights = pipeline.state_dict()
    _next(plain(text), text).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert weights is not None
    for name, want in plain.named_parameters():
        torch.testing.assert_close(weights[name], want.detach(), rtol=1e-6, atol=1e-6)


def _next(scores: Tensor, tokens: Tensor) -> Tensor:
    """Of every token but the last, the next one."""
    return LOSS(scores[..., :-1], tokens[:, 1:])


def test_a_backward_that_views_other_targets_is_refused() -> None:
    def shifted(graph: Graph) -> Graph:
        copy = with_outputs(graph, graph.outputs)
        view = next(n for n in copy.calls if "slice.Tensor" in str(n.target))
        view.args = (view.args[0], 1, 0, 7)
        return copy

    tokens = torch.zeros(1, 8, dtype=torch.long)
    plan = pipec.compile(Tagger(), {"tokens": tokens}, "2xcpu", loss=(_next, tokens),
                         schedule="1f1b", microbatches=2)  # fmt: skip
    check(plan)
    with pytest.raises(PlanError, match="numbers-are-checked"):
        check(in_training(1, "BI", shifted)(plan))


ROWS = torch.rand(4, 3)
SIGNS = torch.tensor([[1.0, -1.0, 1.0]] * 4)
SUMS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    **{
        loss.__name__: (partial(loss, reduction="sum"), ROWS)
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div,
                     F.binary_cross_entropy_with_logits, F.poisson_nll_loss)
    },
    **{
        loss.__name__: (partial(loss, reduction="sum"), SIGNS)
        for loss in (F.soft_margin_loss, F.hinge_embedding_loss)
    },
    "a sum of means": (lambda y, t: (y - t).square().mean(1).sum(), ROWS),
    "a mean of sums": (lambda y, t: (y - t).square().sum(0).mean(), ROWS),
    "nansum": (lambda y, t: (y - t).nansum(), ROWS),
    "dot": (lambda y, t: torch.dot(y.flatten(), t.flatten()), ROWS),
    "half a sum": (lambda y, t: (y - t).square().sum() / 2, ROWS),
    "a sum over a width": (lambda y, t: (y - t).square().sum() / t.shape[1], ROWS),
    "a small part of a sum": (lambda y, t: 0.1 * (y - t).square().sum(), ROWS),
}  # fmt: skip
_BY_NAME = ("adds up, norm", "adds up, product of all")
"""Sums that only their operations tell: no law of growth fits them."""
COMPARED: dict[str, Callable[..., Tensor]] = {
    "contrast": lambda y, t: LOSS(y @ t.T, torch.arange(len(y))),
    "variance": lambda y, t: F.mse_loss(y, t) + y.var(0).mean(),
    "largest": lambda y, t: (y - t).abs().max(),
    "logsumexp": lambda y, _: y.logsumexp(0).mean(),
    "distances": lambda y, t: torch.cdist(y, t).mean(),
    "normed": lambda y, t: F.mse_loss(F.batch_norm(y, None, None, training=True), t),
    "correlation": lambda y, _: (y.T @ y / len(y) - torch.eye(3)).square().sum(),
}
MEANS: dict[str, Callable[..., Tensor]] = {
    "mse_loss": F.mse_loss,
    "per row": lambda y, t: (y - t).square().sum(1).mean(),
    "per column": lambda y, t: -(y - t).square().mean(0).neg().sum(),
    "over all numbers": lambda y, t: (y - t).square().sum() / t.numel(),
    "times one over the rows": lambda y, t: (y - t).square().sum() * (1 / len(t)),
    "per task": lambda y, t: torch.stack([(y - t).square().mean(1), y.abs().mean(1)]).sum(0).mean(),
}


def _stepped(loss: Callable[..., Tensor], example: Tensor, weight: Any = None) -> tuple[Any, float]:
    """The loss of a step over 16 rows, and that of the model in one piece."""
    model, rows = torch.nn.Linear(8, 3), torch.randn(16, 8)
    plan = pipec.compile(model, rows[:4], "1xcpu", loss=(loss, example), schedule="1f1b",
                         microbatches=4)  # fmt: skip
    target = example.repeat(4, 1)
    with torch.no_grad():
        whole = float(loss(model(rows), target))
    with pipec.Pipeline(plan, optimizer=sgd, weight=weight) as pipeline:
        return pipeline.step({"input": rows, "target": target}).loss, whole


@pytest.mark.parametrize("name", SUMS)
def test_whatever_adds_up_over_the_rows_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match="adds up over the batch"):
        _stepped(*SUMS[name])
    found, whole = _stepped(*SUMS[name], lambda _: 1.0)
    assert found == pytest.approx(whole / 4, rel=1e-5)


@pytest.mark.parametrize("name", MEANS)
def test_a_sum_over_other_axes_than_rows_is_a_mean(name: str) -> None:
    found, whole = _stepped(MEANS[name], ROWS)
    assert found == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("name", COMPARED)
def test_a_loss_that_compares_rows_is_no_sum(name: str) -> None:
    loss = COMPARED[name], torch.rand(4, 3)
    plan = pipec.compile(torch.nn.Linear(8, 3), torch.randn(4, 8), "1xcpu", loss=loss)
    assert GROWTH not in plan.graph.source.options


class _Counting(torch.nn.Module):
    """Drops numbers out, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """A sum."""
        self.calls += 1
        return (F.dropout(scores) - target).square().sum()


class _Scored(torch.nn.Module):
    """A model that computes its own loss."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear, self.norm, self.loss = torch.nn.Linear(8, 3), torch.nn.BatchNorm1d(3), loss

    def forward(self, rows: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Scores and loss."""
        scores = self.linear(rows)
        with torch.no_grad():
            nothing = 0 * self.norm(scores.repeat(2, 1))[::2]
        return {"loss": self.loss(scores + nothing, target)}


@pytest.mark.parametrize("own", [False, True])
def test_what_a_loss_is_of_more_rows_leaves_no_trace(own: bool) -> None:
    loss = _Counting()
    call = Call(loss, (ROWS, ROWS), {}) if own else Call(torch.nn.Identity(), (ROWS,), {})
    flat = (
        Flat(loss, call, Loss(lambda x: x))
        if own
        else Flat(torch.nn.Identity(), call, Loss(loss, ROWS))
    )
    graph = trace(torch.nn.Identity(), (ROWS,), source=Source("memory", ""))
    flat(*flat.inputs.values())
    loss.calls.zero_()
    before = torch.get_rng_state()
    flat.find_growth(graph)
    assert torch.equal(torch.get_rng_state(), before)
    assert not loss.calls


@pytest.mark.parametrize(
    "name", [*COMPARED, "adds up, times rows", "adds up, rows behind", "over a row"]
)
def test_a_model_that_computes_its_own_loss_is_judged_too(name: str) -> None:
    loss = {**COMPARED, **COUNTED, **UNKNOWN}[name]
    target = torch.rand(4, 3) if name in COMPARED else torch.zeros(4, dtype=torch.long)
    batch = torch.randn(4, 8), target
    model, options = _Scored(loss), LoadOptions(training=True)
    found, again = (from_module(model, batch, options=options).graph for _ in range(2))
    assert (GROWTH in found.source.options) == ("adds up" in name)
    assert graph_to_python(found) == graph_to_python(again)


ONE = torch.rand(4, 3) * 0.8 + 0.1
CLASSES = torch.tensor([0, 2, 1, 1])
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "BCELoss": torch.sigmoid,
    "NLLLoss": lambda y: y.log_softmax(-1),
    "KLDivLoss": lambda y: y.log_softmax(-1),
}
TARGETS: dict[str, tuple[Tensor, ...]] = {
    **dict.fromkeys(["CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"], (CLASSES,)),
    **dict.fromkeys(["SoftMarginLoss", "HingeEmbeddingLoss"], (SIGNS,)),
    **dict.fromkeys(["L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "BCELoss", "KLDivLoss",
                     "BCEWithLogitsLoss", "PoissonNLLLoss"], (ONE,)),
    "MultiLabelSoftMarginLoss": (ONE.round(),),
    "MultiLabelMarginLoss": (torch.tensor([[2, 0, -1]] * 4),),
    "CosineEmbeddingLoss": (ONE.flip(0), torch.ones(4)),
    "MarginRankingLoss": (ONE.flip(0), SIGNS),
    "TripletMarginLoss": (ONE.flip(0), 1 - ONE),
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_torchs_own_losses_are_told_apart_by_their_reduction(name: str) -> None:
    """In one model, and alone, as for a model that is too large to be run."""
    activation, target = ACTIVATIONS.get(name, torch.clone), TARGETS[name]
    model, rows = torch.nn.Linear(8, 3), torch.randn(4, 8)
    for reduction in ("mean", "sum"):
        made: Callable[..., Tensor] = getattr(torch.nn, name)(reduction=reduction)

        def loss(y: Tensor, *t: Tensor, made: Callable[..., Tensor] = made) -> Tensor:
            return made(activation(y), *t)

        graph = from_module(model, rows, (loss, target)).graph
        assert (GROWTH in graph.source.options) == (reduction == "sum")
        alone = find_growth(loss, [0.7 * ONE + 0.1, *target], 4)
        assert bool(alone) == (reduction == "sum")


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0])
def test_a_sum_that_nothing_divides_is_refused_or_weighted(factor: float) -> None:
    def summed(scores: Tensor, target: Tensor) -> Tensor:
        return factor * LOSS(scores, target, reduction="sum")

    plan, text = plan_of(Tagger(), "1f1b", summed), torch.randint(0, 11, (16, 8))
    batch = {"tokens": text, "target": text}
    with (
        pipec.Pipeline(plan, optimizer=sgd) as pipeline,
        pytest.raises(PlanError, match="adds up over the batch"),
    ):
        pipeline.step(batch)
    with pipec.Pipeline(plan, optimizer=sgd, weight=lambda _: 1.0) as pipeline:
        found = pipeline.step(batch).loss
    with torch.no_grad():
        assert found == pytest.approx(float(summed(Tagger()(text), text)) / 4, rel=1e-5)


def test_a_sum_that_the_rows_divide_is_a_mean() -> None:
    def mean(scores: Tensor, target: Tensor) -> Tensor:
        return LOSS(scores, target, reduction="sum") / scores.shape[0]

    plan, text = plan_of(Tagger(), "1f1b", mean), torch.randint(0, 11, (16, 8))
    with pipec.Pipeline(plan, optimizer=sgd) as pipeline, torch.no_grad():
        found = pipeline.step({"tokens": text, "target": text}).loss
        assert found == pytest.approx(float(mean(Tagger()(text), text)), rel=1e-5)


WEIGHTS = torch.tensor([0.1, 1.0, 2.0])
COUNTED: dict[str, Callable[..., Tensor]] = {
    "class weights, cast": lambda y, t: LOSS(y, t, weight=WEIGHTS.double().to(y.dtype)),
    "class weights, computed": lambda y, t: LOSS(y, t, weight=WEIGHTS / WEIGHTS.sum()),
    "of weighted targets": lambda y, t: (
        (LOSS(y, t.clamp(min=0), reduction="none") * WEIGHTS[t.clamp(min=0)]).sum()
        / WEIGHTS[t.clamp(min=0)].sum()
    ),
    "one minus": lambda y, t: 1 - LOSS(y, t),
    "two stacked": lambda y, t: torch.stack([LOSS(y, t), LOSS(-y, t)]).mean(),
    "viewed": lambda y, t: LOSS(y, t)[None].sum(),
    "bounded": lambda y, t: LOSS(y, t).clamp(max=100),
    "own labels": lambda y, t: LOSS(y, y.detach().argmax(-1)),
    "a mean over a mean": lambda y, t: (
        (LOSS(y, t, reduction="none") * WEIGHTS[t.clamp(min=0)]).mean()
        / (WEIGHTS[t.clamp(min=0)] * (t >= 0)).mean()
    ),
    "columns over rows": lambda y, _: (y.square().sum(0) / len(y)).mean(),
    "two sums over one count": lambda y, t: (
        (LOSS(y, t, reduction="sum") + 0.1 * (y.square().mean(1) * (t >= 0)).sum()) / (t >= 0).sum()
    ),
    "a difference over one count": lambda y, t: (
        (LOSS(y, t, reduction="sum") - 0.1 * (y.tanh().mean(1) * (t >= 0)).sum()) / (t >= 0).sum()
    ),
    "a mean times its numbers": lambda y, t: (
        LOSS(y, t, reduction="none").mean() * t.numel() / (t >= 0).sum()
    ),
    "at least one": lambda y, t: (
        LOSS(y, t, reduction="sum") / torch.maximum((t >= 0).sum(), torch.tensor(1))
    ),
    "two added counts": lambda y, t: (
        LOSS(y, t, reduction="sum") / ((t >= 0).sum() + (t == 1).sum())
    ),
    "a hundredth": lambda y, t: (
        LOSS(y, t) + 0.01 * (y.square().mean(1) * (t >= 0)).sum() / (t >= 0).sum()
    ),
    "a half": lambda y, t: (
        0.25 * LOSS(y, t, reduction="sum") / (t >= 0).sum() + 0.5 * LOSS(y, t)
    ),
    "row by row": lambda y, t: (
        torch.stack([F.cross_entropy(a, b.clamp(min=0)) for a, b in zip(y, t, strict=True)]).mean()
    ),
    "over a row": lambda y, t: LOSS(y, t.clamp(min=0), reduction="none").sum() / len(t),
}  # fmt: skip
UNKNOWN: dict[str, Callable[..., Tensor]] = {
    "masked by scores": lambda y, t: LOSS(y, torch.where(y.detach()[:, 0] > 0, t, -100)),
    "of numbers": lambda y, t: torch.where(t[:, None] < 0, torch.nan, y.square()).nanmean(),
    "class weights of scores": lambda y, t: LOSS(y, t, weight=y.detach().square().mean(0)),
    "adds up, in one": lambda y, _: 1 - y.square().sum(),
    "adds up, product": lambda y, _: y.flatten() @ y.flatten(),
    "adds up, einsum": lambda y, _: torch.einsum("bi,bi->", y, y),
    "adds up, step by step": lambda y, _: y.square().flatten().cumsum(0)[-1],
    "adds up, squared": lambda y, _: y.square().sum() ** 2,
    "adds up, norm": lambda y, t: LOSS(y, t) + 0.1 * y.norm(),
    "adds up, distance": lambda y, _: torch.dist(y, y.detach() * 0),
    "adds up, norm of linalg": lambda y, _: torch.linalg.norm(y),
    "adds up, root": lambda y, _: y.square().sum(0).sqrt().mean(),
    "adds up, by no count": lambda y, _: (y.square().sum(0) / 5).mean(),
    "adds up, largest": lambda y, _: y.square().sum(0).max(),
    "adds up, product of all": lambda y, _: (1 + y.square()).prod(),
    "adds up, one column": lambda y, _: y.square().sum(0)[0],
    "adds up, rows behind": lambda y, _: y.square().T.sum(1).mean(),
    "adds up, rows moved": lambda y, _: y.square().movedim(0, 1).sum(-1).mean(),
    "adds up, gram": lambda y, _: (y.T @ y).mean(),
    "adds up, in Python": lambda y, t: torch.stack(
        [F.cross_entropy(a, b) for a, b in zip(y, t, strict=True)]
    ).sum(),
    "adds up, times rows": lambda y, t: LOSS(y, t) * len(y),
    "adds up, divided twice": lambda y, t: LOSS(y, t) / len(y),
    "adds up, area": lambda y, _: torch.trapezoid(y.square(), dim=0).mean(),
    "adds up, in part": lambda y, t: LOSS(y, t) + 0.001 * (y.T @ y).mean(),
}


def _ignored(loss: Callable[..., Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights after a step on 13 rows, some of whose targets do not count: here, and plainly."""
    g = torch.Generator().manual_seed(1)
    rows, target = torch.randn(13, 8, generator=g), torch.randint(0, 3, (13,), generator=g)
    target[::3] = -100
    target[12] = 1
    model = torch.nn.Linear(8, 3)
    plain = copy.deepcopy(model)
    plan = pipec.compile(model, rows[:4], "1xcpu", loss=(loss, target[:4]), schedule="1f1b",
                         microbatches=4)  # fmt: skip
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=loss) as pipeline:
        pipeline.step({"input": rows, "target": target})
        found = pipeline.state_dict()
    assert found is not None
    loss(plain(rows), target).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    return found, dict(plain.state_dict())


@pytest.mark.parametrize("name", COUNTED)
def test_what_counts_is_found_behind_functions_of_scalars(name: str) -> None:
    found, want = _ignored(COUNTED[name])
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_count_that_no_input_tells_is_refused(name: str) -> None:
    if "adds up" in name:
        model, rows = torch.nn.Linear(8, 3), torch.ones(4, 8)
        loss = UNKNOWN[name], torch.zeros(4, dtype=torch.long)
        text = " ".join(plan_text(pipec.compile(model, rows, "1xcpu", loss=loss)).split())
        assert ("the loss adds up over the batch" in text) == (name not in _BY_NAME)
    with pytest.raises(PlanError, match="adds up over" if "adds up" in name else "cannot be known"):
        _ignored(UNKNOWN[name])


def test_means_row_by_row_over_different_targets_are_refused() -> None:
    assert weights_of([[2.0, 2.0], [2.0]]) == [4.0, 2.0]
    with pytest.raises(PlanError, match="no one weight fits them all"):
        weights_of([[2.0, 1.0], [2.0]])


def test_a_target_out_of_range_is_one_error_that_names_the_stage() -> None:
    text = torch.randint(0, 11, (16, 8))
    batch = {"tokens": text, "target": torch.full_like(text, 11)}
    with (
        pipec.Pipeline(plan_of(Tagger(), "1f1b"), optimizer=sgd) as pipeline,
        pytest.raises(BackendError, match=r"F of stage 1 failed\n.*IndexError: Target 11"),
    ):
        pipeline.step(batch)
