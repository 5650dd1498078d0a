"""Networks trained on digits, the same ONNX file through hls4ml, FINN+ and pipec."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._digits import images, write_onnx
from benchmarks._fpga_site import Unavailable, ask, cpu_seconds
from benchmarks.fpga_accuracy import compile_network, reference, simulate_logits
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.lowering.lower import lower
from pipec.frontends.load import load

NETWORKS = ("mlp", "cnn")
PRECISION = "ap_fixed<16,6>"
REUSE = (1, 16)
HEAD = (
    "network   by              numbers         interval    units  pipec's   right  largest error"
    "    time"
)
"""``pipec's`` are the units that pipec takes for the interval of another tool."""

Units = Callable[[list[Layer], int, str], int | None]
"""Units of pipec's factors for an interval in a precision."""


def row(
    who: tuple[str, str, str], cost: tuple[int, int, int | None],
    found: tuple[Tensor, Tensor] | None, seconds: float,
) -> str:  # fmt: skip
    """One line; ``cost`` is interval, units, and pipec's; ``found`` logits and onnxruntime's."""
    network, tool, numbers = who
    interval, units, ours = cost
    own = "" if ours is None else f"{ours:,}"
    text = f"{network:<9} {tool:<15} {numbers:<15} {interval:>8,} {units:>8,} {own:>8}"
    if found is not None:
        got, want = found
        right = (got.argmax(1) == images(network)[3]).double().mean()
        error = (got - want).abs().max() / want.abs().max()
        text += f" {float(right):>7.2%} {float(error):>14.1e}"
    return f"{text:<90} {seconds:>5.1f} s"


def digits(units_of_design: Callable[..., int], our_units: Units) -> Iterator[tuple[str, bool]]:
    """Rows, and whether pipec is no worse than what it stands beside.

    Args:
        units_of_design: Units of a design.
        our_units: Units that pipec takes for an interval.
    """
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model = write_onnx(network, folder / f"{network}.onnx")
            np.save(folder / "images.npy", images(network)[2].numpy())
            want = reference(model)
            dense = [y for y in lower(load(str(model)).graph).layers if isinstance(y.nest, Mvu)]
            began = cpu_seconds()
            plan = compile_network(model, PRECISION, folder)
            got = simulate_logits(network, plan, folder / "out")
            seconds, design = cpu_seconds() - began, designs_of(plan)[0]
            who = (network, "pipec, VCU118", PRECISION)
            cost = design.interval, units_of_design(design), None
            yield row(who, cost, (got, want), seconds), True
            ours = float((got - want).abs().max())
            yield from _beside_hls4ml(network, folder, (dense, our_units), (ours, want))
            yield from _beside_finn(network, dense, our_units)


def _beside_hls4ml(
    network: str, folder: Path, folded: tuple[list[Layer], Units], numeric: tuple[float, Tensor]
) -> Iterator[tuple[str, bool]]:
    (dense, our_units), (error, want) = folded, numeric
    question = {
        "model": str(folder / f"{network}.onnx"), "images": str(folder / "images.npy"),
        "precision": PRECISION,
    }  # fmt: skip
    for reuse in REUSE:
        out = str(folder / f"hls4ml{reuse}")
        try:
            found = ask("benchmarks._hls4ml", {**question, "reuse": reuse, "folder": out})
        except Unavailable as why:
            yield f"{network:<9} hls4ml: {why}", True
            return
        got = torch.tensor(found["logits"])
        interval, units = found["interval"], found["units"]
        who = (network, f"hls4ml, RF {reuse}", PRECISION)
        ours = our_units(dense, interval, PRECISION)
        good = ours is not None and ours <= units and error <= float((got - want).abs().max())
        yield row(who, (interval, units, ours), (got, want), found["seconds"]), good


def _beside_finn(network: str, dense: list[Layer], our_units: Units) -> Iterator[tuple[str, bool]]:
    nests = [y.nest for y in dense if isinstance(y.nest, Mvu)]
    layers = [[nest.n, nest.taps * nest.channels, nest.rows] for nest in nests]
    targets = [[t, 36] for t in (10, 1_000)]
    try:
        found = ask("benchmarks._finn", {"layers": layers, "targets": targets})
    except Unavailable as why:
        yield f"{network:<9} FINN+: {why}", True
        return
    for interval, units, seconds in {tuple(f[:2]): f for f in found}.values():
        ours = our_units(dense, interval, "int8")
        good = ours is not None and ours <= units
        yield row((network, "FINN+", "int8"), (interval, units, ours), None, seconds), good
