"""What goes with parts that run eagerly, what is refused, and plans of them on disk."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pipec
from pipec.errors import PipecError
from pipec.graph.eager import is_tape
from tests.cli.running import Pipec
from tests.runtime.eager_models import CASES, Branch, Loop, Part, Watched, chain
from tests.runtime.processes import launch
from tests.runtime.test_eager import batches, compiled, found_out, named, seeded, sgd

FACTORY = """
import torch
from torch import nn

from tests.runtime.eager_models import Branch, Signs, chain


def make():
    x = torch.randn(4, 8)
    return chain(Signs(), Branch()), x, (nn.functional.mse_loss, torch.zeros(4, 8))


def batch(number):
    g = torch.Generator().manual_seed(number)
    return {"input": torch.randn(4, 8, generator=g), "target": torch.randn(4, 8, generator=g)}
"""


@pytest.mark.parametrize(
    ("schedule", "what"),
    [
        ("pipemare", r"where 2.* runs eagerly.* other weights than its forward"),
        ("pipefb", r"where 2.* runs eagerly.*its backward on another device"),
    ],
)
def test_a_tape_stays_with_its_weights_and_device(schedule: str, what: str) -> None:
    with pytest.raises(PipecError, match=what):
        compiled(found_out("branch on values"), schedule)


def test_a_tape_is_neither_computed_again_nor_moved() -> None:
    loaded = found_out("straight-through sign")
    with pytest.raises(PipecError, match="nothing of this name can be computed again") as caught:
        compiled(loaded, "1f1b", recompute="2")
    assert "such as 1, 4, 7" in str(caught.value)
    plan = compiled(loaded, "1f1b", offload="2")
    trained = [(s.index, s.training.F.calls) for s in plan.stages if s.training]
    tapes = [(k, n.name) for k, calls in trained for n in calls if is_tape(n)]
    assert len(tapes) == 2
    assert set(tapes).isdisjoint((slot.stage, v) for slot in plan.slots for v in slot.values)


@pytest.mark.parametrize("target", ["onnx", "fpga"])
def test_other_targets_refuse_what_runs_eagerly(target: str) -> None:
    model = chain(Branch()).eval()
    devices = {"onnx": "2xcpu", "fpga": "2xvcu118"}[target]
    with pytest.raises(PipecError, match=r"eager"):
        pipec.compile(model, torch.zeros(4, 8), devices, target=target, eager="2")


def test_names_that_are_wrong_are_told() -> None:
    x = torch.zeros(4, 8)
    with pytest.raises(PipecError, match="no part of this name"):
        pipec.compile(chain(Branch()), x, "2xcpu", eager="3.inner")
    with pytest.raises(PipecError, match="needs weights and inputs with data"):
        pipec.compile(chain(Branch()).to("meta"), x, "2xcpu", eager="2")
    part = Watched()
    model = chain(part)
    part.inner.weight.register_post_accumulate_grad_hook(print)
    loss = nn.functional.mse_loss, torch.zeros(4, 8)
    with pytest.raises(PipecError, match="hooks on accumulated gradients would be lost"):
        pipec.compile(model, x, "2xcpu", loss=loss, eager="2")


def test_in_place_on_an_input_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    loss = nn.functional.mse_loss, torch.zeros(4, 8)
    with pytest.raises(PipecError, match="changes its input in place"):
        pipec.compile(model, torch.zeros(4, 8), "2xcpu", loss=loss, eager="1")


def test_a_checkpoint_over_batch_norm_is_refused_when_its_statistics_move_again() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> Any:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(self.norm, x, use_reentrant=True)

    loss = nn.functional.mse_loss, torch.zeros(4, 8)
    plan = pipec.compile(
        chain(Part()), torch.randn(4, 8), "2xcpu", loss=loss, eager="2", schedule="1f1b"
    )
    with pipec.Pipeline(plan, optimizer=sgd) as pipeline:
        rows = torch.randn(8, 8)
        with pytest.raises(PipecError, match="changes a buffer in its backward"):
            pipeline.step({"input": rows, "target": rows})


def test_evaluation_and_other_shapes_run_the_same_modules() -> None:
    case = CASES["branch on values"]
    model = seeded(case)
    inputs, target = batches(case)[0][0]
    plan = pipec.compile(
        model, inputs, "2xcpu", loss=(case.loss, target), eager=True, schedule="1f1b"
    )
    few = {n: t[:3] for n, t in named(inputs, target).items()}
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=case.loss) as pipeline:
        before = pipeline.evaluate([few], outputs=True)
        loss = pipeline.step(few).loss
    with torch.no_grad():
        want = seeded(case)(few["input"])
    assert torch.allclose(before.outputs["output"], want, atol=1e-6)
    assert loss == pytest.approx(float(case.loss(want, few["target"])), abs=1e-6)


@pytest.mark.parametrize("total", [0, 1, 2])
def test_a_model_is_the_same_whatever_way_its_values_take(total: int) -> None:
    """It is traced anew on other values, and a part that runs less often keeps less."""
    model, x = nn.Sequential(Loop(), nn.Linear(8, 8)), torch.full((4, 8), total / 32)
    plan = pipec.compile(model, x, "1xcpu", loss=(F.mse_loss, x), eager=True, microbatches=1)
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=F.mse_loss) as pipeline:
        found = pipeline.evaluate([{"input": x, "target": x}]).loss
    assert found == pytest.approx(float(F.mse_loss(model(x), x).detach()))


class Normed(Part):
    """It refuses what has no length."""

    def forward(self, x: torch.Tensor) -> Any:
        length = float(x.detach().norm())
        if length == 0:
            raise ValueError("no length")
        return torch.tanh(self.inner(x)) / length


def test_a_batch_of_another_shape_is_traced_on_values_like_those_of_a_model() -> None:
    model, x = nn.Sequential(Normed(), nn.Linear(8, 8)), torch.randn(6, 8)
    loss = F.mse_loss
    plan = pipec.compile(model, x[:4], "1xcpu", loss=(loss, x[:4]), eager=True, microbatches=2)
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=loss) as pipeline:
        found = pipeline.step({"input": x, "target": x}).loss  # 4 rows, then 2
    parts = [float(loss(model(p), p).detach()) * len(p) / len(x) for p in (x[:4], x[4:])]
    assert found == pytest.approx(sum(parts))


def test_memory_that_autograd_keeps_is_in_the_plan_and_freed() -> None:
    plan = compiled(found_out("straight-through sign"), "1f1b")
    tapes = [v for s in plan.stages if s.training for v in s.training.saved if v.stride == (0,)]
    # F keeps for each sign its argument, beside a weight: 4 x 8 floats, and what the linear read
    assert [v.nbytes for v in tapes] == [2 * 4 * 8 * 4] * 2
    with pipec.Pipeline(plan, optimizer=sgd) as pipeline:
        pipeline.step([named(*m) for m in batches(CASES["straight-through sign"])[0]])
        assert all(e.saved_bytes == 0 for e in pipeline._runner.executors)


@pytest.fixture
def pipec_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Pipec:
    """The command in this process, in the folder of the model: a process of its own takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Pipec(monkeypatch, capsys)


