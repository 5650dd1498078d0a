"""The README of a stage: what it is, how it is run, what was checked and what was not."""

from functools import partial

from pipec.backends.fpga.cpp import comment
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.headers import filled
from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.source import port_names, top_name
from pipec.backends.fpga.emit.tables import off_chip, on_chip, pointers

_section = partial(filled, "README.md")


def readme(design: StageDesign, tolerance: float, site: Site, *, shares: bool) -> str:
    """The text of ``README.md``.

    Args:
        design: The stage.
        tolerance: What its test bench accepts.
        site: Where it is to run.
        shares: Whether kernels in ``link/`` lead values over its links.
    """
    platform, buffers = site.platform, _buffers(design)
    around = _section("platform") if platform else _section("block_design", top=top_name(design))
    if not site.alone:
        suffix, what = ("cfg", "links all") if platform else ("tcl", "is a block design of all")
        around = _section("among", suffix=suffix, what=what)
    return _section(
        stage=design.name,
        board=design.device or "a board",
        part=design.part or "part not set",
        engines=len(design.engines),
        top=top_name(design),
        clock=f"{design.clock_mhz:g}",
        precision=design.precision,
        chip=f"{sum(t.weight.bits for t in on_chip(design)) / 8e6:.3f}",
        ddr=f"{sum(w.bits for _, _, w in off_chip(design)) / 8e6:.3f}",
        ports=_ports(design),
        tolerance=f"{tolerance:g}",
        product="kernel .xo" if platform else "IP",
        around=around,
        packets=_section("packets") if shares else "",
        regions=_section("regions") if design.floorplan.regions else "",
        tables=_section("tables" if on_chip(design) else "no_tables"),
        host=_section("host", stage=design.name) if site.has_host else "",
        buffers=_section("buffers", rows=buffers) if buffers else "",
    )


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _buffers(design: StageDesign) -> str:
    """What the host must know of values that move through memory."""
    return "\n".join(
        _row(f"`{p.name}`", p.mover.kind(), p.word, *p.mover.ring, p.port.bank)
        for p in pointers(design)
        if p.mover and p.port
    )


def _ports(design: StageDesign) -> str:
    rows = []
    for name, port in port_names(design).items():
        stream, shape = design.streams[port.stream], "x".join(map(str, port.shape))
        kind, order = f"{shape or 'scalar'} {port.dtype}", ",".join(map(str, port.order))
        facts = (comment(port.value), kind, order, stream.tokens, stream.token_bits)
        rows.append(_row(f"`{name}`", *facts))
    return "\n".join(rows)
