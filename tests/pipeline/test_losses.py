"""Losses of another kind than a mean over all targets: shifted ones, and sums."""

import copy

import pytest
import torch
from torch import Tensor

import pipec
from pipec.errors import PlanError
from pipec.graph.extract import with_outputs
from pipec.graph.ir import Graph
from pipec.plan.rules.verify import verify as check
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
