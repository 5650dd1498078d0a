"""``pipec run`` as a user types it: what it prints, writes and refuses."""

import json
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipec.api.planning import compile as compile_model
from pipec.frontends.factory import call_factory
from tests.cli.running import Pipec

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.body(x)
        return {"hidden": h, "logits": self.head(h)}


def infer():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(4, 6),)


def loss(out, target):
    return nn.functional.cross_entropy(out["logits"], target)


def train():
    torch.manual_seed(0)
    return Net(), (torch.randn(4, 6),), (loss, torch.randint(0, 3, (4,)))


def wide():
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(16, 16), nn.GELU())]
    target = nn.functional.cross_entropy, torch.randint(0, 3, (256,))
    return nn.Sequential(*layers, nn.Linear(16, 3)), (torch.randn(256, 16),), target


def batch(k):
    g = torch.Generator().manual_seed(k)
    if k >= 12:
        raise IndexError("no such batch")
    return {"x": torch.randn(4, 6, generator=g), "target": torch.randint(3, (4,), generator=g)}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    (place / "net.py").write_text(MODEL)
    return place


@pytest.fixture
def plans(pipec: Pipec, place: Path) -> Path:
    """``infer`` and ``train`` compiled for two devices, three microbatches, beside ``net.py``."""
    for name in ("infer", "train"):
        if not (place / name).exists():
            devices = ("--devices", "2xh100", "--microbatches", 3, "-o", place / name)
            training = ("--training",) if name == "train" else ()
            outcome = pipec("compile", f"{place}/net.py:{name}", *devices, *training)
            assert outcome.code == 0, outcome.err
    return place


def ran(pipec: Pipec, plans: Path, name: str, *more: object) -> str:
    data = ("--data", f"{plans}/net.py:batch")
    outcome = pipec("run", plans / name, "--local", *data, *more)
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_a_checkpoint_is_exported_without_training_on(pipec: Pipec, plans: Path) -> None:
    saved, direct, later = plans / "saved", plans / "direct.safetensors", plans / "l.safetensors"
    kept = ("--checkpoints", saved)
    ran(pipec, plans, "train", "--rounds", 2, "--every", 1, *kept, "--save", direct)
    ran(pipec, plans, "train", "--rounds", 0, *kept, "--save", later)
    a, b = load_file(direct), load_file(later)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_no_trace_is_written_of_no_round(pipec: Pipec, plans: Path) -> None:
    options = ("--local", "--data", f"{plans}/net.py:batch", "--trace", plans / "none.json")
    for rounds in (0, 1):
        outcome = pipec("run", plans / "infer", *options, "--rounds", rounds)
        assert outcome.code == 0
        assert ("--trace writes nothing: no round was run" in outcome.out) == (rounds == 0)
        assert (plans / "none.json").exists() == (rounds == 1)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_inference_keeps_its_outputs(pipec: Pipec, plans: Path, suffix: str) -> None:
    path = plans / f"found{suffix}"
    text = ran(pipec, plans, "infer", "--rounds", 2, "--outputs", path, "--json")
    *steps, last = map(json.loads, text.splitlines())
    assert [(s["step"], s["loss"]) for s in steps] == [(0, None), (1, None)]
    assert last == {
        "wrote": str(path),
        "tensors": {"hidden": ["float32", 6, 4, 8], "logits": ["float32", 6, 4, 3]},
    }
    if suffix == ".npz":
        found = {n: torch.from_numpy(a) for n, a in np.load(path).items()}
    else:
        found = load_file(path)
    module = call_factory(f"{plans}/net.py:infer", 0).module
    generators = [torch.Generator().manual_seed(k) for k in range(6)]
    want = module(torch.stack([torch.randn(4, 6, generator=g) for g in generators]))
    assert found.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(found[name], value.detach())


def test_training_reports_and_saves(pipec: Pipec, plans: Path) -> None:
    saved, log, board = plans / "w.safetensors", plans / "log", plans / "board"
    text = ran(
        pipec, plans, "train", "--rounds", 3, "--save", saved, "--metrics", log,
        "--tensorboard", board, "--optimizer", "adamw:lr=0.01,amsgrad=true", "--clip", 0.5,
        "--lr-schedule", "steplr:step_size=1,gamma=0.5",
    )  # fmt: skip
    assert text.splitlines()[0].startswith("step 0  loss ")
    assert "samples/s  bubble " in text
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r["step"] for r in rows] == [0, 1, 2]
    (events,) = board.iterdir()
    assert b"samples_per_second" in events.read_bytes()
    state = load_file(saved)
    module = call_factory(f"{plans}/net.py:train", 0).module
    module.load_state_dict(state)  # the original names, all of them


def test_compiled_graphs_train_alike(pipec: Pipec, plans: Path) -> None:
    """The compiler is named: inductor, which is meant where none is, takes a minute here."""
    plain, fast = plans / "plain.safetensors", plans / "fast.safetensors"
    ran(pipec, plans, "train", "--rounds", 2, "--save", plain)
    ran(pipec, plans, "train", "--rounds", 2, "--save", fast, "--compile", "aot_eager")
    a, b = load_file(plain), load_file(fast)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


