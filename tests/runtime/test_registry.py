"""The models of torch's own pipeline tests train as one process does, under every schedule."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipec.errors import PipecError
from pipec.frontends.base import Loaded
from pipec.graph.eager import eager_parts
from tests.runtime import registry_models as models
from tests.runtime.eager_models import Case
from tests.runtime.test_eager import SCHEDULES, compiled, expected, read, stashing, trained, worst
from tests.sampling import each


def _rows(*names: str) -> Callable[[torch.Generator], tuple[dict[str, Tensor], Any]]:
    def batch(g: torch.Generator) -> tuple[dict[str, Tensor], Any]:
        x, y, target = (torch.randn(models.ROWS, models.WIDTH, generator=g) for _ in range(3))
        given = {"x": x, "y": y, "unused": torch.ones(1)}
        return {n: given[n] for n in ("x", *names)}, target

    return batch


def _case(make: Callable[[], nn.Module], *names: str, eager: tuple[str, ...] = ()) -> Case:
    return Case(make, F.mse_loss, _rows(*names), eager)


EVERY = tuple(f"layers.{k}" for k in range(4))
CASES = {
    "ExampleCode": _case(models.Skips),
    "ModelWithKwargs": _case(models.Defaulted, "y"),
    "ModelWithKwargs, by default": _case(models.Defaulted),
    "ModelWithParamAlias": _case(models.Aliases, "y"),
    "MultiMLP": _case(models.Mlps),
    "MultiMLPKwargs": _case(models.Mlps, "unused"),
    "MultiMLPWithDw": _case(lambda: models.Mlps(models.OwnBackward), eager=EVERY),
    "MultiMLPWithDw, toggled": _case(models.Between, eager=("layers.1", "layers.3")),
}
"""By torch's names."""


@cache
def found_out(name: str) -> Loaded:
    """The model with the parts that pipec finds."""
    return read(CASES[name], ("auto",))


@pytest.mark.parametrize(("name", "schedule"), each(CASES, SCHEDULES, times=2))
def test_torchs_own_models_train_as_one_process(name: str, schedule: str) -> None:
    case = CASES[name]
    loaded = found_out(name)
    assert tuple(dict.fromkeys(eager_parts(loaded.graph).values())) == case.eager
    plan = compiled(loaded, schedule)
    want = expected(case, stashing(plan) if schedule == "pipedream" else None)
    assert worst(trained(case, plan), want) < 2e-4


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.eager])
def test_without_eager_they_are_refused_with_that_hint(name: str) -> None:
    with pytest.raises(PipecError, match="eager"):
        compiled(read(CASES[name], ()), "1f1b")
