"""Run tables: the firings of an engine for one frame, exactly.

A `Run` is a number of equal firings; a `Loop` repeats runs. Times follow from one rule, the same
in the simulator, in the C++ built with timestamps and in hardware:

```text
t[i]    = max(t[i-1] + delta, vis(token) of every port read, free(slot) of every port written)
vis     = t + D of the writer's firing;   free = t + 1 of the reader's firing
a stream of depth N has N + D slots (tokens in flight own theirs); the first firing is at 0
```

``delta`` is the initiation interval times the firings without input or output in between. The
cycles of a table, ``sum(count * delta)``, are the engine's busy cycles per frame.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from itertools import groupby

from pipec.backends.fpga.design import Engine
from pipec.backends.fpga.nests import Map, Matmul, Mvu, Norm, Reduce, Swg, Vvu
from pipec.backends.fpga.routing import (
    Concat,
    Const,
    Dwc,
    Fork,
    Gather,
    Load,
    Nest,
    Perm,
    Repeat,
    Slice,
)
from pipec.backends.fpga.swg import Row, image_cycles, image_rows


@dataclass(frozen=True)
class Run:
    """Equal firings.

    Attributes:
        count: How many.
        delta: Cycles from the firing before to each of them, at least.
        reads: Bit k: each reads a token of input k.
        writes: Bit k: each writes a token of output k.
    """

    count: int
    delta: int
    reads: int = 0
    writes: int = 0


@dataclass(frozen=True)
class Loop:
    """``times`` repetitions of a body."""

    times: int
    body: "Table"


Table = tuple[Run | Loop, ...]
"""What one frame is made of, in order."""


def flat(table: Table) -> Iterator[Run]:
    """The runs in order, loops unrolled."""
    for item in table:
        if isinstance(item, Run):
            yield item
        else:
            body = tuple(flat(item.body))
            for _ in range(item.times):
                yield from body


def cycles(table: Table) -> int:
    """Busy cycles: ``sum(count * delta)``.

    Example:
        >>> cycles((Loop(10, (Run(7, 1, 1), Run(1, 1, 1, 1), Run(7, 8, 0, 1))),))
        640
    """
    return sum(
        item.count * item.delta if isinstance(item, Run) else item.times * cycles(item.body)
        for item in table
    )


def tokens(table: Table, port: int, *, written: bool) -> int:
    """Tokens that a table reads from an input or writes to an output."""
    total = 0
    for item in table:
        if isinstance(item, Loop):
            total += item.times * tokens(item.body, port, written=written)
        elif (item.writes if written else item.reads) >> port & 1:
            total += item.count
    return total


def run_table(engine: Engine) -> Table:
    """The run table of an engine."""
    return nest_table(engine.nest, engine.ii, len(engine.inputs))


def busy_cycles(engine: Engine) -> int:
    """Cycles of an engine per frame when nothing makes it wait."""
    if isinstance(engine.nest, Swg):
        return engine.nest.batch * image_cycles(engine.nest) * engine.ii
    return _nest_cycles(engine.nest, engine.ii, len(engine.inputs))


@lru_cache(maxsize=1 << 16)
def _nest_cycles(nest: Nest, ii: int, inputs: int) -> int:
    return cycles(nest_table(nest, ii, inputs))


@lru_cache(maxsize=4096)
def nest_table(nest: Nest, ii: int, inputs: int) -> Table:
    """The run table of a nest, without empty runs; see `runs`."""
    return _clean(runs(nest, ii, inputs))


def _clean(table: Table) -> Table:
    """Without empty runs and loops, and loops of one repetition opened."""
    found: list[Run | Loop] = []
    for item in table:
        if isinstance(item, Run):
            found.extend([item] if item.count else [])
        elif item.times:
            body = _clean(item.body)
            found.extend(body if item.times == 1 else ([Loop(item.times, body)] if body else []))
    return tuple(found)


@singledispatch
def runs(nest: Nest, ii: int, inputs: int) -> Table:
    """The run table of a nest; may hold empty runs.

    Args:
        nest: Any nest.
        ii: Initiation interval.
        inputs: Number of input streams.
    """
    raise TypeError(f"no run table for {type(nest).__name__}")


@runs.register
def _swg(nest: Swg, ii: int, inputs: int) -> Table:
    rows = tuple(
        Loop(row.times, tuple(Run(n, ii, code & 1, code >> 1) for n, code in _pairs(row)))
        for row in image_rows(nest)
    )
    return (Loop(nest.batch, rows),)


def _pairs(row: Row) -> Iterator[tuple[int, int]]:
    return zip(row.counts.tolist(), row.codes.tolist(), strict=True)


def _vector(sf: int, nf: int, ii: int) -> Table:
    """One vector, order A, weights on chip."""
    return (Run(sf - 1, ii, 1), Run(1, ii, 1, 1), Run(nf - 1, sf * ii, 0, 1))


@runs.register
def _mvu(nest: Mvu, ii: int, inputs: int) -> Table:
    sf, nf, word = nest.sf, nest.nf, 2 if nest.streamed else 0
    if nest.block > 1:
        return (Loop(nest.n // nest.block, _block(nest, ii)),)
    if nest.order == "B":
        last = (Run(1, ii, 1 | word, 1), Run(nf - 1, ii, word, 1))
        first: Table = (Loop(sf - 1, (Run(1, ii, 1 | word), Run(nf - 1, ii, word))),)
        if not nest.streamed and sf > 1:
            first = (Run(1, ii, 1), Run(sf - 2, nf * ii, 1))
            last = (Run(1, nf * ii, 1, 1), Run(nf - 1, ii, 0, 1))
        return (Loop(nest.n * nest.groups, (*first, *last)),)
    if not nest.streamed:
        return (Loop(nest.n * nest.groups, _vector(sf, nf, ii)),)
    rest = Loop(nf - 1, (Run(sf - 1, ii, 2), Run(1, ii, 2, 1)))
    return (Loop(nest.n, (Run(sf - 1, ii, 3), Run(1, ii, 3, 1), rest)),)


def _block(nest: Mvu, ii: int) -> Table:
    """V vectors in, one pass over the weights, V vectors out."""
    v, sf, nf = nest.block, nest.sf, nest.nf
    return (
        Run(v * sf, ii, 1),
        Run(1, ii, 2),
        Run(nf * sf - 1, v * ii, 2),
        Run(1, v * ii, 0, 1),
        Run(v * nf - 1, ii, 0, 1),
    )


@runs.register
def _matmul(nest: Matmul, ii: int, inputs: int) -> Table:
    body = Loop(nest.vectors, _vector(nest.sf, nest.nf, ii))
    return (Loop(nest.blocks, (Run(nest.load, ii, 2), body)),)


@runs.register
def _vvu(nest: Vvu, ii: int, inputs: int) -> Table:
    steps = nest.taps // nest.kp
    return (Loop(nest.n * nest.cf, (Run(steps - 1, ii, 1), Run(1, ii, 1, 1))),)


@runs.register
def _reduce(nest: Reduce, ii: int, inputs: int) -> Table:
    body = (Run((nest.window - 1) * nest.cf, ii, 1), Run(nest.cf, ii, 1, 1))
    return (Loop(nest.n, body),)


@runs.register
def _map(nest: Map, ii: int, inputs: int) -> Table:
    return (Run(nest.tokens, ii, (1 << inputs) - 1, 1),)


@runs.register
def _norm(nest: Norm, ii: int, inputs: int) -> Table:
    silent = (nest.passes - 2) * (nest.gap + (nest.cf - 1) * ii)
    read = Run(nest.cf, ii, (1 << inputs) - 1)
    body = (read, Run(1, nest.gap + silent, 0, 1), Run(nest.cf - 1, ii, 0, 1))
    return (Loop(nest.rows, body),)


@runs.register
def _fork(nest: Fork, ii: int, inputs: int) -> Table:
    return (Run(nest.tokens, ii, 1, (1 << nest.outputs) - 1),)


@runs.register
def _concat(nest: Concat, ii: int, inputs: int) -> Table:
    body = tuple(Run(size, ii, 1 << k, 1) for k, size in enumerate(nest.sizes))
    return (Loop(nest.outer, body),)


@runs.register
def _slice(nest: Slice, ii: int, inputs: int) -> Table:
    inner, kept = nest.inner, nest.kept
    tail = nest.size - nest.start - (kept - 1) * nest.step - 1
    skipped = Run((nest.step - 1) * inner, ii, 1)
    body = (
        Run(nest.start * inner, ii, 1),
        Loop(kept - 1, (Run(inner, ii, 1, 1), skipped)),
        Run(inner, ii, 1, 1),
        Run(tail * inner, ii, 1),
    )
    return (Loop(nest.outer, body),)


@runs.register
def _dwc(nest: Dwc, ii: int, inputs: int) -> Table:
    arriving = _valid(nest.rows_in, nest.channels_in, nest.lanes_in)
    codes, have = [], 0
    for want in _valid(nest.rows_out, nest.channels_out, nest.lanes_out):
        if have >= want:
            codes.append(2)
        while have < want:
            have += next(arriving)
            codes.append(1 if have < want else 3)
        have -= want
    body = tuple(Run(len(list(same)), ii, c & 1, c >> 1) for c, same in groupby(codes))
    return (Loop(nest.repeat, body),)


def _valid(rows: int, channels: int, lanes: int) -> Iterator[int]:
    """Valid elements of each token."""
    for _ in range(rows):
        for first in range(0, channels, lanes):
            yield min(lanes, channels - first)


@runs.register
def _perm(nest: Perm, ii: int, inputs: int) -> Table:
    return (Loop(nest.blocks, (Run(nest.reads, ii, 1), Run(nest.writes, ii, 0, 1))),)


@runs.register
def _repeat(nest: Repeat, ii: int, inputs: int) -> Table:
    body = (Run(nest.inner, ii, 1, 1), Run(nest.inner * (nest.times - 1), ii, 0, 1))
    return (Loop(nest.outer, body),)


@runs.register
def _gather(nest: Gather, ii: int, inputs: int) -> Table:
    return (Loop(nest.n, (Run(1, ii, 1, 1), Run(nest.cf - 1, ii, 0, 1))),)


@runs.register
def _load(nest: Load, ii: int, inputs: int) -> Table:
    return (Run(nest.words * nest.repeat, ii, 0, 1),)


@runs.register
def _const(nest: Const, ii: int, inputs: int) -> Table:
    return (Run(nest.tokens, ii, 0, 1),)
