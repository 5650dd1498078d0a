"""Builds a stage design of hand-written engines, each between its own ports, and simulates it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipec.backends.fpga.csim.run import CSimulation, load_stages
from pipec.backends.fpga.design import DdrPort, Port, StageDesign, Stream
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.base import Engine, Nest
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.parts import Memory, Weight

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One engine under test: its streams, tables, an input and what must come out.

    ``inputs`` are (array [rows, channels], lanes); ``outputs`` likewise, as expected.
    """

    name: str
    nest: Nest
    inputs: Sequence[tuple[Array, int]]
    outputs: Sequence[tuple[Array, int]]
    tables: Mapping[str, Array] = field(default_factory=dict)
    memory: Memory = Memory.BRAM


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dtype_of(array: Array) -> str:
    return "int32" if array.dtype.kind == "i" else "float32"


def weight_of(role: str, array: Array, memory: Memory) -> Weight:
    return Weight(role, array.shape, "float32", memory, (role,), lambda: array)


def design_of(cases: Sequence[Case]) -> StageDesign:
    """One stage that holds every case's engine side by side."""
    engines, streams, ddr = list[Engine](), dict[str, Stream](), list[DdrPort]()
    ports: tuple[list[Port], list[Port]] = ([], [])
    for case in cases:
        names: tuple[list[str], list[str]] = ([], [])
        for side, arrays in enumerate((case.inputs, case.outputs)):
            for k, (array, lanes) in enumerate(arrays):
                name = f"{case.name}_{'xy'[side]}{k}"
                kind = dtype_of(array)
                rows, channels = array.shape
                streams[name] = Stream(name, rows, channels, lanes, kind, 4)
                ports[side].append(Port(name, name, name, array.shape, (0, 1), kind))
                names[side].append(name)
        weights = tuple(weight_of(role, a, case.memory) for role, a in case.tables.items())
        if case.memory is Memory.DDR:
            ddr.append(DdrPort(f"gmem_{case.name}", case.name, 512, 0, 0.0))
        inputs, outputs = map(tuple, names)
        engines.append(Engine(case.name, case.nest, inputs, outputs, weights=weights))
    inputs_of, outputs_of = map(tuple, ports)
    return StageDesign(
        "stage0",
        tuple(engines),
        streams,
        inputs_of,
        outputs_of,
        ddr=tuple(ddr),
        device="vcu118",
        part="xcvu9p-flga2104-2L-e",
    )


def simulate(cases: Sequence[Case], directory: Path) -> dict[str, torch.Tensor]:
    """Emit, compile and run the cases; every output by name."""
    design = design_of(cases)
    write_stage(design, directory, golden=None)
    (stage,) = load_stages([directory])
    return run(stage, cases)


def run(stage: CSimulation, cases: Sequence[Case]) -> dict[str, torch.Tensor]:
    return stage(
        {
            f"{case.name}_x{k}": torch.as_tensor(np.asarray(array)).to(
                getattr(torch, dtype_of(array))
            )
            for case in cases
            for k, (array, _) in enumerate(case.inputs)
        }
    )


def check(cases: Sequence[Case], directory: Path, tolerance: float = 1e-5) -> None:
    """Every output equals what the case says, relative to its largest magnitude."""
    found = simulate(cases, directory)
    wrong = {}
    for case in cases:
        for k, (want, _) in enumerate(case.outputs):
            got = found[f"{case.name}_y{k}"].double().numpy()
            error = float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))
            if not error <= tolerance:
                wrong[f"{case.name}[{k}]"] = error
    assert wrong == {}


def row_unit(op: str, lanes: int, channels: int, clock: float, taps: int = 1) -> Norm:
    """A row unit with all tables that it may have."""
    affine = op in ("layer_norm", "rms_norm")
    nest = Norm(
        3, channels, taps, lanes, op, eps=1e-5, size=5 if op == "lrn" else 0,
        alpha=1e-4, beta=0.75, k=1.0, scale=affine or op == "layer_norm_gradient", shift=affine,
    )  # fmt: skip
    return dataclasses.replace(nest, gaps=nest.drains("float32", clock))


def write_row_unit(nest: Norm, folder: Path) -> None:
    """Write a stage of it between its own ports."""
    x = np.zeros((nest.rows, nest.taps * nest.channels), np.float32)
    table = np.ones((nest.cf, nest.lanes))
    tables = {role: table for role in ("scale", "shift") if getattr(nest, role)}
    ends = [(x, nest.lanes)]
    case = Case("unit", nest, ends * (1 + nest.is_gradient), ends, tables)
    write_stage(design_of([case]), folder, golden=None)
