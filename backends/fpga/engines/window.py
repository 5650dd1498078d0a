"""When a sliding-window generator reads and writes: two forms, and the run tables they give.

A **line** (several kernel positions per token, or kernels of one position) moves one input token
on per firing, row behind row, and emits the window whose last position that is. Windows of several
tokens are held while the line goes on to the next window:

```text
position of window (oy, ox) = (oy*SH + EH-1 - PT)*P + ox*SW + EW-1 - PL    in pixels
P = max(W, floor((OW-1)*SW / SH) + 1)                                      pixels of a row
```

A **ring** (one position per token) takes ``lead`` tokens at once, then SH rows for each row of
windows, evenly; it emits from firing ``start`` on, as early as no token is late, one token per
firing or, where more is read than written, evenly too. With A events in B firings, event k is in
firing ``floor(k*B / A)``. Both end when all of an image is read and written; K stands for the
dilated extent of the kernel (EH, EW).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Codes = NDArray[np.int8]
"""What each firing of a row does; see `Row`."""


@dataclass(frozen=True)
class Window:
    """Windows of maps, and the order in which a generator (`Swg`) emits them.

    ```text
    for image in batch: for oy in oh: for ox in ow: for g in groups:
      for t in taps/kp: for c in cf/groups:            # taps: ky, kx, row-major
        write token: kp positions (t*kp .. t*kp+kp-1) x `lanes` channels of token g*(cf/groups)+c
    ```

    A position outside the image yields ``pad_value``. Input: ``batch*h*w`` rows of ``cf`` tokens
    of ``lanes``; output tokens have ``kp*lanes`` elements, laid out ``[kp][lanes]``. When tokens
    are read is the pacing rule above; it never depends on data.

    Attributes:
        batch: Images per frame.
        h: Input rows; ``w`` input columns; ``cf`` tokens per pixel; ``lanes`` elements per token.
        kh: Kernel height; ``kw`` width; ``sh``, ``sw`` strides; ``dh``, ``dw`` dilations.
        pt: Padding on top; ``pl`` on the left (bottom and right follow from ``oh`` and ``ow``).
        oh: Output rows; ``ow`` output columns.
        groups: Channel groups emitted one after the other; divides ``cf``. ``cf`` for depthwise
            convolution and pooling (each group is one token), the convolution's groups, or 1.
        kp: Kernel positions per output token; divides ``kh*kw``; above 1 only if ``cf == groups``.
        pad_value: What lies outside the image: 0, or ``-inf`` for max pooling.
    """

    batch: int
    h: int
    w: int
    cf: int
    lanes: int
    kh: int
    kw: int
    sh: int = 1
    sw: int = 1
    dh: int = 1
    dw: int = 1
    pt: int = 0
    pl: int = 0
    oh: int = 1
    ow: int = 1
    groups: int = 1
    kp: int = 1
    pad_value: float = 0.0

    @property
    def taps(self) -> int:
        """Kernel positions ``kh*kw``."""
        return self.kh * self.kw

    @property
    def reads(self) -> int:
        """Input tokens of one image."""
        return self.h * self.w * self.cf

    @property
    def writes(self) -> int:
        """Output tokens of one image."""
        return self.oh * self.ow * self.taps // self.kp * self.cf

    @property
    def is_line(self) -> bool:
        """Whether it moves a token on per firing, and not through a ring in memory."""
        return self.kp > 1 or self.taps == 1

    @property
    def trivial(self) -> bool:
        """Whether every pixel is its own window, so that no generator is needed."""
        return (self.taps, self.sh, self.sw, self.pt, self.pl, self.oh, self.ow) == (
            1, 1, 1, 0, 0, self.h, self.w
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Firings of a row of windows, run-length coded.

    Attributes:
        times: Equal rows that follow one another.
        counts: Firings of each run.
        codes: What they do: 0 nothing, 1 takes a token, 2 emits one, 3 both.
    """

    times: int
    counts: Numbers
    codes: Numbers


