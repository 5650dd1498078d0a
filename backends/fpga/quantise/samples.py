"""Sample inputs of a plan: read from a file, or drawn from the ranges that it remembers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipec.compiler.inputs import table_sizes
from pipec.errors import BackendError
from pipec.files import write_npz
from pipec.graph.ir import Graph, InputKind, tensor
from pipec.graph.quantised import QUANTIZE
from pipec.plan.model import Plan
from pipec.plan.weights import all_have_data

RANDOM = "random"
_DRAWN = 16
"""Sets of inputs that are drawn for calibration."""
_HELD_OUT = 4
"""Sets that are drawn, or kept back of a file, to measure with: enough to see what is lost."""
KEPT = "held_out.npz"
"""Frames that were held out, as emitted: an array per input."""

Ranges = Mapping[str, tuple[float, float]]
"""Input to its least and largest number, as far as known."""


def calibration_samples(plan: Plan) -> list[dict[str, Tensor]]:
    """Sets of the model's inputs, by name, to calibrate on.

    Options of the plan: ``calibrate`` is ``random`` (the default) or the path of a ``.npz`` file
    with an array per input, frames along the first axis, the last of which are `unseen_frames`;
    ``input_ranges`` is JSON, input name to least and largest number. Random floats are uniform in
    that range, or what the model's own format of an input holds (normal without either); integers
    too (numbers of rows of their table without one).

    Raises:
        BackendError: The file cannot be read, or does not fit the model.
    """
    frames = _read_samples(plan)
    if frames is None:
        return _random(plan, 1, _DRAWN)
    return frames[:-_HELD_OUT] or frames


def unseen_frames(plan: Plan) -> list[dict[str, Tensor]]:
    """Sets of the model's inputs that calibration has not seen; of a short file some that it has.

    Raises:
        BackendError: The file cannot be read, or does not fit the model.
    """
    frames = _read_samples(plan)
    return _random(plan, 2, _HELD_OUT) if frames is None else frames[-_HELD_OUT:]


def _read_samples(plan: Plan) -> list[dict[str, Tensor]] | None:
    source = str(plan.options.get("calibrate", RANDOM))
    return None if source == RANDOM else _read_npz(Path(source), plan.graph)


def _random(plan: Plan, seed: int, count: int) -> list[dict[str, Tensor]]:
    ranges = json.loads(str(plan.options.get("input_ranges", "{}")))
    return random_frames(plan.graph, seed, count, ranges | _formats(plan.graph))


def _formats(graph: Graph) -> dict[str, tuple[float, float]]:
    """The ranges of inputs in the formats that a model itself gives them."""
    nodes, found = graph.nodes, dict[str, tuple[float, float]]()
    data = {i.node: graph.weights.get(i.name) for i in graph.inputs if i.kind.is_weight}
    for i in graph.inputs_of(InputKind.INPUT) if all_have_data(graph.weights) else ():
        for reader in (n for n in nodes[i.node].users if n.target is QUANTIZE):
            scale, zero = (data.get(str(c)) for c in reader.args[1:3])
            if scale is not None and scale.numel() == 1:
                ends, off = torch.iinfo(tensor(reader).dtype), 0.0 if zero is None else float(zero)
                found[i.name] = (ends.min - off) * float(scale), (ends.max - off) * float(scale)
    return found


def keep(frames: Sequence[Mapping[str, Tensor]], directory: Path) -> None:
    """Keep sets of the model's inputs beside what is emitted; bfloat16 as float32."""
    columns = {name: torch.stack([f[name] for f in frames]) for name in frames[0]}
    columns |= {n: t.float() for n, t in columns.items() if t.dtype is torch.bfloat16}
    write_npz(directory / KEPT, {n: t.numpy() for n, t in columns.items()})


def read_kept(directory: Path, graph: Graph, number: int) -> dict[str, Tensor] | None:
    """One of the frames that `keep` has kept, counted round and round; None if none were.

    Raises:
        BackendError: The file cannot be read, or does not fit the model.
    """
    kept = directory / KEPT
    frames = _read_npz(kept, graph) if kept.is_file() else [None]
    return frames[number % len(frames)]


