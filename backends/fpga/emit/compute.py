"""How engines are written where fields of their nest are not all that is said."""

import math
from collections.abc import Sequence

from pipec.backends.fpga.design import Engine
from pipec.backends.fpga.emit import integer
from pipec.backends.fpga.emit.cpp import literal
from pipec.backends.fpga.emit.unit import Unit, constants_of
from pipec.backends.fpga.factors import SMALL_BLOCK
from pipec.backends.fpga.int8 import int8_format
from pipec.backends.fpga.lowering.view import strides_of
from pipec.backends.fpga.nests import Map, Matmul, Mvu, Norm, Reduce, Swg, Vvu
from pipec.backends.fpga.routing import Concat, Perm
from pipec.backends.fpga.swg import image_cycles, ring_of
from pipec.backends.fpga.training.nests import RowGradient


def swg(engine: Engine, nest: Swg) -> Unit:
    """Sliding-window generator."""
    names = "BATCH H W CF LANES KH KW SH SW DH DW PT PL OH OW GROUPS KP"
    constants = constants_of(nest, names) | {"FIRINGS": image_cycles(nest)}
    if not nest.is_line:
        ring = ring_of(nest)
        constants |= {"LEAD": ring.lead, "START": ring.start, "SLOTS": ring.slots}
    name = "swg_line" if nest.is_line else "swg_ring"
    pad = literal(nest.pad_value, engine.dtype)
    return Unit("swg.h", name, constants, {"real_t<T> pad()": [f"return {pad};"]})


def mvu(engine: Engine, nest: Mvu) -> Unit:
    """Matrix-vector unit: order A, order B, or blocks of vectors over streamed weights."""
    constants = constants_of(nest, "N GROUPS NF SF PE SIMD PARTIAL BLOCK")
    function = "mvu_block" if nest.block > 1 else f"mvu_{nest.order.lower()}"
    tables = ("weight", bias_of(engine))[nest.streamed :]
    constants |= integer.limits(engine)
    return Unit("mvu.h", function, constants, tables=tables, extra_inputs_last=True)


def bias_of(engine: Engine) -> str:
    """What is added to the sums, and of 8-bit integers what takes them back to 8 bits."""
    return "rescale" if engine.narrowing is not None else "bias?no_bias"


def vvu(engine: Engine, nest: Vvu) -> Unit:
    """Vector-vector unit (depthwise convolution)."""
    constants = constants_of(nest, "N CF KS=taps PARTIAL KP LANES")
    constants["KS"] //= nest.kp
    constants |= integer.limits(engine)
    return Unit("vvu.h", "vvu", constants, tables=("weight", bias_of(engine)))


def reduce(engine: Engine, nest: Reduce) -> Unit:
    """Pooling and reduction over rows."""
    constants = constants_of(nest, "N WINDOW CF LANES KP PARTIAL")
    op = "add" if nest.op == "sum" else nest.op
    functions = {"term_t<T> combine(term_t<T> x, term_t<T> y)": [f"return ops::{op}(x, y);"]}
    if engine.result and int8_format(engine.dtype) is not None:
        return integer.reduce(engine, nest, constants, functions)
    if nest.table:
        return Unit("reduce.h", "reduce", constants, functions, tables=("scale",))
    scale = "engine::unscaled()" if nest.scale == 1 else literal(nest.scale, engine.dtype)
    return Unit("reduce.h", "reduce", constants, functions, arguments=(scale,))


def elementwise(engine: Engine, nest: Map) -> Unit:
    """Elementwise chain: its steps become the lines of ``op``."""
    constants = constants_of(nest, "ROWS C=channels LANES")
    if (unit := integer.elementwise(engine, nest, constants)) is not None:
        return unit
    parameters, body, tables = ["real_t<T> x"], [], []
    streamed = any(step.operand == "stream" for step in nest.steps)
    if streamed:
        parameters.append("real_t<T> y")
    for k, step in enumerate(nest.steps):
        operand = {"stream": "y", "table": f"t{k}"}.get(step.operand, "")
        if step.operand == "scalar" or step.op in ("leaky_relu", "elu"):
            operand = f"real_t<T>({literal(step.value, engine.dtype)})"
        if step.operand == "table":
            parameters.append(f"real_t<T> t{k}")
            tables.append(f"table{k}")
        body.append(f"x = ops::{step.op}(x{', ' if operand else ''}{operand});")
    functions = {f"real_t<T> op({', '.join(parameters)})": [*body, "return x;"]}
    name = "map2" if streamed else "map1"
    return Unit("map.h", name, constants, functions, tables=tuple(tables))


