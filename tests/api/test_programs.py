"""What a user writes: programs of at most ten lines and one import, and what they do wrong."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipec
from pipec.frontends.torch_module import from_module
from pipec.partition.costgraph import CostGraph, Value, cost_graph

MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(8)])
inputs = torch.randn(4, 16)
"""
PROGRAMS = {
    "compile and walk the stages": """
import pipec
plan = pipec.compile(model, inputs, devices="4xh100")
for stage in plan.stages:
    print(stage.index, stage.module.code, plan.timing[stage.index].interval_seconds)
assert torch.equal(model(inputs), pipec.verify(plan, model, inputs).ok * model(inputs))
""",
    "own training loop": """
import pipec
plan = pipec.compile(model, inputs, "2xcpu", loss=lambda y: y.square().mean(), schedule="1f1b")
adam = lambda parameters: torch.optim.Adam(parameters, lr=1e-2)
with pipec.Pipeline(plan, optimizer=adam, model=model) as pipeline:
    losses = [pipeline.step({"input": inputs.repeat(8, 1)}).loss for _ in range(5)]
    model.load_state_dict(pipeline.state_dict())
assert losses[-1] < losses[0] / 2
""",
    "draw": """
import pipec
plan = pipec.compile(model, inputs, "4xh100", loss=lambda y: y.square().mean(), schedule="1f1b")
pipec.draw(plan, "plan.svg")
pipec.draw(plan, "trace.json")
pipec.draw(plan.stages[1], "stage1.onnx")
print(plan.timeline)
""",
    "own pass": """
import pipec
class WidestCut(pipec.Pass):
    name = "widest-cut"
    def run(self, plan):
        widest = max(plan.channels, key=lambda c: c.nbytes)
        return plan.replace(options={**plan.options, "widest": widest.name})
plan = pipec.compile(model, inputs, "2xh100", passes=["default", WidestCut()])
assert plan.options["widest"] == plan.channels[0].name
""",
    "own schedule": """
import pipec
def waves(stages, microbatches, width=2):
    groups = [range(m, min(m + width, microbatches)) for m in range(0, microbatches, width)]
    return [[f"{s}{k}{m}" for g in groups for k in "FB" for m in g] for s in range(stages)]
assert pipec.schedule(waves, 3, 4).peak_in_flight == (2, 2, 2)
plan = pipec.compile(model, inputs, "4xh100", loss=lambda y: y.mean(), schedule=waves)
assert plan.schedule.name == "waves"
""",
    "own backend": """
import pipec
class Listing(pipec.Backend):
    name = "listing"
    check = lambda self, plan: None
    stage_seconds = lambda self, plan: (pipec.StageTiming(1e-3, 1e-3, "?"),) * len(plan.stages)
    emit = lambda self, plan, out: (out / "code.py").write_text(plan.stages[0].module.code)
    load = lambda self, plan, out: None
pipec.compile(model, inputs, "2xh100", target=Listing).save("out")
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = PROGRAMS[name].strip()
    assert len(program.splitlines()) <= 10
    assert program.count("import") == 1
    exec(MODEL + program, {"__name__": "program"})
    if name == "draw":
        assert Path("plan.svg").read_text().startswith("<svg")
        assert Path("stage1.onnx").stat().st_size > 100
    if name == "own backend":
        assert "linear" in Path("out/code.py").read_text()
        assert len(pipec.load("out").stages) == 2


def test_names_are_few_and_have_examples() -> None:
    names = dir(pipec)
    assert len(names) <= 25
    assert set(names) == set(pipec.__all__)
    for name in names:
        assert getattr(pipec, name) is not None
    for name in set(names) - {"__version__"}:
        assert "    >>> " in (getattr(pipec, name).__doc__ or ""), name


def test_verbs_are_packages_too() -> None:
    from pipec.schedule.build import build

    assert callable(pipec.schedule)
    assert build is not None
    assert pipec.schedule("gpipe", 2, 2).schedule.stages == 2


def test_import_brings_no_torch() -> None:
    code = (
        "import pipec, sys; dir(pipec); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def _net_plan() -> pipec.Plan:
    return pipec.compile(
        _net(), torch.zeros(1, 4), "2xcpu", loss=lambda y: y.mean(), schedule="1f1b", microbatches=2
    )


def _chain() -> CostGraph:
    return cost_graph("ab", {"accelerator": [1, 2]}, [Value(0, [1])])


def _pipeline(**wrong: Any) -> pipec.Pipeline:
    return pipec.Pipeline(_net_plan(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), **wrong)


WRONG_TYPES: list[tuple[str, Callable[[], object]]] = [
    ("model", lambda: pipec.compile(3, devices="2xcpu")),  # type: ignore[arg-type]
    ("devices", lambda: pipec.compile(_net(), torch.zeros(1, 4), 4)),  # type: ignore[arg-type]
    ("passes", lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xcpu", passes=[3])),  # type: ignore[list-item]
    ("stages", lambda: pipec.compile(_net(), torch.zeros(1, 4), stages=2.0)),  # type: ignore[arg-type]
    ("microbatches", lambda: pipec.compile(_net(), torch.zeros(1, 4), microbatches="4")),  # type: ignore[arg-type]
    ("passes", lambda: pipec.compile(_net(), torch.zeros(1, 4), passes=3)),  # type: ignore[arg-type]
    ("costs", lambda: pipec.compile(_net(), torch.zeros(1, 4), costs=3)),  # type: ignore[arg-type]
    ("shapes", lambda: pipec.compile(_net(), torch.zeros(1, 4), shapes=[2])),  # type: ignore[arg-type]
    ("bind", lambda: pipec.compile(_net(), torch.zeros(1, 4), bind="N=2")),  # type: ignore[arg-type]
    ("stages", lambda: pipec.schedule("1f1b", "2", 2)),  # type: ignore[arg-type]
    ("seed", lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xcpu", seed="a")),  # type: ignore[arg-type]
    ("recompute", lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xcpu", recompute=5)),  # type: ignore[arg-type]
    ("shapes", lambda: pipec.compile(_net(), torch.zeros(1, 4), shapes={"x": 8})),  # type: ignore[dict-item]
    ("schedule", lambda: pipec.compile(_net(), torch.zeros(1, 4), schedule=5)),  # type: ignore[arg-type]
    ("stages", lambda: pipec.schedule("1f1b", True, 2)),
    ("comm", lambda: pipec.schedule("1f1b", 2, 2, comm="1")),  # type: ignore[arg-type]
    ("times", lambda: pipec.schedule("1f1b", 2, 2, times={"F": "3"})),  # type: ignore[dict-item]
    ("graph", lambda: pipec.partition(None)),  # type: ignore[arg-type]
    ("devices", lambda: pipec.partition("x.json", 2.0)),  # type: ignore[arg-type]
    ("time_limit", lambda: pipec.partition("x.json", time_limit=math.nan)),
    ("directory", lambda: pipec.load(None)),  # type: ignore[arg-type]
    ("path", lambda: pipec.draw(pipec.schedule("1f1b", 2, 2), None)),  # type: ignore[arg-type]
    ("plan", lambda: pipec.report(pipec.schedule("1f1b", 2, 2), "x.html")),  # type: ignore[arg-type]
    ("tolerance", lambda: pipec.verify("nothere", tolerance="x")),  # type: ignore[arg-type]
    ("force", lambda: _net_plan().save("out", force="no")),  # type: ignore[arg-type]
    ("clip", lambda: _pipeline(clip=True)),
    ("hooks", lambda: _pipeline(hooks=[1])),
    ("hooks", lambda: _pipeline(hooks=print)),
    ("seed", lambda: _pipeline(seed="a")),
    ("correction", lambda: _pipeline(correction=3)),
    ("weight", lambda: _pipeline(weight=2)),
    ("clip", lambda: _pipeline(clip="1")),
]  # fmt: skip
"""An argument, and a call that gives it another type."""


@pytest.mark.parametrize("row", range(len(WRONG_TYPES)))
def test_arguments_of_another_type_are_refused(row: int) -> None:
    name, call = WRONG_TYPES[row]
    with pytest.raises(pipec.PipecError, match=f"^{name}: of another type"):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pipec.compile(_net()), "needs example inputs"),
        (
            lambda: pipec.compile("net.onnx", loss=nn.functional.mse_loss),
            "loss of type function",
        ),
        (lambda: pipec.compile("net.onnx", torch.zeros(1)), "brings its example inputs"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xh200x"), "h200"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xcpu", precison="int8"), "'precision'"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xcpu", batch=8), "schedule='auto'"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), passes="simplify", stages=2), "option"),
        (lambda: pipec.schedule("1f1c", 2, 2), "did you mean '1f1b'"),
        (lambda: pipec.schedule("1f1b", 2, 2, times={"Q": 1}), "F, B, I, W"),
        (lambda: pipec.draw(None, "x.svg"), "Timeline"),  # type: ignore[arg-type]
        (lambda: _pipeline(on_nan="ignore"), "stop, skip, continue"),
        (lambda: _pipeline(model=nn.Sequential(nn.Linear(4, 4))), "1.weight is missing"),
        (lambda: _pipeline(model=nn.Sequential(*[nn.Linear(4, 5), nn.Linear(5, 4)])), r"\[5, 4\]"),
        (lambda: _net_plan().report("x.pdf"), ".html"),
        (lambda: pipec.schedule(lambda n, m: "no", 2, 2), "one row of actions"),
        (lambda: pipec.schedule(lambda n, m: 1 // 0, 2, 2), "ZeroDivisionError"),
        (lambda: pipec.partition("nothere.json"), "nothere.json"),
        (lambda: pipec.partition(_chain(), 2, bytes_per_second=-1), "bandwidth"),
        (lambda: pipec.compile(from_module(_net(), torch.zeros(1, 4)), loss=print), "got:   loss"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), "2xcpu", pt2="false"), "pt2"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), loss=3, training=False), "a loss is for"),
        (lambda: pipec.verify(pipec.compile(_net(), torch.zeros(1, 4)), loss=print), "not train"),
        (lambda: pipec.verify(_net_plan(), inputs=torch.zeros(1, 4)), "no effect"),
        (lambda: pipec.verify(_net_plan(), _net(), tolerance=math.inf), "no such tolerance"),
        (lambda: pipec.draw(_net_plan(), "nofolder/x.svg"), "mkdir -p nofolder"),
        (lambda: pipec.compile(_net(), torch.zeros(1, 4), seed=3), "seed has no effect"),
        (lambda: pipec.load("nothere"), "nothere"),
        (lambda: pipec.draw(pipec.schedule("1f1b", 2, 2), "x.gif"), ".svg"),
        (lambda: pipec.register(3), "subclass of Pass"),
        (lambda: pipec.Cluster("2xcpu"), "a tuple of Device"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_mistakes_are_told(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(pipec.PipecError, match=words):
        call()


def test_a_plug_in_that_lacks_a_method_is_refused() -> None:
    class Half(pipec.Backend):
        name = "half"

        def check(self, plan: pipec.Plan) -> None:
            del plan

    with pytest.raises(pipec.PipecError, match=r"'half' lacks .*emit"):
        pipec.register(Half)


def test_a_name_that_is_taken_is_refused() -> None:
    def gpipe(stages: int, microbatches: int) -> None:
        del stages, microbatches

    with pytest.raises(pipec.PipecError, match="is installed"):
        pipec.register(gpipe)


def test_what_is_shown_stays_small() -> None:
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(12)]
    plan = pipec.compile(
        nn.Sequential(*layers), torch.zeros(2, 8, 16), "4xh100", loss=lambda y: y.mean()
    )
    shown: list[object] = [plan, plan.graph, plan.costs, plan.schedule, plan.timeline, *plan.stages]
    shown += [plan.stages[0].training, plan.timing, plan.placement]
    assert all(len(repr(part)) < 2000 for part in shown), [len(repr(p)) for p in shown]
    assert "<script" not in plan._repr_html_()
    assert "aten.linear.default" in plan.stages[0]._repr_html_()
    assert plan.timeline is not None
    assert plan.timeline._repr_svg_().startswith("<svg")
