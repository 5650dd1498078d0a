"""When a sliding-window generator reads and writes: its counters, and the run table they give.

Every cycle that it fires, the generator emits the next window token if its pixels have arrived,
and takes an input token if it is due:

```text
emit = outputs left and need(next window token) < rd             need = -1 in the padding
take = rd < H*W*CF and (outputs done or
       (rd - oldest < (K+S)*W*CF and (not emit or (rd-F)*OUT < wr*PACE)))
F    = (min(K-1-P, H-1)*W + min(K-P, W))*CF      pixels before the first window (P the padding)
PACE = S*W*CF*OH,  OUT = outputs of an image, rd and wr = tokens read and written so far
```

``oldest`` is the first pixel of the first row that the current window needs. The last term paces
the reads: S rows in for one row of windows out, so that reading neither starves the output nor
fills the line buffer at once. With kernel K standing for the dilated extent.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipec.backends.fpga.nests import Swg

Numbers = NDArray[np.int64]
Codes = NDArray[np.int8]
"""What each firing of a row does, of which there may be millions; see `Row`."""


@dataclass(frozen=True)
class Row:
    """Firings of a row of windows, run-length coded.

    Attributes:
        times: Equal rows that follow one another.
        counts: Firings of each run.
        codes: What they do: 1 takes a token, 2 emits one, 3 both.
    """

    times: int
    counts: Numbers
    codes: Numbers


class _Rows:
    """One image of a generator, row of windows by row; equal rows are computed once."""

    def __init__(self, nest: Swg) -> None:
        self.nest = nest
        self.row = nest.w * nest.cf
        extent_h = (nest.kh - 1) * nest.dh + 1
        extent_w = (nest.kw - 1) * nest.dw + 1
        self.capacity = (extent_h + nest.sh) * self.row
        self.fill = (
            min(extent_h - 1 - nest.pt, nest.h - 1) * nest.w + min(extent_w - nest.pl, nest.w)
        ) * nest.cf
        self.outs = nest.writes // nest.oh
        self.known: dict[tuple[object, ...], tuple[Codes, int]] = {}

    def rows(self) -> list[Row]:
        """The rows of windows, equal neighbours counted, and the rest of the image."""
        found: list[tuple[int, Codes]] = []
        rd = 0
        for oy in range(self.nest.oh):
            codes, taken = self._row(oy, rd)
            rd += taken
            if found and (found[-1][1] is codes or np.array_equal(found[-1][1], codes)):
                found[-1] = (found[-1][0] + 1, codes)
            else:
                found.append((1, codes))
        rows = [_coded(times, codes) for times, codes in found]
        left = self.nest.reads - rd
        return [*rows, Row(1, np.array([left]), np.array([1]))] if left else rows

    def _row(self, oy: int, rd: int) -> tuple[Codes, int]:
        """Codes of a row's firings and the tokens it takes."""
        nest = self.nest
        top = oy * nest.sh - nest.pt
        valid = tuple(0 <= top + ky * nest.dh < nest.h for ky in range(nest.kh))
        base = oy * nest.sh * self.row
        left = min(nest.reads - base, rd - base + self.capacity + self.outs)
        key = (rd - base, valid, min(oy * nest.sh, nest.pt), left)
        if key not in self.known:
            limit = min(nest.reads, max(top, 0) * self.row + self.capacity)
            due = base + self.fill - (-np.arange(self.outs) * nest.sh * self.row // self.outs)
            self.known[key] = _fired(self._needs(oy) + 1, np.minimum(due, limit), rd)
        return self.known[key]

    def _needs(self, oy: int) -> NDArray[np.int64]:
        """Index of the last input token that each output token of the row needs; -1 if none."""
        nest = self.nest
        ky, kx = np.divmod(np.arange(nest.taps), nest.kw)
        y = oy * nest.sh - nest.pt + ky * nest.dh
        x = (np.arange(nest.ow) * nest.sw - nest.pl)[:, None] + kx * nest.dw
        inside = (y >= 0) & (y < nest.h) & (x >= 0) & (x < nest.w)
        pixel = np.where(inside, y * nest.w + x, -1).reshape(nest.ow, -1, nest.kp).max(-1)
        token = np.arange(nest.cf).reshape(1, nest.groups, 1, -1)
        need = pixel[:, None, :, None] * nest.cf + token
        return np.where(pixel[:, None, :, None] < 0, -1, need).reshape(-1)


def _fired(need: Numbers, due: Numbers, start: int) -> tuple[Codes, int]:
    """Codes of the firings that emit one row's tokens, and how many tokens they take.

    Before token j is emitted ``need[j]`` tokens must have been taken; while it is emitted one
    more is taken if fewer than ``due[j]`` have been. With ``rd[j]`` taken after it,

    ```text
    a[j] = max(rd[j-1], need[j])      rd[j] = a[j] + (a[j] < due[j])
         = max(A[j], min(due[j], 1 + j + max over i<=j of (need[i] - i)))    A: running maximum
    ```

    where the second form holds if ``due`` never rises by more than one.
    """
    need = need.copy()
    need[0] = max(need[0], start)
    most = np.maximum.accumulate(need)
    if (np.diff(due) <= 1).all():
        steps = np.arange(len(need))
        after = np.maximum(most, np.minimum(due, 1 + steps + np.maximum.accumulate(need - steps)))
        before = np.maximum(np.concatenate(([start], after[:-1])), need)
    else:
        before, after = _stepped(need, due, start)
    waits = before - np.concatenate(([start], after[:-1]))
    codes = np.ones(int(waits.sum()) + len(need), dtype=np.int8)
    codes[np.cumsum(waits + 1) - 1] = np.where(after > before, 3, 2)
    return codes, int(after[-1]) - start


def _stepped(need: Numbers, due: Numbers, start: int) -> tuple[Numbers, Numbers]:
    before, after, rd = np.empty_like(need), np.empty_like(need), start
    for j, (n, d) in enumerate(zip(need.tolist(), due.tolist(), strict=True)):
        rd = max(rd, n)
        before[j] = rd
        rd += rd < d
        after[j] = rd
    return before, after


def _coded(times: int, codes: Codes) -> Row:
    ends = np.flatnonzero(np.concatenate((np.diff(codes) != 0, [True])))
    return Row(times, np.diff(np.concatenate(([-1], ends))), codes[ends].astype(np.int64))


@lru_cache(maxsize=512)
def image_rows(nest: Swg) -> tuple[Row, ...]:
    """Firings of one image, row of windows by row.

    Example:
        >>> [(r.times, r.counts.tolist(), r.codes.tolist())
        ...  for r in image_rows(Swg(1, 2, 2, 1, 1, 1, 1, oh=2, ow=2))]
        [(2, [1, 1, 1, 1], [1, 2, 1, 2])]
    """
    return tuple(_Rows(nest).rows())


def image_cycles(nest: Swg) -> int:
    """Firings of one image, exactly.

    Example:
        >>> image_cycles(Swg(1, 18, 18, 2, 4, 3, 3, oh=16, ow=16))
        4669
    """
    return sum(row.times * int(row.counts.sum()) for row in image_rows(nest))
