"""A network folded for a target interval: engines and streams.

Each layer takes its cheapest form and becomes one to three engines; where an edge has several
readers a FORK is put behind its writer, and where a reader wants other tokens than the writer makes
a width converter in front of it.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine, Folded, Layer, Nest
from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.memory import Load, beat_lanes
from pipec.backends.fpga.engines.mvu import Mvu, Product, word_interval
from pipec.backends.fpga.engines.network import NetPort, Network
from pipec.backends.fpga.engines.parts import Memory, Weight
from pipec.backends.fpga.engines.route import Fork
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.engines.window import Window
from pipec.backends.fpga.numbers import bits_of


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


def build_for(
    layer: Layer, target: int, dtype: str, block: int, known: dict[tuple[str, Folded], Built]
) -> Built:
    """The engines of a layer folded for a target; those of a form seen before are ``known``."""
    dtype = layer.arithmetic(dtype)
    form = layer.nest.fold(layer, target, dtype, block)
    if (layer.name, form) not in known:
        known[layer.name, form] = build(layer, form, dtype)
    return known[layer.name, form]


def build(layer: Layer, form: Folded, dtype: str) -> Built:
    """The engines of a layer: a window generator, the one that computes, a reader of weights."""
    if isinstance(layer.nest, Swg):
        swg, windows = swg_of(layer, layer.nest, form, dtype)
        return Built((swg,), (), windows, layer.lanes_of(form))
    name = f"{layer.name}_{form.nest.label or form.nest.kind()}"
    inputs = tuple(f"{layer.name}_in{k}" for k in range(len(layer.inputs)))
    before: tuple[Engine, ...] = ()
    streams: tuple[Stream, ...] = ()
    if layer.window is not None:
        swg, windows = swg_of(layer, layer.window, form, dtype)
        before, streams = (swg,), (dataclasses.replace(windows, consumer=name),)
        inputs = (windows.name, *inputs[1:])
    out = Stream(
        f"{layer.name}_out", layer.rows // form.merged, layer.channels * form.merged, form.lanes,
        layer.dtype or form.dtype or dtype, producer=name,
    )  # fmt: skip
    engine = Engine(
        name, form.nest, inputs, (out.name,), form.ii, form.depth, form.weights,
        node=layer.node, origin=layer.origin, **_numbers(layer, form.dtype or dtype),
    )  # fmt: skip
    found = Built((*before, engine), streams, out, layer.lanes_of(form))
    if isinstance(form.nest, Mvu) and form.nest.streamed:
        return _with_load(layer, found, form.nest)
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


def swg_of(layer: Layer, window: Window, form: Folded, dtype: str) -> tuple[Engine, Stream]:
    """The window generator of a layer, and the stream of windows.

    Engines with a kernel per channel take the windows of one token after the other.
    """
    lanes, dtype = layer.lanes_of(form)[0], layer.inputs[0].dtype if layer.dtype else dtype
    nest, taps = layer.nest, window.taps
    groups = nest.groups if isinstance(nest, Product) else int(isinstance(nest, Swg))
    channels = window.cf // max(groups, 1)
    cf = max(groups, 1) * ceil_div(channels, lanes)
    assert isinstance(window, Swg)
    generator = dataclasses.replace(
        window, cf=cf, lanes=lanes, groups=groups or cf, kp=form.kp,
        pad_value=nest.outside,
    )  # fmt: skip
    pixels = window.batch * window.oh * window.ow
    if form.kp == 1 and groups:
        rows, width = pixels * groups * taps, channels
    else:
        rows, width = pixels * cf * taps // form.kp, lanes * form.kp
    name = f"{layer.name}_swg"
    windows = Stream(f"{layer.name}_windows", rows, width, lanes * form.kp, dtype, producer=name)
    engine = Engine(
        name, generator, (f"{layer.name}_in0",), (windows.name,), depth=3, dtype=dtype,
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    return engine, windows


def _with_load(layer: Layer, built: Built, nest: Mvu) -> Built:
    """The same with its weights read from DDR by a LOAD engine."""
    *before, mvu = built.engines
    words, lanes = nest.groups * nest.nf * nest.sf, nest.pe * nest.simd
    matrix, *tables = mvu.weights
    stored = Weight(
        "weight", (words, lanes), matrix.dtype, Memory.DDR, matrix.sources,
        lambda: matrix.values().reshape(words, lanes),
    )  # fmt: skip
    repeat = nest.n // nest.block
    stream = Stream(
        f"{layer.name}_words", repeat * words, lanes, lanes, matrix.dtype, 64,
        f"{layer.name}_load", mvu.name,
    )  # fmt: skip
    loads = Load(words, lanes, repeat, beat_lanes(lanes, matrix.dtype))
    load = Engine(
        f"{layer.name}_load", loads, (), (stream.name,),
        ii=word_interval(lanes, matrix.dtype), depth=4, dtype=matrix.dtype, weights=(stored,),
        node=layer.node, origin=layer.origin,
    )  # fmt: skip
    fed = dataclasses.replace(mvu, inputs=(*mvu.inputs, stream.name), weights=tuple(tables))
    return Built((*before, load, fed), (*built.streams, stream), built.output, built.reads)


WIRE_BITS = 512
"""Width of an AXI4-Stream port of a stage."""


def wire_lanes(channels: int, dtype: str) -> int:
    """Lanes of a stage's input or output: as many elements as its port is wide, at most a row.

    Both ends of a link compute it from the tensor alone, so that they agree.
    """
    return min(channels, WIRE_BITS // bits_of(dtype))


@dataclass
class _Assembly:
    """Engines and streams under construction.

    Attributes:
        engines: By name, in topological order.
        streams: By name.
    """

    engines: dict[str, Engine] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)

    def add(self, layer: Layer, built: Built, readers: list[Stream]) -> None:
        """Add the engines of a layer, and lead its output to its readers."""
        self.engines |= {engine.name: engine for engine in built.engines}
        self.streams |= {stream.name: stream for stream in built.streams}
        if readers:
            self.connect(built.output, readers, (layer.node, layer.origin))

    def connect(self, source: Stream, readers: list[Stream], facts: tuple[str, str]) -> None:
        """Lead a written stream to its readers, through a FORK and width converters as needed.

        The stream is as its producer writes it, not yet added; facts are node and origin.
        """
        branches = [source] * len(readers)
        if len(readers) > 1:
            trunk = source.producer or source.name
            fork = f"{trunk}_fork"
            branches = [
                dataclasses.replace(source, name=f"{fork}_{k}", producer=fork)
                for k in range(len(readers))
            ]
            self._add(fork, Fork(source.tokens, len(readers)), source, branches, 1, facts)
        for branch, reader in zip(branches, readers, strict=True):
            typed = dataclasses.replace(reader, dtype=branch.dtype, producer=branch.producer)
            self._lead(branch, typed, facts)

    def _lead(self, stream: Stream, final: Stream, facts: tuple[str, str]) -> None:
        if _same_tokens(stream, final):  # the output takes the name under which its reader knows it
            self.streams[final.name] = final
            if final.producer is not None:
                producer = self.engines[final.producer]
                outputs = tuple(final.name if o == stream.name else o for o in producer.outputs)
                self.engines[final.producer] = dataclasses.replace(producer, outputs=outputs)
            return
        name = f"{final.name}_dwc"
        self._add(name, converter(stream, final), stream, [final], 2, facts)
        self.streams[final.name] = dataclasses.replace(final, producer=name)

    def _add(
        self, name: str, nest: Nest, stream: Stream, outputs: list[Stream], depth: int,
        facts: tuple[str, str],
    ) -> None:  # fmt: skip
        """Add an engine behind a stream."""
        self.streams[stream.name] = dataclasses.replace(stream, consumer=name)
        self.engines[name] = Engine(
            name, nest, (stream.name,), tuple(s.name for s in outputs), depth=depth,
            dtype=stream.dtype, node=facts[0], origin=facts[1],
        )  # fmt: skip


def _same_tokens(have: Stream, want: Stream) -> bool:
    if have.lanes != want.lanes:
        return False
    return have.channels == want.channels or not (
        have.channels % have.lanes or want.channels % want.lanes
    )


def converter(have: Stream, want: Stream) -> Dwc:
    """The width converter between two streams of the same elements."""
    both = math.lcm(have.channels, want.channels)
    reads = {"channels_in": have.channels, "lanes_in": have.lanes}
    writes = {"channels_out": want.channels, "lanes_out": want.lanes}
    rows = {"rows_in": both // have.channels, "rows_out": both // want.channels}
    return Dwc(have.rows * have.channels // both, **rows, **reads, **writes)


def design_at(
    network: Network,
    target: int,
    *,
    name: str = "stage0",
    dtype: str = "float32",
    streamed: Mapping[str, int] | None = None,
    built: dict[tuple[str, Folded], Built] | None = None,
) -> StageDesign:
    """The design with the cheapest factors for a target interval, limits not looked at.

    Args:
        network: What is computed.
        target: Cycles per frame to aim at.
        name: Stage name.
        dtype: Type of the data streams.
        streamed: Dense layer to vectors per pass over weights that are streamed from DDR.
        built: Engines of layers as they were folded before; added to.

    Returns:
        The design; FIFO depths are not yet chosen.
    """
    parts, blocks, known = _Assembly(), streamed or {}, {} if built is None else built
    engines = {y.name: build_for(y, target, dtype, blocks.get(y.name, 0), known)
               for y in network.layers}  # fmt: skip
    readers = _readers(network, engines)
    inputs = []
    for port in network.inputs:
        lanes = wire_lanes(port.use.channels, port.use.dtype)
        wire = Stream(
            f"{port.use.edge}_axis", port.use.rows, port.use.channels, lanes, port.use.dtype
        )
        found = readers[port.use.edge]
        inputs.append(_port(port, wire.name if found else ""))
        if not found:
            continue
        if len(found) == 1 and _same_tokens(wire, found[0]):
            inputs[-1] = _port(port, found[0].name)
        parts.connect(wire, found, (port.node, f"input {port.value}"))
    for layer in network.layers:
        parts.add(layer, engines[layer.name], readers[layer.name])
    outputs = tuple(_port(p, f"out_{k}_{p.node}") for k, p in enumerate(network.outputs))
    return StageDesign(
        name, tuple(parts.engines.values()), parts.streams, tuple(inputs), outputs, precision=dtype
    )


def _port(port: NetPort, stream: str) -> Port:
    return Port(port.value, port.node, stream, port.shape, port.order, port.dtype)


def _readers(network: Network, built: Mapping[str, Built]) -> dict[str, list[Stream]]:
    """Edge to the streams in which it is read; type and producer are still open."""
    found: dict[str, list[Stream]] = defaultdict(list)
    for layer in network.layers:
        own = built[layer.name]
        for k, (use, lanes) in enumerate(zip(layer.inputs, own.reads, strict=True)):
            name = f"{layer.name}_in{k}"
            consumer = next(e.name for e in own.engines if name in e.inputs)
            found[use.edge].append(Stream(name, use.rows, use.channels, lanes, consumer=consumer))
    for k, port in enumerate(network.outputs):
        use, lanes = port.use, wire_lanes(port.use.channels, port.use.dtype)
        found[use.edge].append(Stream(f"out_{k}_{port.node}", use.rows, use.channels, lanes))
    return found
