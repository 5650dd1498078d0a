"""Error bounds: the network in torch against the model, the bounds against C simulation."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.stage import Golden, write_stage
from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.inference import Accuracy, allow_golden, measure
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.numbers import decode, encode, roundoff
from pipec.backends.fpga.quantise.bound import Bound, bounds_of
from pipec.backends.fpga.quantise.execute import Chain
from pipec.backends.fpga.quantise.formats import formats_of, observe
from pipec.backends.fpga.quantise.layers import quantise
from pipec.compiler.sizes import run_graph
from pipec.graph.ir import Graph
from tests.fpga.design.models import MODELS, graph_of, made

Frames = list[dict[str, Tensor]]


def drawn(key: str, like: Tensor, seed: int, count: int = 3) -> Frames:
    """Random inputs."""
    generator = torch.Generator().manual_seed(seed)
    if not like.dtype.is_floating_point:
        return [{key: torch.randint(17, like.shape, generator=generator)} for _ in range(count)]
    return [{key: torch.rand(like.shape, generator=generator) * 4 - 2} for _ in range(count)]


def plain(_stage: int, _edge: str, _layer: Layer | None, x: Tensor) -> Tensor:
    """Nothing is done to an edge."""
    return x


@pytest.mark.parametrize(
    ("name", "precision"), [*product(MODELS, ["float32"]), ("resnet", "int8"), ("gru", "int8")]
)
def test_the_network_in_torch_is_the_model(name: str, precision: str) -> None:
    model, x = made(name)
    graph = graph_of(model, x)
    network = lower(graph, precision)
    frame = {network.inputs[0].value: x}
    (found,) = Chain([network]).run(frame, plain)
    for value, want in run_graph(graph, frame).items():
        torch.testing.assert_close(found[value], want, rtol=1e-5, atol=1e-5)


Stages = tuple[list[Network], list[Network], str]


def narrow(graph: Graph, precision: str, x: Tensor) -> tuple[Network, Stages]:
    """What is emitted, and what its bounds follow from."""
    exact = lower(graph, precision)
    ready = exact
    if precision == "int8":
        frames = drawn(exact.inputs[0].value, x, 1, 16)
        ready = quantise(exact, formats_of([exact], observe([exact], frames))[0])
    return ready, ([exact], [ready], precision)


def simulated(
    graph: Graph, ready: Network, precision: str, frames: Frames, folder: Path
) -> list[Accuracy]:
    """The losses in C simulation of what is in a folder, which is written if it is not there."""
    if not folder.exists():
        design = size_fifos(design_at(ready, 1000, name="s", dtype=precision))
        write_stage(design, folder, None)
    return measure([graph], [folder], frames)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("resnet", "bfloat16"),
        ("encoder", "ap_fixed<16,6>"),
        ("sdpa", "float16"),
        ("mobile", "ap_fixed<8,3>"),
        ("gru", "int8"),
        ("dense", "int8"),
    ],
)
def test_networks_lose_what_the_format_explains(name: str, precision: str, tmp_path: Path) -> None:
    """Both bounds hold on the frames they are for, and are a few times what is lost."""
    model, x = made(name)
    graph = graph_of(model, x)
    ready, stages = narrow(graph, precision, x)
    frames = drawn(ready.inputs[0].value, x, 2)
    bounds = {b.value: b for b in bounds_of(*stages, frames)}
    for item in simulated(graph, ready, precision, frames, tmp_path / "s"):
        bound, lost = bounds[item.value], item.max_relative_error
        assert lost <= min(bound.worst, bound.likely), (item, bound)
        assert bound.relative <= 12 * lost, (item, bound)
        assert lost > roundoff(precision) / 64  # it is really narrow


def _broken(folder: Path, how: str) -> None:
    """One engine of a stage made wrong."""
    if how == "shift":
        types = folder / "src/types.h"
        text = types.read_text()
        types.write_text(
            re.sub(r"SHIFT = (\d+)", lambda m: f"SHIFT = {int(m[1]) + 1}", text, count=1)
        )
        return
    (path,) = folder.glob(f"src/weights/*linear_1*_{how}.bin")
    raw = np.fromfile(path, "<i8" if how == "rescale" else "<i2")
    # of a rescale word the lower half is the bias
    raw = (raw >> 32) << 32 if how == "rescale" else np.zeros_like(raw)
    raw.tofile(path)


@pytest.mark.parametrize(
    ("precision", "how"),
    [("int8", "shift"), ("int8", "rescale"), ("ap_fixed<16,6>", "bias")],
)
def test_a_broken_engine_exceeds_the_bound(precision: str, how: str, tmp_path: Path) -> None:
    """A shift that is one too large, and biases that are dropped."""
    model, x = made("vgg")
    graph = graph_of(model, x)
    ready, stages = narrow(graph, precision, x)
    frames = drawn(ready.inputs[0].value, x, 2)
    (bound,) = bounds_of(*stages, frames)
    (whole,) = simulated(graph, ready, precision, frames, tmp_path / "s")
    assert whole.max_relative_error <= bound.relative
    _broken(tmp_path / "s", how)
    (broken,) = simulated(graph, ready, precision, frames, tmp_path / "s")
    assert broken.max_relative_error > bound.relative


@settings(max_examples=20)
@given(st.sampled_from(["ap_fixed<16,6>", "ap_fixed<8,4>", "float16"]), st.integers(0, 2**32 - 1))
def test_worst_is_what_the_worst_signs_do(precision: str, seed: int) -> None:
    """One linear layer: brute force over all signs of the errors of its inputs and its output."""
    torch.manual_seed(seed)
    model, x = torch.nn.Linear(5, 2), torch.rand(1, 5) * 4 - 2
    exact, stages = narrow(graph_of(model, x), precision, x)
    (bound,) = bounds_of(*stages, [{exact.inputs[0].value: x}])
    weight, bias = (
        decode(encode(p.detach().numpy(), precision), precision).astype(np.float64)
        for p in model.parameters()
    )
    want = model(x).detach().double().numpy()[0]
    inputs = x.double().numpy()[0]

    def unit(values: np.ndarray) -> np.ndarray:
        """Largest rounding errors."""
        sizes = np.abs(values) if precision == "float16" else np.ones_like(values)
        return sizes * roundoff(precision)

    most = 0.0
    for signs in product((-1.0, 1.0), repeat=5):
        disturbed = weight @ (inputs + np.array(signs) * unit(inputs)) + bias
        last = unit(weight @ inputs + bias)
        most = max(most, float((np.abs(disturbed - want) + last).max()))
    peak = float(np.abs(want).max())
    assert most / peak <= bound.worst * (1 + 1e-4) + 1e-6
    assert bound.worst <= most / peak * 1.01 + 1e-6


def test_bounds_survive_the_file() -> None:
    found = Bound(1, "y", float("inf"), 0.25)
    assert Bound.of_json(1, found.to_json()) == found
    assert (found.relative, found.basis) == (0.25, "likely")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["ap_fixed<8,4>", "ap_fixed<16,6>", "bfloat16"]))
def test_test_benches_accept_what_the_bound_does(seed: int, dtype: str) -> None:
    """A result as near to the model's as the bound says is accepted beside rounded golden data."""
    draw = np.random.default_rng(seed)
    want = draw.normal(scale=draw.choice([0.2, 2.0, 9.0]), size=6).astype(np.float32)

    def kept(
        values: np.ndarray[tuple[int], np.dtype[np.float32]],
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(decode(encode(values, dtype), dtype), dtype=np.float64).reshape(6)

    near = kept((want + draw.normal(scale=0.1, size=6)).astype(np.float32))
    allowed = float(np.abs(near - want).max() / np.abs(want).max())
    port, stream = Port("y", "y", "s", (6,), (0,), "float32"), Stream("s", 1, 6, 1, dtype)
    design = StageDesign("stage0", (), {"s": stream}, (), (port,))
    golden = kept(want)
    tolerance = allow_golden(design, Golden({}, {"y": torch.from_numpy(want)}), allowed)
    assert tolerance >= min(1, allowed)
    if tolerance < 1:
        peak, step = np.abs(golden).max(), 2**-4 if dtype == "ap_fixed<8,4>" else peak_step(golden)
        assert np.abs(near - golden).max() <= tolerance * peak * (1 + 1e-6)
        least = np.abs(near - want).max() + step / 2
        assert tolerance * peak <= max(allowed * peak, least * (1 + 1e-6))  # half a step, no more


def peak_step(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """A step of bfloat16 at the largest magnitude, which is larger than one of ap_fixed<16,6>."""
    return float(2.0 ** (np.floor(np.log2(np.abs(values).max())) - 7)) + 2**-10