@pytest.fixture
def saved(tmp_path: Path, pipec_here: Pipec) -> Path:
    (tmp_path / "net.py").write_text(FACTORY)
    command = ["compile", "net.py:make", "--devices", "2xcpu", "--schedule", "pipedream"]
    done = pipec_here(*command, "--microbatches", "4", "--eager", "-o", "out")
    assert done.code == 0, done
    assert "runs eagerly, as a module under autograd: 2" in done.out + done.err
    return tmp_path


def run(folder: Path, *args: str) -> str:
    said = folder / "said"
    process = launch(args, said, folder)
    process.join(300)
    assert process.exitcode == 0, said.read_text()
    return said.read_text()


def test_a_saved_plan_runs_on_ranks_that_read_its_factory_again(
    saved: Path, pipec_here: Pipec
) -> None:
    words = ["run", "out", "--data", "net.py:batch", "--rounds", "2", "--drain", "-q",
             "--optimizer", "sgd:lr=0.05,momentum=0.9", "--metrics"]  # fmt: skip
    run(saved, *words, "m.json")
    rows = [json.loads(line) for line in (saved / "m.json").read_text().splitlines()]
    alone = pipec_here(*words, "l.json", "--local")
    assert alone.code == 0, alone
    local = [json.loads(line) for line in (saved / "l.json").read_text().splitlines()]
    assert [r["loss"] for r in rows] == [r["loss"] for r in local]
    verified = pipec_here("verify", "out")
    assert verified.code == 0, verified
    assert "gradient" in verified.out + verified.err


def test_a_part_whose_code_has_changed_is_refused(saved: Path, pipec_here: Pipec) -> None:
    code = (saved / "net.py").read_text()
    (saved / "net.py").write_text(
        code.replace("def make", "class Other(Branch):\n    pass\n\n\ndef make").replace(
            "Branch())", "Other())"
        )
    )
    words = ("run", "out", "--data", "net.py:batch", "--rounds", "1", "--local")
    with pytest.raises(AssertionError, match="not the one that was compiled"):
        run(saved, *words)
    here = pipec_here(*words)  # the process that compiled it still has the old one
    assert here.code == 1
    assert "not the one that was compiled" in here.err