def source_of(plan: Plan) -> str:
    """The inputs that ranges were taken from, in words."""
    source = str(plan.options.get("calibrate", RANDOM))
    return f"random inputs ({_DRAWN} frames)" if source == RANDOM else f"inputs of {source}"


def random_frames(
    graph: Graph, seed: int, count: int = 1, ranges: Ranges | None = None
) -> list[dict[str, Tensor]]:
    """Seeded random tensors for every input that the user gives a model, by name.

    Floating point is uniform in its range, normal without one; integers without one are numbers of
    rows of the table that they pick from, or 0 and 1; booleans are fair coins.
    """
    rows, generator = table_sizes(graph), torch.Generator().manual_seed(seed)
    inputs, known = inputs_of(graph).items(), ranges or {}
    return [
        {n: _draw(like, known.get(n), rows.get(n, 2), generator) for n, like in inputs}
        for _ in range(count)
    ]


def inputs_of(graph: Graph) -> dict[str, Tensor]:
    """The inputs that the user gives a model, by name: tensors of their shape and type."""
    kinds = (InputKind.INPUT, InputKind.VALUE)
    return {i.name: tensor(graph.nodes[i.node]) for i in graph.inputs if i.kind in kinds}


def _draw(
    like: Tensor, limits: tuple[float, float] | None, below: int, generator: torch.Generator
) -> Tensor:
    shape = tuple(like.shape)
    if like.dtype.is_floating_point:
        if limits is None or limits[0] == limits[1]:
            return torch.randn(shape, generator=generator).to(like.dtype)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (limits[0] + (limits[1] - limits[0]) * uniform).to(like.dtype)
    low, high = (0, below - 1) if limits is None else (int(limits[0]), int(limits[1]))
    if like.dtype is torch.bool:
        low, high = 0, 1
    return torch.randint(low, high + 1, shape, generator=generator).to(like.dtype)


def _read_npz(path: Path, graph: Graph) -> list[dict[str, Tensor]]:
    """The frames of a ``.npz`` file; an array of exactly an input's shape is one frame."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        what, want = "calibration data cannot be read", "an .npz file with an array for each input"
        raise BackendError(what, where=path, got=error, want=want) from error
    columns = {}
    for name, like in inputs_of(graph).items():
        if name not in arrays:
            raise BackendError(
                "calibration data lacks an input", where=path, got=", ".join(arrays), want=name
            )
        columns[name] = _frames(arrays[name], like, f"{name} in {path}")
    count = {len(frames) for frames in columns.values()}
    if len(count) != 1 or count == {0}:
        raise BackendError(
            "inputs have different numbers of frames", where=path,
            got=", ".join(f"{name}: {len(f)}" for name, f in columns.items()),
        )  # fmt: skip
    return [{name: f[k] for name, f in columns.items()} for k in range(*count)]


def _frames(array: NDArray[Any], like: Tensor, where: str) -> list[Tensor]:
    shape = tuple(like.shape)
    if array.shape == shape:
        array = array[None]
    elif array.ndim == len(shape) and array.shape[1:] == shape[1:] and len(array) % shape[0] == 0:
        array = array.reshape(-1, *shape)  # one frame is a batch
    if array.shape[1:] != shape or array.dtype.kind not in "fiub":
        raise BackendError(
            "calibration data has another shape or kind than the input", where=where,
            got=f"{array.dtype}{list(array.shape)}", want=f"[frames, {', '.join(map(str, shape))}]",
        )  # fmt: skip
    return [torch.from_numpy(np.asarray(a, order="C")).to(like.dtype) for a in array]


def input_ranges(examples: Mapping[str, Tensor]) -> str:
    """The option ``input_ranges`` for example inputs; those that are not finite are left out."""
    ranges = {
        name: [float(x.double().min()), float(x.double().max())]
        for name, x in examples.items()
        if x.numel() and not x.dtype.is_complex and bool(x.double().isfinite().all())
    }
    return json.dumps(ranges)
