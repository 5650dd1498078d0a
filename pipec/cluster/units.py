"""Quantities as people write them: ``100 Gb/s``, ``16 GiB``, ``5 us``, ``300 MHz``."""

import re

from pipec.errors import ClusterError

_PREFIX = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
BYTES = {f"{p}B": f for p, f in {**_PREFIX, **_BINARY}.items()} | {"kB": 1e3}
BANDWIDTH = {f"{u}/s": f for u, f in BYTES.items()} | {
    f"{p}{b}": f / 8 for p, f in _PREFIX.items() for b in ("b/s", "bit/s", "bps")
}
TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
RATE = {f"{p}FLOP/s": f for p, f in _PREFIX.items()} | {f"{p}FLOPS": f for p, f in _PREFIX.items()}
FREQUENCY = {f"{p}Hz": f for p, f in _PREFIX.items()} | {"kHz": 1e3}
_TEXT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9].*?)\s*")


def parse(text: object, units: dict[str, float], where: str) -> float:
    """A written quantity in base units (bytes, bytes/s, seconds, FLOP/s, Hz).

    Args:
        text: ``"100 Gb/s"``; a bare number has no unit and is refused.
        units: Allowed units and their factors.
        where: What to name in the error.

    Raises:
        ClusterError: Not a number with one of the units.

    Example:
        >>> parse("100 Gb/s", BANDWIDTH, "link")
        12500000000.0
        >>> parse("16 GiB", BYTES, "memory") == 16 * 2**30
        True
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise ClusterError(
            "a quantity cannot be read",
            where=where,
            got=repr(text),
            want=f"a number and one of {', '.join(units)}",
            hint=f'write it with its unit, such as "10 {list(units)[min(3, len(units) - 1)]}"',
        )
    return float(match[1]) * units[match[2]]


def show(value: float, unit: str) -> str:
    """A quantity for people: three significant digits and a decimal prefix.

    Example:
        >>> show(12.5e9, "B/s"), show(0.00031, "s"), show(0, "B")
        ('12.5 GB/s', '310 us', '0 B')
    """
    if value == 0:
        return f"0 {unit}"
    for factor, prefix in (
        (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "u"),
        (1e-9, "n"),
    ):  # fmt: skip
        if abs(value) >= factor * 0.9995 and not (unit == "s" and factor > 1):
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
