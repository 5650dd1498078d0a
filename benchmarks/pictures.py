"""Pictures of three reports in a real browser, for README and docs: `make pictures`.

python -m benchmarks.pictures [FOLDER]     docs/pictures unless another is named
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import pipec
from tests.report.browser import browser


def _transformer(layers: int, width: int) -> nn.Module:
    one = [nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(layers)]
    return nn.Sequential(*one)


def plans() -> dict[str, list[pipec.Plan]]:
    """A training plan, one of 16 stages and 64 microbatches, and two to compare."""
    torch.manual_seed(0)
    model, x, loss = _transformer(12, 512), torch.zeros(8, 128, 512), lambda y: y.square().mean()
    best = pipec.compile(model, x, "4xv100", loss=loss)
    plain = pipec.compile(model, x, "4xv100", loss=loss, schedule="gpipe")
    wide = pipec.compile(
        _transformer(32, 256), torch.zeros(8, 128, 256), "16xv100", loss=loss,
        schedule="1f1b", microbatches=64,
    )  # fmt: skip
    return {"report": [best], "wide": [wide], "difference": [plain, best]}


def main(folder: Path) -> None:
    """Write one PNG per report, light and dark, and say how large and how fast each page is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, shown in plans().items():
        with tempfile.TemporaryDirectory() as made:
            path = shown[0].report(Path(made) / f"{name}.html", *shown[1:])
            for theme in ("light", "dark"):
                _picture(path, folder / f"{name}-{theme}.png", theme)


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