PASSES = (
    "simplify,annotate-cost,partition{{stages=2}},insert-comm,differentiate,time-stages,"
    "schedule{{generator=1f1b microbatches=3}},{}simulate"
)


def peak(out: Path) -> float:
    """Most bytes on any device, by the plan's timeline."""
    timeline = json.loads((out / "plan.json").read_text())["timeline"]
    return float(max(timeline["peak_bytes"]))


def test_offload_and_recompute_change_no_bit(pipec: Pipec, plans: Path) -> None:
    found = {}
    limit = ""
    for name in ("", "insert-offload", "insert-recompute"):
        out, saved = plans / f"wide {name}", plans / f"wide {name}.safetensors"
        more = f"{name}{{memory_limit={limit}}}," if name else ""
        outcome = pipec(
            "compile", f"{plans}/net.py:wide", "--training", "--devices", "2xh100", "-o", out,
            "--passes", PASSES.format(more),
        )  # fmt: skip
        assert outcome.code == 0, outcome.err
        outcome = pipec("run", out, "--local", "--rounds", 2, "--save", saved)
        assert outcome.code == 0, outcome.err
        found[name] = load_file(saved)
        if name:
            assert peak(out) <= float(limit)
        limit = limit or str(0.85 * peak(out))
    plain = found.pop("")
    for other in found.values():
        assert all(torch.equal(plain[n], other[n]) for n in plain)


REFUSED = [
    (("--outputs", "y.npz"), "train", "--outputs is not for a training plan"),
    (("--save", "w.safetensors"), "infer", "--save is not for an inference plan"),
    (("--outputs", "y.csv"), "infer", "want:  .safetensors .npz .pth .pt"),
    (("--compile", "gcc"), "train", "no such compiler"),
    (("--optimizer", "sgd:lr=fast"), "train", "cannot be read"),
    (("--optimizer", "sgd:speed=1"), "train", "no option 'speed'"),
    (("--lr-schedule", "up"), "train", "no such learning-rate schedule"),
    (("--device", "tpu"), "train", "no such device"),
    (("--rounds", "9"), "train", "IndexError: no such batch\n  hint:  it is called"),
    (("--save", "nowhere/w.safetensors"), "train", "no file can be written here"),
    (("--metrics", "nowhere/log"), "train", "got:   nowhere/log"),
    (("--tensorboard", __file__), "train", "this is no directory"),
    (("--checkpoints", __file__), "train", "got:   " + __file__),
    (("--checkpoints", f"{__file__}/c"), "train", "made\n  where: " + __file__),
    (("--clip", "-1"), "train", "want:  above 0"),
    (("--optimizer", "sgd:lr=nan"), "train", "lr=nan"),
    (("--lr-schedule", "steplr:step_size=0"), "train", "cannot make a step"),
    (("--every", "5"), "train", "is for --checkpoints"),
    (("--t1", "5"), "train", "want:  pipemare"),
    (("--t2", "0.1"), "train", "--t1 and --t2 correct for delay"),
]


@pytest.mark.parametrize(("more", "plan", "said"), REFUSED, ids=[r[2] for r in REFUSED])
def test_refusals(pipec: Pipec, plans: Path, more: tuple[str, ...], plan: str, said: str) -> None:
    outcome = pipec("run", plans / plan, "--local", "--data", f"{plans}/net.py:batch", *more)
    assert outcome.code == 1
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "option", [("--rounds", -1), ("--every", 0), ("--timeout", 0)], ids=lambda o: o[0]
)
def test_counts_and_times_have_a_range(
    pipec: Pipec, plans: Path, option: tuple[str, object]
) -> None:
    outcome = pipec("run", plans / "train", "--local", *option)
    assert outcome.code == 2
    assert option[0] in outcome.err


def test_a_data_file_imports_its_neighbours_and_says_what_is_wrong_with_it(
    pipec: Pipec, plans: Path
) -> None:
    (plans / "beside_data.py").write_text("from net import batch\n")
    (plans / "data.py").write_text("from beside_data import batch\n")
    (plans / "wrong.py").write_text("def batch(:\n")
    data = ("run", plans / "train", "--local", "--rounds", 1, "--data")
    assert pipec(*data, f"{plans}/data.py:batch").code == 0
    outcome = pipec(*data, f"{plans}/wrong.py:batch")
    assert outcome.code == 1
    assert "cannot be imported" in outcome.err
    assert "SyntaxError" in outcome.err


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file can be written above ``most`` bytes, as on a disk that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_no_training(pipec: Pipec, plans: Path, tmp_path: Path) -> None:
    kept = ("--checkpoints", tmp_path / "saved", "--every", 1)
    whole, after = tmp_path / "whole.safetensors", tmp_path / "after.safetensors"
    ran(pipec, plans, "train", "--rounds", 4, "--save", whole)
    ran(pipec, plans, "train", "--rounds", 1, *kept)
    log, board = tmp_path / "log", tmp_path / "board"
    more = ("--metrics", log, "--tensorboard", board, "--rounds", 3)
    run = ("run", plans / "train", "--local", "--data", f"{plans}/net.py:batch")
    with full_disk(200):
        done = pipec(*run, *kept, *more)
    lines = done.out.splitlines()
    steps = [line.split("  ")[0] for line in lines if line.startswith("step")]
    assert steps == ["step 1", "step 2"]
    for name in ("--metrics is given up", "--tensorboard is given up"):
        assert sum(name in line for line in lines) == 1
    assert sum("no checkpoint is made before round" in line for line in lines) == 2
    assert done.code == 1  # the trained weights could be written nowhere
    assert "Traceback" not in done.err
    ran(pipec, plans, "train", "--rounds", 4, *kept, "--save", after)
    assert load_file(after).keys() == load_file(whole).keys()
    assert all(torch.equal(w, load_file(after)[n]) for n, w in load_file(whole).items())


