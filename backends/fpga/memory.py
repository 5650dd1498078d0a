"""What engines and memories take of a board, and where tables, buffers and FIFOs lie.

Closed forms, to be read as estimates. DSP and RAM counts follow the primitives' shapes (half a
block RAM: 512x36 .. 16384x1 bits, URAM: 4096x72). `benchmarks.vitis_resources` compares them with
AMD's synthesis reports. Memories lie in LUTs, block RAM or UltraRAM, within the board's limits.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_array

from pipec.backends.fpga.design import StageDesign, Stream
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.parts import BURST, OUTSTANDING, Memory, Resources, lut_ram
from pipec.backends.fpga.engines.tiles import ceil_div
from pipec.backends.fpga.numbers import bits_of, sum_bits
from pipec.backends.fpga.tables import TABLES, pointers, scalars

Numbers = NDArray[np.float64]
CHOICE_LUT = 9
"""A multiplexer of two inputs, however wide, as AMD's reports price it: 2 to 32 bits alike."""
CONTROL_LUT = 4 * CHOICE_LUT + 4 * 2
"""Start, end and first iteration of a loop: multiplexers of one bit, and gates."""
CARRY_LUT = 7
"""An integer addition, or a comparison, takes so many more than it has bits."""
COUNTER_BITS = 32
"""Bits of a counter of an engine: an ``int``, as frames are counted in the same loop."""
UPDATED = 3
"""LUTs and flip-flops per bit of a word that a loop reads and writes: chosen, changed, held."""
VALID_FF, STAGE_FF = 2, 20
"""Of a stage of the pipeline: whether it works, and on the last iteration; if a loop updates a
memory, also the address, up to the stage that writes, for so long as a shift register holds."""
SHIFT_REGISTER = 32
"""Depth up to which a FIFO is a shift register in LUTs; longer delays take no more flip-flops."""
ARGUMENT = Resources(lut=64, ff=35)
"""The register of 32 bits of a kernel's argument, as in `registers`."""
LINK_SHELL = Resources(lut=35_219, ff=86_269, bram36=91.5)
"""A 100G network core (FINN+ platform tables)."""
DDR_SHELL = Resources(lut=33_256, ff=44_889, bram36=99.5)
HBM_SHELL = Resources(lut=10_718, ff=21_793, bram36=4)
"""A DDR4 controller, and what HBM has for all channels together (FINN+ platform tables)."""
LUT_MEMORY_LIMIT = 0.40
"""Share of the LUTs that may serve as memory."""


def bram36(width: int, depth: int) -> float:
    """Block RAMs for ``depth`` words of ``width`` bits; halves are used one by one.

    Example:
        >>> bram36(256, 512), bram36(64, 4608), bram36(36, 2048), bram36(32, 256)
        (4.0, 9.0, 2.0, 0.5)
    """
    shapes = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
    return min(ceil_div(width, w) * ceil_div(depth, d) for w, d in shapes) / 2