@dataclass(frozen=True)
class Ring:
    """The schedule of a generator of one kernel position per token.

    Attributes:
        takes: Tokens taken per ``period`` firings; ``emits`` emitted; one of them is ``period``.
        period: Firings.
        lead: Tokens taken at the start, one per firing.
        start: Firing that emits first.
        slots: Tokens that the buffer holds.
    """

    takes: int
    emits: int
    period: int
    lead: int
    start: int
    slots: int

    def count_taken(self, firings: Numbers) -> Numbers:
        """Tokens taken before each firing, if the image has no end."""
        paced = -(-np.maximum(firings - self.lead, 0) * self.takes // self.period)
        return np.asarray(np.minimum(firings, self.lead) + paced)


def ring_of(nest: "Window") -> Ring:
    """The schedule of a ring: the least lead of its rate, then the earliest start."""
    takes, emits = nest.sh * nest.w, nest.ow * nest.taps
    period = max(takes, emits)
    lead = start = slots = 0
    rows = _rows_that_differ(nest)
    row = np.arange(emits * nest.cf) * period // emits
    window = nest.taps * nest.cf
    last = np.arange(len(row)) // window * window
    for oy in rows:
        late = _needs(nest, oy) + 1 - -(-(oy * period * nest.cf + row[last]) * takes // period)
        lead = max(lead, int(late.max()))
    lead = min(lead, nest.reads)
    for oy in rows:
        need = _needs(nest, oy)
        behind = np.where(need < lead, need, lead + (need - lead) * period // takes) + 1
        late = np.where(need < 0, 0, behind - oy * period * nest.cf - row)
        start = max(start, int(late.max()))
    found = Ring(takes, emits, period, lead, start, 0)
    for oy in rows:
        need = _needs(nest, oy)
        there = found.count_taken(start + oy * period * nest.cf + row + 1) - need
        slots = max(slots, int(np.where(need < 0, 0, there).max()))
    return Ring(takes, emits, period, lead, start, min(max(slots, 1), nest.reads))


def _rows_that_differ(nest: "Window") -> list[int]:
    """One row of windows for each set of kernel rows that lie inside the image."""
    found: dict[tuple[bool, ...], int] = {}
    for oy in range(nest.oh):
        top = oy * nest.sh - nest.pt
        found.setdefault(tuple(0 <= top + k * nest.dh < nest.h for k in range(nest.kh)), oy)
    return list(found.values())


def _needs(nest: "Window", oy: int) -> Numbers:
    """Index of the input token in each output token of a row; -1 in the padding."""
    ky, kx = np.divmod(np.arange(nest.taps), nest.kw)
    y = oy * nest.sh - nest.pt + ky * nest.dh
    x = (np.arange(nest.ow) * nest.sw - nest.pl)[:, None] + kx * nest.dw
    inside = (y >= 0) & (y < nest.h) & (x >= 0) & (x < nest.w)
    token = np.arange(nest.cf).reshape(1, nest.groups, 1, -1)
    need = (y * nest.w + x)[:, None, :, None] * nest.cf + token
    return np.where(inside[:, None, :, None], need, -1).reshape(-1)


def _ring_rows(nest: "Window") -> list[Codes]:
    ring = ring_of(nest)
    length = ring.period * nest.cf
    emitted = np.zeros(length, dtype=np.int8)
    emitted[np.arange(ring.emits * nest.cf) * ring.period // ring.emits] = 2
    rows, known = [np.ones(ring.start, dtype=np.int8)], dict[tuple[int, int], Codes]()
    for oy in range(nest.oh):
        first = ring.start + oy * length
        left = nest.reads - int(ring.count_taken(np.array(first)))
        key = (max(ring.lead - first, 0), min(max(left, 0), ring.takes * nest.cf + ring.lead))
        if key not in known:
            before = np.minimum(ring.count_taken(first + np.arange(length + 1)), nest.reads)
            known[key] = emitted | np.diff(before).astype(np.int8)
        rows.append(known[key])
    rows[-1] = rows[-1][: int(np.flatnonzero(rows[-1] & 2)[-1]) + 1]
    left = nest.reads - sum(int((codes & 1).sum()) for codes in rows)
    return [*rows, np.ones(left, dtype=np.int8)]


@dataclass(frozen=True)
class Line:
    """The schedule of a generator that moves a token on per firing.

    Attributes:
        pitch: Pixels of a row, idle ones included.
        idle: Pixels before the first one of the image: windows that end before it.
        first: Position of the first window, ``idle`` included; ``end`` one behind the last pixel.
    """

    pitch: int
    idle: int
    first: int
    end: int


def line_of(nest: "Window") -> Line:
    """The schedule of a line."""
    pitch = max(nest.w, (nest.ow - 1) * nest.sw // nest.sh + 1)
    down, right = (nest.kh - 1) * nest.dh - nest.pt, (nest.kw - 1) * nest.dw - nest.pl
    first = down * pitch + right
    idle = max(-first, 0)
    last = first + (nest.oh - 1) * nest.sh * pitch + (nest.ow - 1) * nest.sw
    return Line(pitch, idle, first + idle, idle + max(nest.h * pitch, last + 1))


def _line_rows(nest: "Window") -> list[Codes]:
    line, steps = line_of(nest), nest.taps // nest.kp
    pixel = np.arange(nest.ow) * nest.sw
    emits = (pixel[:, None] * nest.cf + np.arange(nest.cf)).reshape(-1)
    fires = np.concatenate(([0], np.cumsum(np.maximum(np.diff(emits), steps))))
    rows, known = [_takes(nest, line, 0, line.first)], dict[tuple[int, int], Codes]()
    for oy in range(nest.oh):
        start = line.first + oy * nest.sh * line.pitch
        end = line.end if oy == nest.oh - 1 else start + nest.sh * line.pitch
        inside = line.idle <= start and end <= line.idle + nest.h * line.pitch
        key = (0 if inside else start + 1, end - start)
        if key not in known:
            taken = _takes(nest, line, start, end)
            behind = np.searchsorted(emits, np.arange(len(taken)), side="right") - 1
            at = fires[behind] + np.arange(len(taken)) - emits[behind]
            codes = np.zeros(max(int(at[-1]) + 1, int(fires[-1]) + steps), dtype=np.int8)
            codes[at] = taken
            codes[(fires[:, None] + np.arange(steps)).reshape(-1)] |= 2
            known[key] = codes
        rows.append(known[key])
    return rows


def _takes(nest: "Window", line: Line, start: int, end: int) -> Codes:
    """Whether each token's position of a range of pixels is in the image."""
    y, x = np.divmod(np.arange(start, end) - line.idle, line.pitch)
    return np.repeat((y >= 0) & (y < nest.h) & (x < nest.w), nest.cf).astype(np.int8)


@lru_cache(maxsize=512)
def image_rows(nest: "Window") -> tuple[Row, ...]:
    """Firings of one image, row of windows by row."""
    found = list[Row]()
    rows = _line_rows(nest) if nest.is_line else _ring_rows(nest)
    for _, same in groupby((codes for codes in rows if len(codes)), np.ndarray.tobytes):
        codes, *others = same
        ends = np.flatnonzero(np.diff(codes, append=-1))
        counts = np.diff(ends, prepend=-1)
        found.append(Row(1 + len(others), counts, codes[ends].astype(np.int64)))
    return tuple(found)


@lru_cache(maxsize=4096)
def image_cycles(nest: "Window") -> int:
    """Firings of one image, exactly."""
    return sum(row.times * int(row.counts.sum()) for row in image_rows(nest))
