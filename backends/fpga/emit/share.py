"""Kernels that lead values over one link in packets: ``link/link_tx.cpp`` and ``link_rx.cpp``.

Both ends number the values in the order of their names, so that they agree. What crosses is
explained in ``hls/link/link.h``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.cpp import identifier
from pipec.backends.fpga.emit.headers import own_header
from pipec.backends.fpga.emit.source import port_names

HEADER = "link/link.h"
PACKET, WINDOW, FLIT_BYTES = 16, 4, 64
"""Beats of a packet, packets that a value may have under way, bytes of a beat; as in `HEADER`."""


@dataclass(frozen=True)
class Shared:
    """A kernel that joins the ports of one side of a stage to its link.

    Attributes:
        name: Its top function.
        way: ``tx``, or ``rx``.
        ports: Ports of the stage, in the order of their values.
    """

    name: str
    way: str
    ports: tuple[str, ...]

    @property
    def out(self) -> str:
        """Its port that writes to the link."""
        return "out" if self.way == "tx" else "back"

    @property
    def into(self) -> str:
        """Its port that reads from the link."""
        return "back" if self.way == "tx" else "in"

    @property
    def pins(self) -> tuple[str, ...]:
        """Its streams, in the order of its arguments; the number of frames follows them."""
        return (*self.ports, self.into, self.out)


def shared(design: StageDesign, ports: Sequence[str], way: str) -> Shared:
    """The kernel for one side of a stage."""
    values = port_names(design)
    order = sorted(ports, key=lambda p: (values[p].value, p))
    return Shared(identifier(f"{design.name}_link_{way}"), way, tuple(order))


def link_files(
    design: StageDesign, kernels: Sequence[Shared], clock_ns: str, *, platform: bool
) -> dict[str, str]:
    """The sources of the kernels, and what builds them.

    Args:
        design: The stage.
        kernels: One per side that needs one.
        clock_ns: Clock period.
        platform: Whether the board has a Vitis platform.
    """
    if not kernels:
        return {}
    found = {HEADER: own_header(HEADER)}
    for kernel in kernels:
        path = f"link/link_{kernel.way}.cpp"
        found[path] = source(design, kernel)
        found[f"hls_link_{kernel.way}.cfg"] = hls_cfg(
            path, kernel.name, "-Ilink", design.part, clock_ns, platform=platform
        )
    return found


def source(design: StageDesign, kernel: Shared) -> str:
    """The kernel's C++."""
    ports, count = port_names(design), len(kernel.ports)
    streams = [design.streams[ports[p].stream] for p in kernel.ports]
    sizes = [f"{stream.token_bits // 8}, {stream.tokens}" for stream in streams]
    arguments = [
        f"links::axis_stream<{stream.token_bits // 8}> &{port}"
        for port, stream in zip(kernel.ports, streams, strict=True)
    ]
    arguments += [f"links::axis_stream<links::FLIT_BYTES> &{p}" for p in (kernel.into, kernel.out)]
    packets = " + ".join(f"links::packets_of({stream.tokens})" for stream in streams)
    lines = [
        f"// What {design.name} {_does(kernel)} on one link: {_values(design, kernel)}.",
        '#include "link.h"',
        "",
        'extern "C" void ' + kernel.name + "(" + ", ".join([*arguments, "int frames"]) + ") {",
        *(f"#pragma HLS INTERFACE axis port = {pin}" for pin in kernel.pins),
        "#pragma HLS INTERFACE s_axilite port = frames",
        "#pragma HLS INTERFACE s_axilite port = return",
        "#pragma HLS DATAFLOW",
        f"  const int packets = frames * ({packets});",
        f"  hls::stream<links::flit> beats[{count}];",
        f"#pragma HLS STREAM variable = beats depth = {_depth(kernel)}",
        f"  hls::stream<int> whole[{count}];",
        f"#pragma HLS STREAM variable = whole depth = {WINDOW}",
        *_tasks(kernel, sizes),
        "  DATAFLOW_END;",
        "}",
        "",
    ]
    return "\n".join(lines)


def _tasks(kernel: Shared, sizes: list[str]) -> list[str]:
    count = len(kernel.ports)
    if kernel.way == "tx":
        gathers = [
            f"  TASK(links::gather<{size}>(frames, {port}, beats[{k}], whole[{k}]));"
            for k, (port, size) in enumerate(zip(kernel.ports, sizes, strict=True))
        ]
        return [*gathers, f"  TASK(links::send<{count}>(packets, beats, whole, back, out));"]
    scatters = [
        f"  TASK(links::scatter<{size}>(frames, beats[{k}], {port}, whole[{k}]));"
        for k, (port, size) in enumerate(zip(kernel.ports, sizes, strict=True))
    ]
    return [
        f"  TASK(links::receive<{count}>(packets, in, beats));",
        *scatters,
        f"  TASK(links::acknowledge<{count}>(packets, whole, back));",
    ]


def _depth(kernel: Shared) -> int:
    """Beats that a value's FIFO holds: two packets before the link, a window behind it."""
    return PACKET * (2 if kernel.way == "tx" else WINDOW)


def _does(kernel: Shared) -> str:
    return "sends" if kernel.way == "tx" else "receives"


def _values(design: StageDesign, kernel: Shared) -> str:
    names = port_names(design)
    return ", ".join(names[p].value for p in kernel.ports)


def hls_cfg(source: str, top: str, flags: str, part: str, clock_ns: str, *, platform: bool) -> str:
    """What builds one small kernel with ``v++ -c --mode hls``: ``hls_link_tx.cfg``."""
    flow, form, suffix = ("vitis", "xo", "xo") if platform else ("vivado", "ip_catalog", "zip")
    return f"""\
part={part}

[hls]
flow_target={flow}
clock={clock_ns}ns
syn.file={source}
syn.cflags={flags} -std=c++14
syn.top={top}
package.output.format={form}
package.output.file={top}.{suffix}
"""
