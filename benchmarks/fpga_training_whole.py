"""Whole networks trained over FPGA boards in C simulation, against autograd and torch's SGD.

    python -m benchmarks.fpga_training_whole [NAME ...]

Each network at 224 x 224 pixels, random seeded weights, one image per microbatch, is compiled for
its boards and run by `pipec verify`: values that cross a cut, outputs, running statistics, every
gradient and updated weight of three microbatches, tolerance 1e-4. A corner is an element of the
gradient where a ReLU's input is zero, or two maxima of a window are equal, within rounding: there
the reference follows the side that the kernels saved. Seconds are processor seconds, those of g++
included.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import torch
from torch import nn
from torch.nn import functional

import pipec
from benchmarks._imagenet import CLASSES, alexnet, resnet50, vgg16
from benchmarks.fpga_csim import cpu
from examples.resnet import resnet
from pipec.errors import BackendError

NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "alexnet": (alexnet, "4xvcu118"),
    "resnet18": (lambda: resnet((2, 2, 2, 2), bottleneck=False), "6xvcu118"),
    "vgg16": (vgg16, "12xvcu118"),
    "resnet50": (resnet50, "16xvcu118"),
}


def measure(name: str) -> str:
    """Compile one network, verify it, and say what was right; or what does not fit."""
    make, boards = NETWORKS[name]
    torch.manual_seed(0)
    model, image = make().train(), torch.randn(1, 3, 224, 224)
    loss = (functional.cross_entropy, torch.randint(CLASSES, (1,)))
    before = cpu()
    try:
        plan = pipec.compile(model, image, boards, loss=loss, target="fpga")
    except BackendError as error:
        return f"{name:9} {boards:10} {error.got}, {cpu() - before:.0f} seconds"
    with tempfile.TemporaryDirectory() as made:
        plan.save(Path(made) / "out")
        report = pipec.verify(Path(made) / "out", model, image, loss=loss)
    found = report.boundaries
    right = sum(c.ok for c in found)
    worst = max(c.relative_error for c in found if "gradient" in c.kind)
    corners = {c.basis for c in found if c.basis}
    return (
        f"{name:9} {boards:10} {right:4} of {len(found):4} {worst:13.1e} {cpu() - before:8.0f}  "
        f"{'; '.join(sorted(corners)) or 'none'}"
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(NETWORKS)))
def main(names: tuple[str, ...]) -> None:
    """Measure the networks that are named, by default all."""
    print("network   boards     values right  gradient off  seconds  corners")
    for name in names or NETWORKS:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