def norm(engine: Engine, nest: Norm) -> Unit:
    """Row units: softmax, normalisations, local response."""
    constants = constants_of(nest, "ROWS TAPS C=channels LANES GAP")
    if nest.op in ("softmax", "log_softmax"):
        return Unit("norm.h", "softmax", {**constants, "LOG": nest.op == "log_softmax"})
    if nest.op == "lrn":
        constants |= {"BEFORE": (nest.size - 1) // 2, "AFTER": nest.size // 2}
        k, alpha, beta = (literal(v, engine.dtype) for v in (nest.k, nest.alpha, nest.beta))
        size = literal(nest.size, engine.dtype)
        body = [f"return x / ops::pow({k} + {alpha} / {size} * sum, {beta});"]
        return Unit("norm.h", "lrn", constants, {"real_t<T> op(real_t<T> x, real_t<T> sum)": body})
    eps = {"real_t<T> eps()": [f"return {literal(nest.eps, engine.dtype)};"]}
    tables = ("scale?no_table", "shift?no_table")
    return Unit("norm.h", nest.op, constants, eps, tables=tables)


def row_gradient(engine: Engine, nest: RowGradient) -> Unit:
    """Gradients of softmax and layer normalisation."""
    constants = constants_of(nest, "ROWS TAPS C=channels LANES GAP")
    if nest.op != "layer_norm":
        return Unit("rowgrad.h", "softmax_gradient", {**constants, "LOG": nest.op == "log_softmax"})
    eps = {"T eps()": [f"return {literal(nest.eps, engine.dtype)};"]}
    return Unit("rowgrad.h", "layer_norm_gradient", constants, eps, tables=("scale?no_table",))


def matmul(engine: Engine, nest: Matmul) -> Unit:
    """Product of two activations."""
    names = "BLOCKS OUTER GROUPS INNER NF TAPS C=channels SF PE SIMD PARTIAL LOAD B_LANES"
    constants = constants_of(nest, names) | {"B_C": nest.b_sizes[-1]}
    place = [
        *digits("i", nest.b_sizes),
        *(f"const int {role} = {_number(nest, role)};" for role in ("g", "n", "k")),
        "return {g, n, k};",
    ]
    finish = f"return real_t<T>(sum) * {literal(nest.scale, engine.dtype)};"
    functions = {
        "real_t<T> finish(sum_t<T> sum)": [finish],
        "engine::b_place place(int i)": place,
    }
    if engine.narrowing is not None:
        functions = integer.finish(engine) | {k: v for k, v in functions.items() if "place" in k}
    constants |= integer.limits(engine)
    return Unit("matmul.h", "matmul", constants, functions)


def digits(name: str, sizes: Sequence[int]) -> list[str]:
    """Lines that split a row-major index into its axes ``i0, i1, ...``.

    Example:
        >>> digits("i", (2, 3))
        ['const int i0 = i / 3;', 'const int i1 = i % 3;']
    """
    lines = []
    for axis in range(len(sizes)):
        inner = math.prod(sizes[axis + 1 :])
        term = name if inner == 1 else f"{name} / {inner}"
        if axis:
            term = f"{term} % {sizes[axis]}"
        lines.append(f"const int {name}{axis} = {term};")
    return lines


def _number(nest: Matmul, role: str) -> str:
    """The axes of B with that role as one row-major number."""
    axes = [axis for axis, r in enumerate(nest.b_roles) if r == role]
    terms = []
    for position, axis in enumerate(axes):
        inner = math.prod(nest.b_sizes[a] for a in axes[position + 1 :])
        terms.append(f"i{axis} * {inner}" if inner > 1 else f"i{axis}")
    return " + ".join(terms) or "0"


def concat(engine: Engine, nest: Concat) -> Unit:
    """Joins streams along one axis."""
    sizes = ", ".join(map(str, nest.sizes))
    body = [f"constexpr int sizes[] = {{{sizes}}};", "return sizes[port];"]
    constants = {"OUTER": nest.outer, "PORTS": len(nest.sizes)}
    return Unit("route.h", "concat", constants, {"int size(int port)": body}, outputs_first=True)


def perm(engine: Engine, nest: Perm) -> Unit:
    """Reorders the elements of a block."""
    if nest.turns and nest.lanes_in > 1 and nest.elements > SMALL_BLOCK:
        sizes = constants_of(nest, "BLOCKS ROWS=channels_out C=channels_in LANES=lanes_in")
        return Unit("transpose.h", "transpose", sizes)
    names = "BLOCKS ELEMENTS C_IN=channels_in LANES_IN READS C_OUT=channels_out LANES_OUT WRITES"
    constants = constants_of(nest, names)
    return Unit("perm.h", "perm", constants, {"int from(int i)": permuted(nest.sizes, nest.order)})


def permuted(sizes: tuple[int, ...], order: tuple[int, ...]) -> list[str]:
    """Lines that take an index of the transposed block to one of the block.

    Example:
        >>> permuted((2, 3), (1, 0))
        ['const int i0 = i / 2;', 'const int i1 = i % 2;', 'return i0 + i1 * 3;']
    """
    strides = strides_of(sizes)
    steps = [strides[axis] for axis in order]
    terms = [f"i{k} * {step}" if step > 1 else f"i{k}" for k, step in enumerate(steps)]
    return [*digits("i", [sizes[axis] for axis in order]), f"return {' + '.join(terms)};"]
