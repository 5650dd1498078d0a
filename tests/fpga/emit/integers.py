"""The same plain execution (`tests.fpga.design.numeric`) in 8-bit integers.

Streams hold ``raw - zero``, whole numbers in float64, so that what moves data needs no other rule.
Independent of the C++: sums are numpy's, shifts are divisions of Python integers.
"""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.matmul import Matmul
from pipec.backends.fpga.engines.memory import Gather
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.reduce import Reduce
from pipec.backends.fpga.engines.route import Const
from pipec.backends.fpga.engines.vvu import Vvu
from pipec.backends.fpga.numbers import Int8, int8_format
from tests.fpga.design.numeric import Array, run, table


def steps_of(x: Array, dtype: str) -> Array:
    """Real numbers as steps of their format; other types as they are."""
    form = int8_format(dtype)
    if form is None:
        return x
    steps = np.rint(x.astype(np.float32) / np.float32(form.scale)).astype(np.float64)
    return np.asarray(np.clip(steps, -128 - form.zero, 127 - form.zero))


def _form(dtype: str) -> Int8:
    found = int8_format(dtype)
    assert found is not None
    return found


def narrowed(engine: Engine, product: Array) -> Array:
    """``product / 2**shift`` to the nearest even, the zero point on, clipped; as steps."""
    by, zero = engine.narrowing, _form(engine.result).zero
    assert by is not None
    flat = [round(Fraction(int(p), 1 << by.shift)) for p in product.reshape(-1)]
    raw = np.clip(np.array(flat, dtype=np.float64) + zero, by.low, by.high)
    return np.asarray(raw.reshape(product.shape) - zero)


def words(engine: Engine, role: str) -> tuple[Array, Array]:
    """Biases and multipliers of a table of type ``rescale``."""
    packed = table(engine, role).astype(np.int64)
    bias = (packed & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)
    return bias.astype(np.float64), (packed >> 32).astype(np.float64)


def run8(engine: Engine, args: Sequence[Array]) -> list[Array]:
    """One engine; those without integer arithmetic as in real numbers."""
    nest = engine.nest
    if int8_format(engine.dtype) is None or not engine.result:
        return run(nest, engine, args)
    if isinstance(nest, Mvu | Vvu):
        raw = args[0] + _form(engine.dtype).zero
        sums = run(dataclasses.replace(nest, bias=False), engine, [raw, *args[1:]])[0]
        bias, multiplier = (
            np.resize(a.reshape(-1, sums.shape[1]), sums.shape) for a in words(engine, "rescale")
        )
        assert np.abs(sums + bias).max(initial=0) < 2**31
        return [narrowed(engine, (sums + bias) * multiplier)]
    if isinstance(nest, Matmul):
        sums = run(dataclasses.replace(nest, scale=1.0), engine, args)[0]
        return [narrowed(engine, sums * _multiplier(engine))]
    if isinstance(nest, Reduce) and nest.op == "sum":
        sums = run(dataclasses.replace(nest, scale=1.0, table=0), engine, args)[0]
        if nest.table:
            factors = np.resize(words(engine, "rescale")[1], nest.n)[:, None]
            return [narrowed(engine, sums * factors)]
        return [narrowed(engine, sums * _multiplier(engine))]
    if isinstance(nest, Map) and nest.steps:
        return [_map(nest, engine, args)]
    if isinstance(nest, Norm):
        return [_through_reals(engine, args)]
    if isinstance(nest, Gather | Const):
        return [steps_of(run(nest, engine, args)[0], engine.result)]
    return run(nest, engine, args)


def _multiplier(engine: Engine) -> int:
    assert engine.narrowing is not None
    assert engine.narrowing.multiplier is not None
    return engine.narrowing.multiplier


def _through_reals(engine: Engine, args: Sequence[Array]) -> Array:
    types = [engine.dtype, engine.second or engine.dtype]
    reals = [a * _form(t).scale for a, t in zip(args, types, strict=False)]
    return steps_of(run(engine.nest, engine, reals)[0], engine.result)


def _map(nest: Map, engine: Engine, args: Sequence[Array]) -> Array:
    if engine.narrowing is None:
        return _through_reals(engine, args)
    if nest.steps[0].op == "affine":
        bias, multiplier = (np.resize(a, args[0].shape) for a in words(engine, "table0"))
        return narrowed(engine, args[0] * multiplier + bias)
    if nest.steps[0].op == "mul":
        return narrowed(engine, args[0] * args[1] * _multiplier(engine))
    # a sum: each operand's ratio of scales as a whole number over the common power of two
    signs = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}[nest.steps[0].op]
    ratios = [_form(t).scale / _form(engine.result).scale for t in (engine.dtype, engine.second)]
    whole = [s * round(r * 2**engine.narrowing.shift) for s, r in zip(signs, ratios, strict=True)]
    return narrowed(engine, args[0] * whole[0] + args[1] * whole[1])
