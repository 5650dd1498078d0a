"""Delays of operators in a UltraScale+ part, by clock: what a schedule of HLS may count on.

Latencies of floating-point cores are those of public Vitis HLS 2023.2 reports (Stream-HLS and
Prometheus, U280 and U55C; 3.33, 4.00 and 4.55 ns) and hold at and below their clock. A core of
latency L has L + 1 stages (``fadd_32ns_32ns_32_7_full_dsp`` is the adder of 6 cycles), and what
reads its result begins a cycle later. Adders are those of DSPs; in a recurrence that is too long
with these the tool picks quick ones of LUTs. Combinational delays are assumptions that
reproduce the intervals of those reports: a naive sum takes 3 cycles at 220 to 250 MHz and 4 at
300 MHz, a guarded sum through a RAM 5 at 250 MHz.
"""

from dataclasses import dataclass

CLOCKS = (100.0, 220.0, 250.0, 300.0, 400.0)
"""Clocks of the reports, in MHz."""
NEARLY = 1.01
"""A period of 3.33 ns, which reports have, is a clock of 300 MHz."""
CORES = {
    "fadd": (3, 4, 6, 6, 9),
    "quick_fadd": (3, 3, 3, 4, 7),
    "fmul": (2, 3, 3, 3, 5),
    "dmul": (5, 5, 5, 7, 7),
    "fdiv": (11, 11, 11, 11, 15),
    "sqrt": (11, 11, 11, 11, 11),
    "exp": (13, 13, 13, 13, 13),
    "fcmp": (1, 1, 1, 1, 1),
    "mul": (2, 2, 2, 2, 3),
    "wide_mul": (4, 4, 4, 4, 5),
}
"""Latency in cycles by clock; a wide product has more than 32 bits."""
UNCERTAINTY = 0.27
"""Share of the period that synthesis keeps free."""
MUX, GATE, STORE, RAM = 0.35, 0.25, 0.6, 1.2
"""Nanoseconds: a multiplexer, a logic gate, into a RAM, out of a RAM behind its cycle."""


def is_power(number: str) -> bool:
    """Whether a number is a constant power of two.

    Example:
        >>> [is_power(x) for x in ("8", "1", "12", "0", "%k")]
        [True, True, False, False, False]
    """
    return number.isdigit() and int(number) > 0 and not int(number) & (int(number) - 1)


@dataclass(frozen=True)
class Delays:
    """Delays at one clock.

    Attributes:
        clock_mhz: The clock.
    """

    clock_mhz: float

    @property
    def usable(self) -> float:
        """Nanoseconds of a cycle that logic may take."""
        return 1e3 / self.clock_mhz * (1 - UNCERTAINTY)

    def core(self, name: str) -> float:
        """Nanoseconds of an operator with registers: whole cycles."""
        known = (k for k, c in enumerate(CLOCKS) if self.clock_mhz <= NEARLY * c)
        at = next(known, len(CLOCKS) - 1)
        return CORES[name][at] * self.usable

    def cycles(self, count: int) -> float:
        """Nanoseconds of so many cycles."""
        return count * self.usable

    @staticmethod
    def add(bits: int) -> float:
        """An adder in fabric."""
        return 0.35 + 0.017 * bits

    @staticmethod
    def compare(bits: int, constant: str = "") -> float:
        """A comparison in fabric; with a power of two only the bits above it are compared."""
        number = abs(int(constant)) if constant.lstrip("-").isdigit() else 0
        power = next((n for n in (number, number + 1) if n > 1 and is_power(str(n))), 1)
        return 0.30 + 0.015 * (bits + 1 - power.bit_length())
