"""Elementwise chains of steps on one or two streams."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pipec.backends.fpga.arithmetic import (
    ADDRESS,
    CONVERT,
    MEMORY,
    arithmetic,
    operators,
    step_depth,
    steps_cost,
)
from pipec.backends.fpga.cpp import cpp_type, literal
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Rows, Tables, Unit
from pipec.backends.fpga.engines.fixed import chain
from pipec.backends.fpga.engines.integer import limits, multiplier, narrow, real_type, rescaling
from pipec.backends.fpga.engines.parts import Table, in_tokens, weight
from pipec.backends.fpga.engines.steps import (
    BINARY,
    Mode,
    Step,
    affine_steps,
    function,
    mode_of,
    results,
)
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import Int8, int8_format, kind_of, multipliers, parse_fixed


@dataclass(frozen=True)
class Map(Rows):
    """Elementwise: ``for i in tokens: x = read in0 (y = read in1); steps; write x``.

    Both inputs are read in the same firing, and only one step may read ``in1``. No steps: a copy.
    """

    moves = True

    steps: tuple[Step, ...] = ()

    def fold(self, layer: Layer, target: int, dtype: str, block: int = 0) -> Folded:
        lanes = layer.row_lanes(target)
        cf = ceil_div(layer.channels, lanes)
        if dtype == "int8" and mode_of(layer.steps) is Mode.AFFINE:
            return _affine(layer, lanes)
        steps, tables = [], []
        for k, step in enumerate(layer.steps):
            period = step.period * cf if step.operand == "table" else 0
            steps.append(Step(step.op, step.operand, step.value, period))
            if step.table is not None:
                shape, kind = (period, lanes), real_type(dtype)
                cut = partial(in_tokens, lanes=lanes)
                tables.append(weight(f"table{k}", shape, step.table, kind, cut))
        nest = dataclasses.replace(self, lanes=lanes, steps=tuple(steps))
        converts = kind_of(read := layer.inputs[0].dtype) != dtype  # to float32, and from there
        depth = nest.depth(dtype, layer.clock_mhz) if steps else 1 + 2 * CONVERT * converts
        return Folded(nest, lanes, depth, tuple(tables), dtype=dtype if steps else read)

    def depth(self, dtype: str, clock_mhz: float) -> int:
        """Pipeline depth of its steps."""
        last, mode = arithmetic(dtype).last_latency, mode_of(self.steps)
        whole = mode is not Mode.REAL or self.steps[0].op == "affine"
        if kind_of(dtype) == "int8" and whole:
            return ADDRESS + MEMORY + (1 if mode is Mode.LOOKUP else 2 + last)
        table = MEMORY * any(step.operand == "table" for step in self.steps)
        real = kind_of(dtype) == "int8" or self._is_real(dtype)
        cores = operators(clock_mhz)
        back = cores.div + cores.add if kind_of(dtype) == "int8" else 0
        kind = "float32" if real else dtype
        steps = sum(step_depth(s.op, kind, clock_mhz) for s in self.steps)
        return table + steps + last + (CONVERT + 1) * real + back

    def _is_real(self, dtype: str) -> bool:
        """Whether fixed-point numbers are taken to float32 and back."""
        return parse_fixed(dtype) is not None and chain(self.steps, dtype) is None

    def logic(self, dtype: str) -> tuple[float, float]:
        if self._is_real(dtype):
            return steps_cost((*(s.op for s in self.steps), "convert"), self.lanes, "float32")
        if kind_of(dtype) == "int8":
            if any(step.op == "affine" for step in self.steps):
                return (0.0, _AFFINE_LUT * self.lanes)
            if (mode := mode_of(self.steps)) in _INTEGER_MAPS:
                return (0.0, _INTEGER_MAPS[mode] * self.lanes)
            dtype = "float32"
        return steps_cost((s.op for s in self.steps), self.lanes, dtype)

    def unit(self, engine: Engine) -> Unit:
        constants = self.look_up("ROWS C=channels LANES")
        if (unit := self._integer(engine, constants)) is not None:
            return unit
        whole = chain(self.steps, engine.dtype) if self.steps else ["return x;"]
        kind = "T" if whole else "real_t<T>"
        parameters, body, tables = [f"{kind} x"], [], []
        streamed = any(step.operand == "stream" for step in self.steps)
        if streamed:
            parameters.append(f"{kind} y")
        for k, step in enumerate(self.steps):
            operand = {"stream": "y", "table": f"t{k}"}.get(step.operand, "")
            if step.operand == "scalar" or step.op in ("leaky_relu", "elu"):
                operand = f"real_t<T>({literal(step.value, engine.dtype)})"
            if step.operand == "table":
                parameters.append(f"{kind} t{k}")
                tables.append(f"table{k}")
            body.append(f"x = ops::{step.op}(x{', ' if operand else ''}{operand});")
        functions = {f"{kind} op({', '.join(parameters)})": whole or [*body, "return x;"]}
        name = "map2" if streamed else "map1"
        return Unit(name, constants, functions, tables=tuple(tables))

    def _integer(self, engine: Engine, constants: Mapping[str, int]) -> Unit | None:
        """A chain that integers run; None if it needs float32, or nothing is quantised."""
        reads, writes = int8_format(engine.dtype), int8_format(engine.result)
        if reads is None or writes is None or not self.steps:
            return None
        x, y = cpp_type(engine.dtype), cpp_type(engine.result)
        constants = {**constants, **limits(engine)}
        if self.steps[0].op == "affine":
            body = f"return {narrow(engine)}(on_fabric(x.steps(), t0.multiplier) + t0.bias);"
            functions = {f"{y} op({x} x, rescale t0)": [body]}
            return Unit("map1", constants, functions, tables=("table0",))
        mode = mode_of(self.steps)
        if mode is Mode.LOOKUP:
            functions = {f"{y} op({x} x)": _lookup(results(self.steps, reads, writes), y)}
            return Unit("map1", constants, functions)
        if mode not in (Mode.SUM, Mode.PRODUCT):
            return None
        second = int8_format(engine.second)
        assert second is not None
        if mode is Mode.PRODUCT:
            found = f"on_fabric(int32_t(on_fabric(x.steps(), y.steps())), {multiplier(engine)})"
        else:
            a, b = sum_multipliers(self.steps[0].op, (reads, second), writes)[0]
            found = f"on_fabric(x.steps(), {a}) + on_fabric(y.steps(), {b})"
        head = f"{y} op({x} x, {cpp_type(engine.second)} y)"
        return Unit("map2", constants, {head: [f"return {narrow(engine)}({found});"]})

    def compute(self, layer: Layer, reads: Sequence[Tensor], table: Tables) -> Tensor:
        shape = (layer.rows, layer.channels)
        x = reads[0].reshape(shape)
        for step in layer.steps:
            if step.operand == "stream":
                x = BINARY[step.op](x, reads[1].reshape(shape))
            elif step.operand == "table":
                y = table(cast("Table", step.table)).reshape(step.period, -1)
                x = BINARY[step.op](x.reshape(-1, step.period, layer.channels), y).reshape(shape)
            else:
                x = function(step)(x)
        return x


_INTEGER_MAPS = {Mode.COPY: 0.0, Mode.LOOKUP: 40.0, Mode.SUM: 240.0, Mode.PRODUCT: 290.0}
"""LUTs per lane of a chain on 8-bit integers: a table of 256 bytes, or products on the fabric."""

_AFFINE_LUT = 170.0


def _affine(layer: Layer, lanes: int) -> Folded:
    """``x * table + table`` and clamps on 8-bit integers: one table for both."""
    count = affine_steps(layer.steps)
    period = math.lcm(*(s.period for s in layer.steps[:count]))
    period *= ceil_div(layer.channels, lanes)
    first = Step("affine", "table", period=period)
    rest = tuple(Step(s.op, s.operand, s.value) for s in layer.steps[count:])
    nest = Map(layer.rows, layer.channels, lanes, (first, *rest))
    table = dataclasses.replace(
        rescaling(layer, (period, lanes), lambda a: in_tokens(a, lanes)), role="table0"
    )
    return Folded(nest, lanes, nest.depth("int8", layer.clock_mhz), (table,))


def sum_multipliers(op: str, reads: tuple[Int8, Int8], writes: Int8) -> tuple[tuple[int, int], int]:
    """The multipliers of both operands of ``add``, ``sub`` or ``rsub``, and the shift."""
    signs = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}[op]
    ratios = [s * r.scale / writes.scale for s, r in zip(signs, reads, strict=True)]
    found, shift = multipliers(np.array(ratios))
    return (int(found[0]), int(found[1])), shift


def _lookup(values: NDArray[np.int8], y: str) -> list[str]:
    """A table that every lane reads in each cycle: a memory with as many ports."""
    rows = [", ".join(map(str, row)) for row in values.reshape(16, 16)]
    return [
        "static const int8_t result[256] = {",
        *(f"    {row}," for row in rows),
        "};",
        "#pragma HLS BIND_STORAGE variable = result type = rom_np",
        f"return {y}::of(result[x.raw + 128]);",
    ]
