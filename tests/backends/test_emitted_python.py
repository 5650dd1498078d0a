"""Python that is written for people: ruff, mypy and the compiler find nothing in it."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.compiler.export import FORMATS, split_layers
from pipec.plan.model import Plan
from tests.runtime.eager_models import Branch, chain

ROOT = Path(__file__).parents[2]


class Words(nn.Module):
    """Integers, a mask of infinities, attention, and two layers that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.out(x).masked_fill(mask[..., None], -float("inf"))
        return out.softmax(-1)


def loss(out: Tensor) -> Tensor:
    return out.nan_to_num().square().sum()


def plans() -> dict[str, Plan]:
    """All that emits Python: each target, and what changes the text of one."""
    words = {"ids": torch.zeros(2, 3, dtype=torch.int64), "mask": torch.zeros(2, 3).bool()}
    rows, square = torch.zeros(4, 8), (nn.functional.mse_loss, torch.zeros(4, 8))
    mlp = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    return {
        "train": pipec.compile(
            Words(), words, "2xcpu", loss=loss, recompute="layers.0", offload="layers.1*"
        ),
        "eager": pipec.compile(
            chain(Branch()), rows, "2xcpu", loss=square, eager=True, schedule="pipedream"
        ),
        "half": pipec.compile(mlp, rows, "2xcpu", loss=loss, autocast="float16"),
        "infer": pipec.compile(Words().eval(), words, "2xcpu"),
        "onnx": pipec.compile(mlp, rows, "2xcpu", target="onnx"),
        "fpga": pipec.compile(mlp, rows[:1], "2xvcu118", target="fpga"),
    }


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emitted")
    for name, plan in plans().items():
        plan.save(folder / name)
    return folder


def check(tool: str, *words: object) -> None:
    pytest.importorskip(tool)
    command = [sys.executable, "-m", tool, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_graphs_as_python(emitted: Path) -> None:
    """Lines are as long as what stands behind them; names of ops may be private."""
    files = sorted(emitted.glob("*/graphs/*/*.py"))
    assert {f.name for f in files} == {"F.py", "B.py", "I.py", "W.py"}
    assert {f.relative_to(emitted).parts[0] for f in files} == {p.name for p in emitted.iterdir()}
    with warnings.catch_warnings(action="error"):
        for file in files:
            compile(file.read_text(), str(file), "exec")
    check("ruff", "check", "--select", "E,F,I,W,B,C4,PIE,UP", "--ignore", "E501", *files)


def scripts(emitted: Path, folder: Path) -> list[Path]:
    """Copies of the scripts of training, by names that differ."""
    found = []
    for script in emitted.glob("*/train.py"):
        found.append(folder / f"{script.parent.name}_train.py")
        found[-1].write_text(script.read_text())
    assert [s.stem.split("_")[0] for s in sorted(found)] == ["eager", "half", "train"]
    return found


def splits(emitted: Path, folder: Path) -> dict[str, Path]:
    """The layers of a plan as other runtimes take them."""
    split = split_layers(pipec.load(emitted / "infer"))
    files = {name: folder / f"{name}_split.py" for name in ("deepspeed", "torch", "torchtitan")}
    for name, file in files.items():
        file.write_text(FORMATS[name](split) + "\n")
    return files


def test_style(emitted: Path, tmp_path: Path) -> None:
    found = scripts(emitted, tmp_path)
    check("ruff", "check", "--config", "pyproject.toml", "--extend-ignore", "INP001", *found)
    check("ruff", "format", "--config", "pyproject.toml", "--check", *found)
    rules = ("--select", "E,F,I,W,B,C4,PIE,UP", "--ignore", "F401")
    check("ruff", "check", *rules, *splits(emitted, tmp_path).values())


def test_types(emitted: Path, tmp_path: Path) -> None:
    """In one run: it reads torch first."""
    split = splits(emitted, tmp_path)["torch"]
    check("mypy", "--config-file", "pyproject.toml", *scripts(emitted, tmp_path), split)
