"""The engines of one layer under its factors, with their tables cut into tiles."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from pipec.backends.fpga.design import Stream
from pipec.backends.fpga.engines.base import Engine, Folded, Layer
from pipec.backends.fpga.engines.memory import Load
from pipec.backends.fpga.engines.mvu import Mvu, Product, word_interval
from pipec.backends.fpga.engines.parts import Memory, Weight
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.engines.window import Window


@dataclass(frozen=True)
class Built:
    """Engines of one layer.

    Attributes:
        engines: The first one reads the layer's inputs, the last one writes its output.
        streams: Streams among them.
        output: The stream that the last one writes, its consumer still open.
        reads: Elements of a token of every input.
    """

    engines: tuple[Engine, ...]
    streams: tuple[Stream, ...]
    output: Stream
    reads: tuple[int, ...]


def built_at(
    layer: Layer, target: int, dtype: str, block: int, known: dict[tuple[str, Folded], Built]
) -> Built:
    """The engines of a layer folded for a target; those of a form seen before are ``known``."""
    dtype = layer.arithmetic(dtype)
    made = layer.nest.folded(layer, target, dtype, block)
    if (layer.name, made) not in known:
        known[layer.name, made] = build(layer, made, dtype)
    return known[layer.name, made]


def build(layer: Layer, made: Folded, dtype: str) -> Built:
    """The engines of a layer: a window generator, the one that computes, a reader of weights.

    Args:
        layer: Any layer.
        made: What folding makes of it.
        dtype: Type in which it computes.
    """
    if isinstance(layer.nest, Swg):
        swg, windows = swg_of(layer, layer.nest, made, dtype)
        return Built((swg,), (), windows, layer.lanes_of(made))
    name = f"{layer.name}_{made.nest.label or made.nest.kind()}"
    inputs = tuple(f"{layer.name}_in{k}" for k in range(len(layer.inputs)))
    before: tuple[Engine, ...] = ()
    streams: tuple[Stream, ...] = ()
    if layer.window is not None:
        swg, windows = swg_of(layer, layer.window, made, dtype)
        before, streams = (swg,), (dataclasses.replace(windows, consumer=name),)
        inputs = (windows.name, *inputs[1:])
    out = Stream(
        f"{layer.name}_out", layer.rows // made.merged, layer.channels * made.merged, made.lanes,
        layer.dtype or made.dtype or dtype, producer=name,
    )  # fmt: skip
    engine = Engine(
        name, made.nest, inputs, (out.name,), made.ii, made.depth, made.weights,
        node=layer.node, origin=layer.origin, **_numbers(layer, made.dtype or dtype),
    )  # fmt: skip
    found = Built((*before, engine), streams, out, layer.lanes_of(made))
    if isinstance(made.nest, Mvu) and made.nest.streamed:
        return _with_load(layer, found, made.nest, dtype)
    return found


def _numbers(layer: Layer, dtype: str) -> dict[str, Any]:
    """Element types of the engine that writes a layer's output, of 8-bit integers the formats."""
    if not layer.dtype:
        return {"dtype": dtype}
    reads = [use.dtype for use in layer.inputs if use.dtype != "int32"] or [layer.dtype]
    return {
        "dtype": reads[0], "second": reads[-1] if len(reads) == 2 else "", "result": layer.dtype,
        "narrowing": layer.rescale,
    }  # fmt: skip


def swg_of(layer: Layer, window: Window, made: Folded, dtype: str) -> tuple[Engine, Stream]:
    """The window generator of a layer, and the stream of windows.

    Engines with a kernel per channel take the windows of one token after the other.
    """
    lanes, dtype = layer.lanes_of(made)[0], layer.inputs[0].dtype if layer.dtype else dtype
    nest, taps = layer.nest, window.taps
    groups = nest.groups if isinstance(nest, Product) else int(isinstance(nest, Swg))
    channels = window.cf // max(groups, 1)
    cf = max(groups, 1) * ceil_div(channels, lanes)
    assert isinstance(window, Swg)
    generator = dataclasses.replace(
        window, cf=cf, lanes=lanes, groups=groups or cf, kp=made.kp,
        pad_value=nest.outside,
    )  # fmt: skip
    pixels = window.batch * window.oh * window.ow
    if made.kp == 1 and groups:
        rows, width = pixels * groups * taps, channels
    else:
        rows, width = pixels * cf * taps // made.kp, lanes * made.kp
    name = f"{layer.name}_swg"
    windows = Stream(f"{layer.name}_windows", rows, width, lanes * made.kp, dtype, producer=name)
    engine = Engine(
        name, generator, (f"{layer.name}_in0",), (windows.name,), depth=3, dtype=dtype,
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    return engine, windows


def _with_load(layer: Layer, made: Built, nest: Mvu, dtype: str) -> Built:
    """The same with its weights read from DDR by a LOAD engine."""
    *before, mvu = made.engines
    words, lanes = nest.groups * nest.nf * nest.sf, nest.pe * nest.simd
    matrix, *tables = mvu.weights
    stored = Weight(
        "weight", (words, lanes), dtype, Memory.DDR, matrix.sources,
        lambda: matrix.values().reshape(words, lanes),
    )  # fmt: skip
    repeat = nest.n // nest.block
    stream = Stream(
        f"{layer.name}_words", repeat * words, lanes, lanes, dtype, 64,
        f"{layer.name}_load", mvu.name,
    )  # fmt: skip
    load = Engine(
        f"{layer.name}_load", Load(words, lanes, repeat), (), (stream.name,),
        ii=word_interval(lanes, dtype), depth=4, dtype=dtype, weights=(stored,),
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    fed = dataclasses.replace(mvu, inputs=(*mvu.inputs, stream.name), weights=tuple(tables))
    return Built((*before, load, fed), (*made.streams, stream), made.output, made.reads)
