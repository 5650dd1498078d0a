"""Pictures of five reports in a real browser, for README and docs: `make pictures`.

python -m benchmarks.pictures [FOLDER]     docs/pictures unless another is named
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import pipec
from examples.resnet import resnet
from tests.report.browser import browser

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(6)]
    return nn.Sequential(*layers), (torch.randn(4, 32, 64),), lambda y: y.square().mean()
"""


def _transformer(layers: int, width: int) -> nn.Module:
    one = [nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(layers)]
    return nn.Sequential(*one)


def pages(folder: Path) -> Iterator[Path]:
    """Pages of a training plan, one of 16 stages and 64 microbatches, two plans, boards, a run."""
    torch.manual_seed(0)
    model, x, loss = _transformer(12, 512), torch.zeros(8, 128, 512), lambda y: y.square().mean()
    best = pipec.compile(model, x, "4xv100", loss=loss)
    plain = pipec.compile(model, x, "4xv100", loss=loss, schedule="gpipe")
    wide = pipec.compile(
        _transformer(32, 256), torch.zeros(8, 128, 256), "16xv100", loss=loss,
        schedule="1f1b", microbatches=64,
    )  # fmt: skip
    yield pipec.report(best, folder / "report.html")
    yield pipec.report(wide, folder / "wide.html")
    yield pipec.report(plain, folder / "difference.html", best)
    yield _boards(folder)
    yield _run_measured(folder)


def _boards(folder: Path) -> Path:
    """ResNet-18 on two boards, engines simulated cycle by cycle."""
    model = resnet((2, 2, 2, 2), bottleneck=False).eval()
    plan = pipec.compile(model, torch.zeros(1, 3, 224, 224), "2xvcu118", target="fpga")
    plan.save(folder / "boards")
    return pipec.report(folder / "boards", folder / "boards.html", cycles=True)


def _run_measured(folder: Path) -> Path:
    """A run of two processes over its prediction from measured stages, with losses and errors."""
    (folder / "model.py").write_text(MODEL)
    compiled = ["compile", "model.py:make", "--devices", "2xcpu", "--schedule", "1f1b", "--force"]
    _pipec(folder, *compiled, "-o", "out")
    _pipec(folder, "profile", "out", "--optimizer", "adamw:lr=0.01", "-o", "costs.json")
    _pipec(folder, *compiled, "-o", "out", "--costs", "costs.json")
    (folder / "verify.json").write_text(_pipec(folder, "verify", "out", "--json"))
    metrics, trace = folder / "metrics.jsonl", folder / "trace.json"
    _pipec(
        folder, "run", "out", "--rounds", "20", "--optimizer", "adamw:lr=0.01",
        "--metrics", metrics, "--trace", trace,
    )  # fmt: skip
    page, verified = folder / "measured.html", folder / "verify.json"
    return pipec.report(folder / "out", page, verified=verified, metrics=metrics, trace=trace)


def _pipec(folder: Path, *words: object) -> str:
    command = [sys.executable, "-m", "pipec", *map(str, words)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def main(folder: Path) -> None:
    """Write one PNG per page, and say how large and how fast the page is."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        for path in pages(Path(made)):
            for theme in ("light", "dark"):
                _picture(path, folder / f"{path.stem}-{theme}.png", theme)


def _picture(path: Path, png: Path, theme: str) -> None:
    with browser() as driver:
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.get(path.as_uri())
        took = driver.execute_script("return performance.now()")
        tall = driver.execute_script("return document.documentElement.scrollHeight")
        driver.set_window_size(1400, min(tall + 140, 2600))
        time.sleep(0.5)
        driver.save_screenshot(str(png))
    print(f"{png.name}: page of {path.stat().st_size / 1e3:.0f} kB, there after {took:.0f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures"))
