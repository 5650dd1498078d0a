"""Passes and backends of somebody else that fail: one error that says what, and nothing is left."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec import registry
from pipec.compiler.backend import Backend, Emitted, load_backend, read_back
from pipec.compiler.comparison import Allowed
from pipec.compiler.job import run_chain
from pipec.errors import PassError, PipecError
from pipec.plan.model import Plan, StageTiming

Stage = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


class Listing(Backend):
    """Two stages, each of which yields what it is made of."""

    name = "listing"

    def check(self, plan: Plan) -> None:
        """Everything can be listed."""

    def stage_seconds(self, plan: Plan) -> tuple[StageTiming, ...]:
        return tuple(StageTiming(1e-3, 1e-3, "?") for _ in plan.stages)

    def emit(self, plan: Plan, directory: Path) -> None:
        (directory / "list.txt").write_text(str(plan))

    def load(self, plan: Plan, directory: Path) -> Emitted:
        del directory
        return Emitted([self.stage(k) for k in range(len(plan.stages))], 1e-5)

    def stage(self, number: int) -> Stage:
        return lambda _: {"linear": torch.zeros(4, 4), "output": torch.zeros(4, 4)}


def planned(passes: Any = "default", target: type[Backend] = Listing) -> Plan:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    found: Plan = pipec.compile(model, torch.ones(4, 4), "2xcpu", passes=passes, target=target)
    return found


def backend(**methods: Any) -> type[Backend]:
    return type("Own", (Listing,), methods)


class Own(pipec.Pass):
    """Returns what it is told."""

    name = "own"
    made: Callable[[Plan], object] = staticmethod(lambda plan: plan)

    def run(self, plan: Plan) -> Plan:
        return type(self).made(plan)  # type: ignore[return-value]


def raises(_: Plan) -> object:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda _: None, "returned no plan[^§]*NoneType"),
        (lambda plan: plan.graph, "returned no plan[^§]*Graph"),
        (raises, r"the pass failed[^§]*test_plugins.py[^§]*SystemExit"),
        (lambda plan: plan.replace(options={3: 4}), "options-are-plain[^§]*3: 4"),
        (lambda plan: plan.replace(options={"x": float("nan")}), "options-are-plain[^§]*nan"),
    ],
)
def test_a_pass_that_fails_is_named(made: Callable[[Plan], object], told: str) -> None:
    own = type("Wrong", (Own,), {"made": staticmethod(made)})
    with pytest.raises(PipecError, match=told) as caught:
        planned(["default", own()])
    assert caught.value.__notes__[0].startswith("in pass own, after simplify")


def outside(_: object, __: Plan, directory: Path) -> None:
    (directory / "passwd").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("emit", "told"),
    [
        (lambda _self, plan, _: plan.nothing, "cannot emit the plan[^§]*test_plugins.py"),
        (lambda _self, _, out: (out / "plan.json").write_text("{}"), "may not[^§]*plan.json"),
        (lambda _self, _, out: (out / "graphs").mkdir(), "may not[^§]*graphs"),
        (outside, "may not[^§]*passwd"),
        (lambda _self, _, out: os.mkfifo(out / "pipe"), "may not[^§]*pipe"),
    ],
)
def test_what_may_not_be_emitted_leaves_nothing(
    emit: Callable[..., object], told: str, tmp_path: Path
) -> None:
    with pytest.raises(PipecError, match=told):
        planned(target=backend(emit=emit)).save(tmp_path / "out")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ({"load": lambda *_: None}, "does not load its stages"),
        ({"load": lambda *_: Emitted([], 1e-5)}, "got: +0 functions"),
        ({"load": lambda *_: 1 // 0}, "cannot load its stages[^§]*test_plugins.py[^§]*Zero"),
        ({"load": lambda *_: Emitted([], float("inf"))}, "could be verified[^§]*inf"),
        ({"load": lambda *_: Emitted([], float("nan"))}, "could be verified[^§]*nan"),
        ({"load": lambda *_: Emitted([], -1.0)}, "could be verified[^§]*-1"),
        ({"load": lambda *_: Emitted([], 0.1, {"y": Allowed(2.0)})}, "could be verified[^§]*2"),
        ({"stage": lambda *_: lambda _: None}, "stage 0 failed"),
        ({"stage": lambda *_: lambda _: {"linear": torch.zeros(4, 4).numpy()}}, "tensors: linear"),
        ({"stage": lambda *_: lambda v: v["nothing"]}, "stage 0 failed[^§]*test_plugins.py"),
    ],
)
def test_stages_that_fail_are_told(methods: dict[str, Any], told: str, tmp_path: Path) -> None:
    plan = planned(target=backend(**methods))
    with pytest.raises(PipecError, match=told):
        [*run_chain(plan, read_back(plan, tmp_path).stages, {"input": torch.ones(4, 4)})]


@pytest.mark.parametrize(
    "wrong", [{"route": "around"}, {"reads": {"all": True}}, {"options": dict}, {"run_options": 3}]
)
def test_a_backend_that_declares_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PipecError, match=f"{next(iter(wrong))} of the target listing"):
        planned(target=backend(**wrong))


def test_a_broken_plug_in_is_told_where_it_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> object:
        raise SyntaxError("invalid syntax")

    broken = SimpleNamespace(load=load, dist=None, value="broken:Broken")
    known = registry.entries
    monkeypatch.setattr(
        registry,
        "entries",
        lambda group: {"broken": broken, **known(group)},
    )
    with pytest.raises(PipecError, match=r"'broken' of pipec.backends cannot be imported"):
        load_backend("broken")
    with pytest.raises(PassError, match=r"requires the fact comm[^§]*put insert-comm before it"):
        planned("simplify,annotate-cost,partition,schedule")
    with pytest.raises(PipecError, match=r"no option precision[^§]*of the target fpga"):
        pipec.compile(nn.Linear(4, 4), torch.ones(1, 4), "1xcpu", precision="int8")
