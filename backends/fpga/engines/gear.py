"""Width converter: the same elements in other tokens."""

from dataclasses import dataclass
from itertools import groupby

from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.numbers import bits_of
from pipec.backends.fpga.runs import Loop, Run, Runs


@dataclass(frozen=True)
class Dwc(Nest):
    """Width converter: regroups the same elements into other tokens, dropping and making padding.

    ```text
    for r in repeat:                                   # elements = rows_in * channels_in
      have = done = 0
      while done < all tokens of the repetition:       # one firing per round
        want = valid elements of the next output token
        if have < want: have += valid elements of (read in0)
        if have >= want: write; have -= want; done += 1
    ```

    ``rows_in*channels_in == rows_out*channels_out`` are those of one repetition, which is the
    smallest number of elements that ends a row on both sides.
    """

    constants = "REPEAT FIRINGS C_IN=channels_in LANES_IN C_OUT=channels_out LANES_OUT"

    repeat: int
    rows_in: int
    channels_in: int
    lanes_in: int
    rows_out: int
    channels_out: int
    lanes_out: int

    @property
    def firings(self) -> int:
        """Firings of a repetition."""
        return self.busy(1, 1) // self.repeat

    def runs(self, ii: int, inputs: int) -> Runs:
        arriving = iter(_valid(self.rows_in, self.channels_in, self.lanes_in))
        codes, have = [], 0
        for want in _valid(self.rows_out, self.channels_out, self.lanes_out):
            if have >= want:
                codes.append(2)
            while have < want:
                have += next(arriving)
                codes.append(1 if have < want else 3)
            have -= want
        body = tuple(Run(len(list(same)), ii, c & 1, c >> 1) for c, same in groupby(codes))
        return (Loop(self.repeat, body),)

    def logic(self, dtype: str) -> tuple[float, float]:
        return (0.0, regrouping(self.lanes_in, self.lanes_out, dtype))


def regrouping(before: int, after: int, dtype: str) -> float:
    """LUTs of the multiplexers that make tokens of other lanes."""
    fewer, more = sorted((before, after))
    steps = 1 if more % fewer == 0 else 3
    return float((before + after) * bits_of(dtype) * steps)


def _valid(rows: int, channels: int, lanes: int) -> list[int]:
    """Valid elements of each token."""
    return [min(lanes, channels - first) for first in range(0, channels, lanes)] * rows