def uram(width: int, depth: int) -> int:
    """UltraRAMs; narrow words share a row.

    Example:
        >>> uram(144, 8192), uram(72, 4096), uram(32, 8192)
        (4, 1, 1)
    """
    if width <= 36:
        return ceil_div(depth, 4096 * (72 // width))
    return ceil_div(width, 72) * ceil_div(depth, 4096)


def check_limits(names: Sequence[str], used: Numbers, limits: Numbers) -> tuple[str, ...]:
    """The limits that are exceeded, in words.

    Example:
        >>> check_limits(("DSP", "FF"), np.array([1_200.5, 9.0]), np.array([1_000.0, 9.0]))
        ('1,201 DSP of 1,000 (201 too many)',)
    """
    taken, most = np.ceil(used - np.minimum(limits, 0.0)), np.floor(np.maximum(limits, 0.0))
    return tuple(
        f"{taken[k]:,.0f} {names[k]} of {most[k]:,.0f} ({taken[k] - most[k]:,.0f} too many)"
        for k in np.flatnonzero(used > limits * (1 + 1e-9)).tolist()
    )


def adapter(bits: int, *, reads: bool) -> Resources:
    """An m_axi adapter of one direction; what is read has room for all bursts asked for.

    AMD reports 637 LUTs and 671 flip-flops at 32 bits, 2,720 and 2,652 at 1,024 (Vitis HLS 2025.1).
    """
    wide = 1 << max(bits - 1, 31).bit_length()
    memory = bram36(wide, BURST * OUTSTANDING) if reads else 0.0
    return Resources(lut=570 + 2.1 * wide, ff=607 + 2.0 * wide, bram36=memory)


def interconnect(bits: int) -> Resources:
    """What leads an m_axi adapter of one direction to memory: a SmartConnect, or that of a channel.

    910 LUTs and 904 flip-flops at 64 bits (Analog Devices, pull request 1054 of their hdl, Vivado
    2023.1); about 5,000 and 6,500 for a channel of HBM, in both directions at 512 (RapidStream).
    """
    return Resources(lut=682 + 3.5625 * bits, ff=568 + 5.25 * bits)


def registers(words: int) -> Resources:
    """Registers of a kernel's arguments, of so many words of 32 bits, which a host writes.

    AMD reports 234 LUTs and 151 flip-flops with 3 words, 490 and 291 with 7 (Vitis HLS 2021).
    """
    return Resources(lut=42 + ARGUMENT.lut * words, ff=46 + ARGUMENT.ff * words)


def port(bits: int) -> Resources:
    """An AXI4-Stream port: its loop, and a register slice.

    That holds two beats, each with two bits more per byte (TKEEP, TSTRB) and TLAST.
    """
    beat = bits + bits // 4 + 1
    return with_control(0.0, 0.0, 1, 2, 0.0, word=bits) + Resources(lut=beat, ff=2 * beat)


def interface(*kernels: StageDesign) -> Resources:
    """What kernels have besides engines: ends of streams, arguments, one reader of all tables each.

    Pointers of engines count there (`logic`).
    """
    found = Resources()
    for kernel in kernels:
        images = [p for p in pointers(kernel) if p.bundle == TABLES]
        found += registers(2 * len(images) + len(scalars(kernel)))
        if images:
            found += adapter(32, reads=True) + interconnect(32)
        for p in (p for p in (*kernel.inputs, *kernel.outputs) if p.stream):
            found += port(kernel.streams[p.stream].token_bits)
    return found


def logic(engine: Engine) -> Resources:
    """DSPs, LUTs and flip-flops of an engine, its memories not counted; adapters are.

    A table on the chip has a loop that fills it, once.
    """
    nest, dtype = engine.nest, engine.dtype
    word, _ = nest.buffer(bits_of(dtype), sum_bits(dtype))
    updated, ports = word if nest.updates else 0, len(engine.inputs) + len(engine.outputs)
    logic = nest.logic(dtype)
    found = with_control(*logic, nest.additions, engine.depth, updated, word=word, ports=ports)
    for bits, reads in (adapters := nest.adapters(dtype)):
        found += adapter(bits, reads=reads) + interconnect(bits)
    if adapters:
        found += ARGUMENT + ARGUMENT  # a pointer has two words
    for w in (w for w in engine.weights if w.memory is not Memory.DDR):
        count = (w.words * w.lanes).bit_length()
        found += with_control(0.0, 0.0, 2, 3, 0.0, word=w.word_bits, ports=0, bits=count)
    return found


def with_control(
    dsp: float, lut: float, additions: int, depth: int, updated: float, *,
    word: float = 0.0, ports: int = 2, bits: int = COUNTER_BITS,
) -> Resources:  # fmt: skip
    """A pipelined loop.

    Args:
        dsp: DSPs of its operators.
        lut: Their LUTs, each with two flip-flops: operands and results are registered.
        additions: Integer additions of its counters and addresses. Each has two multiplexers:
            a counter begins anew, an address is one of two.
        depth: Stages. Only in more than two does a word, or its address, wait for a memory.
        updated: Bits of the words of memory that it reads and writes.
        word: Bits of what it moves from one place to another; operators register it themselves.
        ports: FIFOs that it reads or writes, each with a handshake.
        bits: Bits of a counter. A comparison finds the last iteration; registers hold the counter
            of the whole loop, those of the loops that it is made of, and an address.
    """
    sums = bits + CARRY_LUT + additions * (bits + CARRY_LUT + 2 * CHOICE_LUT)
    control = CONTROL_LUT + sums + CHOICE_LUT * ports + UPDATED * updated
    waiting = bits + word * (not lut) if depth > 2 else 0
    travels = min(depth, SHIFT_REGISTER) - 1 if updated else 0
    stages = VALID_FF * depth + (STAGE_FF - VALID_FF) * travels
    registers = 2 * bits + waiting + stages + UPDATED * updated
    return Resources(dsp=dsp, lut=lut + control, ff=2 * lut + registers)


def fifo_logic(width: int, depth: int) -> Resources:
    """A FIFO without its memory; a shallow one is a shift register, a LUT for each bit."""
    if depth <= SHIFT_REGISTER:
        return Resources(lut=width + 20, ff=10)
    return Resources(lut=70, ff=width + 60)


KINDS = (Memory.LUT, Memory.BRAM, Memory.URAM)
_TAKES = {Memory.LUT: "lut", Memory.BRAM: "bram36", Memory.URAM: "uram"}


@dataclass(frozen=True)
class Item:
    """One memory that needs a place.

    Attributes:
        owner: Engine or stream; ``role`` which of its memories.
        width: Bits of a word.
        depth: Words.
    """

    owner: str
    role: str
    width: int
    depth: int

    @property
    def bits(self) -> int:
        """Its size."""
        return self.width * self.depth

    @property
    def costs(self) -> tuple[float, float, float]:
        """LUTs, block RAMs and UltraRAMs, one of which it takes."""
        return (
            lut_ram(self.width, self.depth),
            bram36(self.width, self.depth),
            uram(self.width, self.depth),
        )

    def cost_in(self, kind: Memory) -> Resources:
        """Its resources in a kind of memory."""
        return Resources(**{_TAKES[kind]: self.costs[KINDS.index(kind)]})


def items_of(engine: Engine) -> list[Item]:
    """The memories of an engine; what lies in DDR needs no place."""
    found = [
        Item(engine.name, w.role, max(w.bits // max(w.words, 1), 1), w.words)
        for w in engine.weights
        if w.memory is not Memory.DDR
    ]
    width, depth = engine.nest.buffer(bits_of(engine.dtype), sum_bits(engine.dtype))
    if width * depth:
        found.append(Item(engine.name, "buffer", width, depth))
    return found


def fifo_item(stream: Stream) -> Item | None:
    """The memory of a FIFO that is too deep for a shift register."""
    if stream.depth <= SHIFT_REGISTER:
        return None
    return Item(stream.name, "fifo", stream.token_bits, stream.depth)


def fifos_logic(streams: Iterable[Stream]) -> Resources:
    """LUTs and flip-flops of FIFOs, their memories not counted."""
    return sum((fifo_logic(s.token_bits, s.depth) for s in streams), Resources())


def place(items: Sequence[Item], limit: Sequence[float] | Numbers) -> list[Memory]:
    """A kind of memory for each item, such that the fullest kind is as empty as possible.

    A linear program over the shares of every item in the three kinds; at most three items come
    out split, and go where most of them lies. Where that overflows, items are moved one by one to
    where there is room. Limits are LUTs, block RAMs and UltraRAMs; where items don't fit, kinds
    come out that exceed them.
    """
    if not items:
        return []
    relative = np.array([item.costs for item in items]) / np.maximum(limit, 1e-3)
    choice = relative.argmin(axis=1)
    if relative.min(axis=1).sum() <= len(KINDS):  # else they don't even fit where each takes least
        choice = _shares(relative).argmax(axis=1)
    return [KINDS[k] for k in repair(relative, choice)]


def repair(relative: Numbers, choice: NDArray[np.intp]) -> NDArray[np.intp]:
    """The choice of a kind, [items], changed one by one until no kind overflows.

    Each time the item that leaves least too much moves, of several the one that fills least. It
    ends too where no single move helps. An item would take the ``relative`` share of every kind,
    [items][3].
    """
    each, choice = np.arange(len(choice)), choice.copy()
    used = np.bincount(choice, weights=relative[each, choice], minlength=3)
    while (excess := np.maximum(used - 1.0, 0.0).sum()) > 0.0:
        after = used + relative[:, :, None] * np.eye(3)  # [items][to kind][kind]
        after[each, :, choice] -= relative[each, choice][:, None]
        left = np.maximum(after - 1.0, 0.0).sum(axis=2)
        best = int(np.lexsort((after.sum(axis=2).ravel(), left.ravel()))[0])
        item, kind = divmod(best, 3)
        if left[item, kind] >= excess - 1e-9:
            break
        choice[item] = kind
        used = after[item, kind]
    return choice


def _shares(relative: Numbers) -> Numbers:
    """Shares that fill the fullest kind least; both are [items][3]."""
    count = len(relative)
    use = np.zeros((3, 3 * count + 1))
    for k in range(3):
        use[k, k * count : (k + 1) * count] = relative[:, k]
    use[:, -1] = -1.0
    once = (np.tile(np.arange(count), 3), np.arange(3 * count))
    matrix = coo_array((np.ones(3 * count), once), shape=(count, 3 * count + 1))
    # the stubs know no sparse matrices here
    found: OptimizeResult = milp(
        np.concatenate((1e-6 * relative.T.reshape(-1), [1.0])),
        bounds=Bounds(0.0, np.append(np.ones(3 * count), np.inf)),
        constraints=[LinearConstraint(use, -np.inf, 0.0), LinearConstraint(matrix, 1.0, 1.0)],
    )
    if found.x is None:
        return -relative
    return np.asarray(found.x[:-1]).reshape(3, count).T


def allocate(design: StageDesign, kinds: Mapping[Item, Memory], ends: Resources) -> StageDesign:
    """The design with its memories placed and all resources filled in, `interface` given."""
    where = {(i.owner, i.role): (kind, i) for i, kind in kinds.items()}
    owned: dict[str, Resources] = defaultdict(Resources)
    owned[""] += fifos_logic(s for s in design.streams.values() if s.producer is None)
    for kind, item in where.values():
        owner = design.streams[item.owner].producer if item.role == "fifo" else item.owner
        owned[owner or ""] += item.cost_in(kind)
    engines = []
    for engine in design.engines:
        weights = tuple(
            dataclasses.replace(w, memory=where.get((engine.name, w.role), (w.memory,))[0])
            for w in engine.weights
        )
        used = logic(engine) + owned[engine.name]
        used = used + fifos_logic(design.streams[s] for s in engine.outputs)
        kind, work = where.get((engine.name, "buffer"), (Memory.LUT, Item("", "", 0, 0)))
        found = dataclasses.replace(engine, weights=weights, memory=kind, resources=used)
        engines.append(dataclasses.replace(found, buffer_bits=work.bits))
    total = sum((e.resources for e in engines), owned[""] + ends)
    return dataclasses.replace(design, engines=tuple(engines), resources=total)
