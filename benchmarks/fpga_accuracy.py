"""What narrow numbers cost on an FPGA: top-1 accuracy of trained networks in C simulation.

    python -m benchmarks.fpga_accuracy                 all networks, all precisions
    python -m benchmarks.fpga_accuracy cnn             these networks

Networks of `benchmarks._digits`, trained here in float32, are compiled for a VCU118 in every
precision, int8 with scales calibrated on training images; all images of the test are streamed
through the C simulation of the emitted sources. Printed: right answers more than in float32
(onnxruntime), answers that are the same, largest and mean error of the logits (relative to the
largest, to the mean magnitude); and on the training images that calibration left out, the largest
error, the bound that follows from the numbers and the share of it that the error is. A second table
has the worst of all networks in each column.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from benchmarks._digits import NETWORKS, images, write_onnx
from benchmarks._fpga_site import cpu_seconds
from pipec.backends.fpga.csim.run import CSimulation, stream
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import Backend, load_backend
from pipec.compiler.comparison import Allowed
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.verify import verify_stages
from pipec.frontends.load import load
from pipec.plan.model import Plan

BACKEND: Backend = load_backend("fpga")
PRECISIONS = (
    "float32", "bfloat16", "float16", "ap_fixed<16,6>", "ap_fixed<16,8>", "ap_fixed<8,4>", "int8",
)  # fmt: skip
CALIBRATED = 256
"""Training images that int8 is calibrated on."""
HELD_OUT = 4
"""The last of them, which the compiler keeps to measure with."""
LOST = {"ap_fixed<8,4>": 1.0}
"""Accuracy that a precision may lose; 1 % for others."""


@dataclass(frozen=True)
class Loss:
    """One network in one precision.

    Attributes:
        right: Share of right answers; ``same`` of answers as in float32.
        largest: Error of a logit over the largest logit; ``mean`` of mean magnitudes.
        kept: Largest error on the frames that were held out; ``bound`` what the numbers explain.
        seconds: Processor time of compilation and simulation.
    """

    right: float
    same: float
    largest: float
    mean: float
    kept: float
    bound: Allowed
    seconds: float

    @property
    def share(self) -> float:
        """Of the bound, what the error on the frames that were held out is."""
        return self.kept / self.bound.relative


def reference(model: Path) -> Tensor:
    """Logits of the test images by onnxruntime, ``[images, classes]``.

    Args:
        model: ``NAME.onnx`` of one of `NETWORKS`.
    """
    session = onnxruntime.InferenceSession(model)
    found = [session.run(None, {"x": x[None].numpy()})[0] for x in images(model.stem)[2]]
    return torch.from_numpy(np.concatenate(found))


def compile_network(model: Path, precision: str, folder: Path) -> Plan:
    """The network for one VCU118, emitted to ``folder / "out"``."""
    options = {"precision": precision}
    if precision != "float32":
        options["calibrate"] = str(folder / "calibrate.npz")
        np.savez(folder / "calibrate.npz", x=images(model.stem)[0][:CALIBRATED, None].numpy())
    plan = make_plan(load(str(model)).graph, parse_cluster("1xvcu118"), "fpga", options=options)
    emit(plan, folder / "out")
    return plan


def simulate_logits(name: str, plan: Plan, out: Path) -> Tensor:
    """Logits of the test images in C simulation."""
    frames = [{"x": x[None]} for x in images(name)[2]]
    stages = [s for s in BACKEND.load(plan, out).stages if isinstance(s, CSimulation)]
    return torch.cat([next(iter(y.values())) for y in stream(stages, plan.channels, frames)])


def measure_held_out(plan: Plan, out: Path, model: Path) -> tuple[float, Allowed]:
    """Largest error of the logits on the frames that were held out, and what is allowed."""
    loaded, emitted = load(str(model)), BACKEND.load(plan, out)
    reports = [verify_stages(plan, emitted, loaded, seed=k) for k in range(HELD_OUT)]
    last = [report.boundaries[-1] for report in reports]
    worst = max(last, key=lambda b: b.relative_error)
    return worst.relative_error, Allowed(worst.tolerance, worst.basis)


def measure(model: Path, precision: str, want: Tensor) -> Loss:
    """One network in one precision."""
    labels, began = images(model.stem)[3], cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        plan, out = compile_network(model, precision, Path(folder)), Path(folder) / "out"
        found = simulate_logits(model.stem, plan, out)
        kept, bound = measure_held_out(plan, out, model)
    error = (found - want).abs()
    return Loss(
        float((found.argmax(1) == labels).double().mean()),
        float((found.argmax(1) == want.argmax(1)).double().mean()),
        float(error.max() / want.abs().max()),
        float(error.mean() / want.abs().mean()),
        kept,
        bound,
        cpu_seconds() - began,
    )


def losses(name: str) -> Iterator[tuple[str, float, Loss]]:
    """Per precision, right answers in float32 and what was found."""
    labels = images(name)[3]
    with tempfile.TemporaryDirectory() as folder:
        model = write_onnx(name, Path(folder) / f"{name}.onnx")
        want = reference(model)
        right = float((want.argmax(1) == labels).double().mean())
        for precision in PRECISIONS:
            yield precision, right, measure(model, precision, want)


def format_row(name: str, precision: str, more: float, found: Loss) -> str:
    """A line of the table of all networks."""
    return (
        f"{name:<9} {precision:<15} {more:>+8.2%} {found.same:>7.2%} {found.largest:>8.1e} "
        f"{found.mean:>8.1e} {found.kept:>8.1e} {found.bound.relative:>8.1e} {found.share:>5.0%} "
        f"{found.bound.basis:<6} {found.seconds:>5.1f} s"
    )


def worst(precision: str, more: float, found: Sequence[Loss]) -> str:
    """A line of the second table: the worst of each column."""
    return (
        f"{precision:<15} {more:>+8.2%} {min(x.same for x in found):>7.2%} "
        f"{max(x.largest for x in found):>8.1e} {max(x.mean for x in found):>8.1e} "
        f"{max(x.share for x in found):>5.0%}"
    )


def main(names: list[str]) -> int:
    """Print the tables; 1 if a precision loses more than a percent of the answers, or a bound."""
    every: dict[str, list[tuple[float, Loss]]] = defaultdict(list)
    print(
        "network   precision          right    same  largest     mean     kept    bound share basis"
        "    time"
    )
    for name in names or list(NETWORKS):
        for precision, right, found in losses(name):
            every[precision].append((found.right - right, found))
            print(format_row(name, precision, found.right - right, found), flush=True)
    print("\nprecision          right    same  largest     mean share")
    for precision, some in every.items():
        print(worst(precision, min(more for more, _ in some), [loss for _, loss in some]))
    return int(
        any(
            loss.share > 1 or -more > LOST.get(precision, 0.01)
            for precision, some in every.items()
            for more, loss in some
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
