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

from pipec.backends.fpga.lowering.layers import Lookup
from pipec.backends.fpga.lowering.network import Network
from pipec.errors import BackendError
from pipec.graph.ir import Graph, InputKind, tensor
from pipec.plan.model import Plan

RANDOM = "random"
COUNT = 8
"""Sets of inputs that are drawn for calibration, and held out to measure with."""
CALIBRATION, HELD_OUT = 1, 2
"""Seeds of both."""
KEPT = "held_out.npz"
"""Frames that were held out, as emitted: an array per input."""


def samples_of(
    plan: Plan, networks: Sequence[Network], seed: int, count: int = COUNT
) -> list[dict[str, Tensor]]:
    """Sets of the model's inputs, by name.

    Options of the plan: ``calibrate`` is ``random`` (the default) or the path of a ``.npz`` file
    with an array per input, frames along the first axis; ``input_ranges`` is JSON, input name to
    least and largest number. Random floats are uniform in that range (normal without one);
    integers too (row numbers of the smallest table without one).

    Args:
        plan: Its graph has the inputs.
        networks: Its stages.
        seed: Of the random numbers; a file's frames are taken in order, `HELD_OUT` from the end.
        count: Sets to draw, at most as many as a file has.

    Raises:
        BackendError: The file cannot be read, or does not fit the model.
    """
    graph, given = plan.graph, str(plan.options.get("calibrate", RANDOM))
    if given != RANDOM:
        frames = _read(Path(given), graph)
        return frames[-count:] if seed == HELD_OUT else frames
    ranges = json.loads(str(plan.options.get("input_ranges", "{}")))
    tables = [y.entries for n in networks for y in n.layers if isinstance(y, Lookup)]
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            name: _drawn(like, ranges.get(name), min(tables, default=2), generator)
            for name, like in _inputs(graph).items()
        }
        for _ in range(count)
    ]


def keep(frames: Sequence[Mapping[str, Tensor]], plan: Plan, directory: Path) -> None:
    """Keep frames of the plan's file beside what is emitted; nothing where it has none.

    Args:
        frames: Sets of the model's inputs.
        plan: Its options say where they are from.
        directory: Of what is emitted.
    """
    if str(plan.options.get("calibrate", RANDOM)) != RANDOM:
        columns = {name: np.stack([f[name].numpy() for f in frames]) for name in frames[0]}
        np.savez(directory / KEPT, allow_pickle=False, **columns)


def kept_frame(directory: Path, number: int) -> dict[str, Tensor] | None:
    """One of the frames that `keep` has kept, counted round and round; None if none were."""
    if not (directory / KEPT).is_file():
        return None
    with np.load(directory / KEPT) as file:
        columns = {name: file[name] for name in file.files}
    return {name: torch.from_numpy(a[number % len(a)].copy()) for name, a in columns.items()}


def source_of(plan: Plan) -> str:
    """What values were looked at on, in words."""
    given = str(plan.options.get("calibrate", RANDOM))
    return f"random inputs ({COUNT} frames)" if given == RANDOM else f"inputs of {given}"


def _inputs(graph: Graph) -> dict[str, Tensor]:
    kinds = (InputKind.INPUT, InputKind.VALUE)
    return {i.name: tensor(graph.nodes[i.node]) for i in graph.inputs if i.kind in kinds}


def _drawn(
    like: Tensor, given: tuple[float, float] | None, below: int, generator: torch.Generator
) -> Tensor:
    shape = tuple(like.shape)
    if like.dtype.is_floating_point:
        if given is None or given[0] == given[1]:
            return torch.randn(shape, generator=generator).to(like.dtype)
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (given[0] + (given[1] - given[0]) * drawn).to(like.dtype)
    low, high = (0, below - 1) if given is None else (int(given[0]), int(given[1]))
    if like.dtype is torch.bool:
        low, high = 0, 1
    return torch.randint(low, high + 1, shape, generator=generator).to(like.dtype)


def _read(path: Path, graph: Graph) -> list[dict[str, Tensor]]:
    """The frames of a ``.npz`` file; an array of exactly an input's shape is one frame."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise BackendError("calibration data cannot be read", where=path, got=error) from error
    columns = {}
    for name, like in _inputs(graph).items():
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
            "calibration data has another shape or kind than the input",
            where=where,
            got=f"{array.dtype}{list(array.shape)}",
            want=f"[frames, {', '.join(map(str, shape))}]",
        )
    return [torch.from_numpy(np.ascontiguousarray(a)).to(like.dtype) for a in array]


def input_ranges(examples: Mapping[str, Tensor]) -> str:
    """The option ``input_ranges`` for example inputs; those that are not finite are left out."""
    ranges = {
        name: [float(x.double().min()), float(x.double().max())]
        for name, x in examples.items()
        if x.numel() and not x.dtype.is_complex and bool(x.double().isfinite().all())
    }
    return json.dumps(ranges)