def test_weights_that_cannot_be_saved_where_they_are_wanted_are_saved_elsewhere(
    pipec: Pipec, plans: Path, tmp_path: Path
) -> None:
    wanted, whole = tmp_path / "w.safetensors", tmp_path / "whole.safetensors"
    ran(pipec, plans, "train", "--rounds", 2, "--save", whole)
    (plans / "taken.py").write_text(
        f"import os, net\ndef batch(k):\n    os.makedirs({str(wanted)!r}, exist_ok=True)\n"
        "    return net.batch(k)\n"
    )
    run = ("run", plans / "train", "--local", "--data", f"{plans}/taken.py:batch")
    done = pipec(*run, "--rounds", 2, "--save", wanted)
    assert done.code == 1
    safe = done.err.partition("the trained weights are in ")[2].strip()
    assert all(torch.equal(w, load_file(safe)[n]) for n, w in load_file(whole).items())
    shutil.rmtree(Path(safe).parent)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("on_nan", ["stop", "skip", "continue"])
def test_what_is_not_finite(pipec: Pipec, plans: Path, tmp_path: Path, on_nan: str) -> None:
    (plans / "odd.py").write_text(
        "import net\ndef batch(k):\n    given = net.batch(k)\n"
        "    return given | {'x': given['x'] / (k != 4)}\n"
    )
    saved = tmp_path / "w.safetensors"
    run = ("run", plans / "train", "--local", "--data", f"{plans}/odd.py:batch")
    outcome = pipec(*run, "--rounds", 3, "--save", saved, "--on-nan", on_nan)
    assert outcome.code == (1 if on_nan == "stop" else 0)
    if on_nan == "stop":
        assert "were not updated\n  where: round 1" in outcome.err
        assert not saved.exists()
    else:
        finite = all(w.isfinite().all() for w in load_file(saved).values())
        assert finite is (on_nan == "skip")
        assert [line.endswith("skipped") for line in outcome.out.splitlines()[:3]] == [
            False, on_nan == "skip", False
        ]  # fmt: skip


def test_a_scale_on_the_loss_is_taken_off_again(pipec: Pipec, plans: Path, tmp_path: Path) -> None:
    """A power of two changes no bit of float32."""
    weights = []
    for n, scale in enumerate([[], ["--loss-scale", 1024]]):
        saved = tmp_path / f"{n}.safetensors"
        run = ("run", plans / "train", "--local", "--data", f"{plans}/net.py:batch", "--rounds", 3)
        outcome = pipec(*run, "--save", saved, *scale)
        assert outcome.code == 0, outcome.err
        weights.append(load_file(saved))
    plain, scaled = weights
    assert all(torch.equal(w, scaled[name]) for name, w in plain.items())


def test_tensorboard_that_is_not_installed_is_named(
    pipec: Pipec, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    outcome = pipec("run", plans / "train", "--local", "--tensorboard", plans / "b")
    assert outcome.code == 1
    assert "pip install tensorboard" in outcome.err


def test_a_training_plan_is_verified_with_its_gradients(pipec: Pipec, plans: Path) -> None:
    outcome = pipec("verify", plans / "train", "--json")
    assert outcome.code == 0, outcome.err
    kinds = {b["name"]: b["kind"] for b in json.loads(outcome.out)["boundaries"]}
    assert kinds["loss"] == "loss"
    assert kinds["body.0.weight"] == kinds["head.bias"] == "gradient"


def test_a_plan_of_a_module_in_memory_runs_on_data_and_says_so(
    pipec: Pipec, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    compile_model(model, torch.ones(2, 4), "2xcpu", loss=torch.mean).save(tmp_path / "out")
    common = "run", tmp_path / "out", "--local", "--rounds", 1
    alone = pipec(*common)
    assert alone.code == 1
    assert "--data path/file.py:function" in alone.err
    (tmp_path / "data.py").write_text(
        "import torch\ndef batch(number):\n    return {'input': torch.full((2, 4), number + 1.0)}\n"
    )
    assert pipec(*common, "--data", f"{tmp_path}/data.py:batch").code == 0
