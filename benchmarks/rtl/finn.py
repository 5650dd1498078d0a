"""FINN's own RTL, measured under Verilator, beside the simulator with FINN's pipeline depths.

Matrix-vector units are ``mvu_vvu_axi`` around ``mvu_8sx8u_dsp48`` (8 bit, behavioural, inputs and
weights always there, output always taken), measured from the first input beat to the last output
beat of one frame, both counted; windows are ``ConvolutionInputGenerator_rtl`` as FINN+ 1.6.1
generates it, in steady cycles per frame. A depth is counted in the source, register by register:

```text
FINN (mid 2024)  replay buffer 2 (memory, output; none if NF = 1), core 5, output register 1
FINN+ 1.1.0      replay buffer 2 (the same),  core 3 + clog2(SIMD + 1) + (SIMD = 1), output queue 2
```
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from benchmarks.rtl.nets import Net
from pipec.backends.fpga.cycles import network_of
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.swg import Swg
from pipec.backends.fpga.simulator.native import simulate


@dataclass(frozen=True)
class Measured:
    """One engine of FINN's.

    Attributes:
        release: Whose RTL.
        nest: The engine, in pipec's terms.
        cycles: Cycles of the first frame from its first to its last beat, or of a later frame.
    """

    release: str
    nest: Mvu | Swg
    cycles: int

    @property
    def depth(self) -> int:
        """Pipeline registers from an input beat to the output beat that it completes."""
        if isinstance(self.nest, Swg):
            return 1  # an interval does not depend on it
        replay = 2 if self.nest.nf > 1 else 0
        if self.release == "FINN":
            return replay + 5 + 1
        simd = self.nest.simd
        return replay + 3 + simd.bit_length() + (simd == 1) + 2

    @property
    def simulated(self) -> int:
        """The simulator's result."""
        parts = [("unit", self.nest, ("x",), ("y",))]
        design = Net(parts, latency={"unit": self.depth}).design("finn")
        trace = simulate(network_of(design)[0], {}, 3)
        return trace.interval if isinstance(self.nest, Swg) else trace.latency + 1

    @property
    def what(self) -> str:
        """In words."""
        n = self.nest
        if isinstance(n, Swg):
            return f"{n.kh}x{n.kw} on {n.h}x{n.w}, {n.cf} tokens a pixel"
        return f"{n.channels}x{n.rows}, PE {n.pe}, SIMD {n.simd}, {n.n} vectors, depth {self.depth}"


def window(size: int, cf: int) -> Swg:
    """A 3x3 window without padding."""
    return Swg(1, size, size, cf, 4, 3, 3, oh=size - 2, ow=size - 2)


MEASURED = [
    Measured("FINN", Mvu(10, 32, 1, 64, 4, 8), 648),
    Measured("FINN", Mvu(50, 64, 1, 576, 8, 16), 14_408),
    *[
        Measured("FINN+ 1.1.0", Mvu(n, rows, 1, columns, pe, simd), cycles)
        for columns, rows, pe, simd, n, cycles in [
            (64, 32, 4, 8, 10, 651), (576, 64, 8, 16, 50, 14_412), (128, 64, 16, 32, 20, 333),
            (24, 12, 3, 3, 7, 233), (30, 8, 2, 5, 9, 226), (16, 8, 8, 4, 11, 52),
            (12, 6, 2, 1, 8, 297), (48, 16, 4, 12, 6, 107),
        ]
    ],
    Measured("FINN+ 1.6.1", window(18, 2), 4_670),
    Measured("FINN+ 1.6.1", window(34, 4), 37_114),
]  # fmt: skip
"""Under Verilator 5.006 (``FINN``, windows) and 5.48 (FINN+ 1.1.0)."""


def lines() -> Iterator[str]:
    """FINN's cycles and the simulator's, by release: the range, and the engine furthest off."""
    for release, same in groupby(MEASURED, key=lambda row: row.release):
        rows = list(same)
        equal = sum(row.simulated == row.cycles for row in rows)
        cycles = sorted(row.cycles for row in rows)
        worst = max(rows, key=lambda row: abs(row.simulated / row.cycles - 1))
        off = worst.simulated - worst.cycles
        furthest = f"; {worst.what}: {off:+} cycle, {off / worst.cycles:+.2%}" if off else ""
        yield (
            f"{release}: {equal} of {len(rows)} engines of {cycles[0]:,} to {cycles[-1]:,} cycles "
            f"equal{furthest}"
        )
