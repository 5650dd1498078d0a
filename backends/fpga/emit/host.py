"""The host program of a stage on a board with a Vitis platform, and that board in software.

``host/host.cpp`` is written against XRT's native C++ API. The same source runs without a board:
``sim/`` has XRT's headers over a model of a board that loads ``link.cfg``, makes its kernels out of
their own C++ and joins their streams as the file says (``hls/sim/board.h``).
"""

from collections.abc import Mapping, Sequence

from pipec.backends.fpga.cpp import comment
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.bench import accepted, table_images
from pipec.backends.fpga.emit.headers import filled, own_header
from pipec.backends.fpga.emit.link import Around, Side, memory_port
from pipec.backends.fpga.emit.mover import GMEM
from pipec.backends.fpga.emit.source import arguments, port_names, stream_type, top_name
from pipec.backends.fpga.emit.tables import pointers

SHIPPED = (
    "host/host.h", "sim/board.h", "sim/wire.h", "sim/hls_stream.h", "sim/xrt/xrt_bo.h",
    "sim/xrt/xrt_device.h", "sim/xrt/xrt_kernel.h",
)  # fmt: skip


def host_files(
    design: StageDesign,
    found: Around,
    used: Sequence[Side],
    tolerance: float,
    own: Mapping[str, float],
) -> dict[str, str]:
    """The host program, and the board in software.

    Args:
        design: A stage that infers.
        found: What is around it; movers for all streams to and from the host.
        used: The sides that values cross.
        tolerance: What the host accepts of golden frames.
        own: Values of outputs to what is accepted of them, where that is less.
    """
    places = {name: k for k, (_, name) in enumerate(arguments(design))}
    reads = any(not one.feeds for one in found.movers)
    host_cpp = filled(
        "host.cpp",
        stage=design.name,
        board=comment(design.device) or "a board",
        before=f"static const double TOLERANCE = {tolerance!r};\n\n" if reads else "",
        body=[
            "host::board board(told);",
            f'host::caller stage(board, "{top_name(design)}", {places["frames"]});',
            *_tables(design, places),
            *_links(used),
            *_movers(design, found, own),
            "",
            _play(design, found, used, places["load_tables"]),
        ],
    )
    return {
        "host/host.cpp": host_cpp,
        "sim/kernels.cpp": kernels_cpp(design, found, used),
        **{name: own_header(name) for name in SHIPPED},
    }


def _tables(design: StageDesign, places: dict[str, int]) -> list[str]:
    found = pointers(design)
    if not found:
        return []
    lines = ["", "// Tables, in the memories that link.cfg gives them."]
    lines += ['const std::string weights = told.stage + "/src/weights/";', *table_images(design)]
    for name in (p.name for p in found):
        place = places[name]
        lines.append(f"const xrt::bo {name}_buffer = host::upload(board, stage, {place}, {name});")
        lines.append(f"stage.set({place}, {name}_buffer);")
    return lines


def _links(used: Sequence[Side]) -> list[str]:
    """The kernels that lead values over links; over UDP there is one on every side."""
    lines = ["", "std::vector<std::unique_ptr<host::caller>> packets;"] if used else []
    for side in used:
        kernel, asked = side.packets, "" if side.mux else "if (told.udp) "
        made = f'new host::caller(board, "{kernel.name}", {len(kernel.pins)})'
        lines.append(f"{asked}packets.emplace_back({made});")
    if used:
        lines.append("std::vector<host::caller *> links;")
        lines.append("for (const auto &one : packets) links.push_back(one.get());")
    return lines


def _movers(design: StageDesign, found: Around, own: Mapping[str, float]) -> list[str]:
    ports = port_names(design)
    lines = ["", "// Frames, by way of memory."] if found.movers else []
    for one in found.movers:
        kind, port = stream_type(design.streams[ports[one.port].stream]), one.port
        if one.feeds:
            made, size = f"source {port}", f"cfg::{port}::TOKENS * sizeof(vec<{kind}>)"
        else:
            by = accepted(own, ports[port].value)
            made, size = f"sink_of<{kind}> {port}", f"cfg::{port}::TOKENS, {by}"
        lines.append(f'host::{made}(board, "{one.name}",\n      "{port}", {size});')
    return lines


def _play(design: StageDesign, found: Around, used: Sequence[Side], load_tables: int) -> str:
    inputs, outputs = (
        ", ".join(f"&{one.port}" for one in found.movers if one.feeds is feeds)
        for feeds in (True, False)
    )
    around = f"{{stage, {load_tables}, {'links' if used else '{}'}, {{{inputs}}}, {{{outputs}}}}}"
    return f'return host::play(told, {around}, "{design.name}");'


def kernels_cpp(design: StageDesign, found: Around, used: Sequence[Side]) -> str:
    """The text of ``sim/kernels.cpp``: every kernel of the board, and the pins of its arguments."""
    bundles = {p.name: memory_port(p.bundle) for p in pointers(design)}
    pins = [bundles.get(name, name) for _, name in arguments(design)]
    known = {top_name(design): pins}
    known |= {one.name: [memory_port(GMEM), one.stream, "frames"] for one in found.movers}
    known |= {side.packets.name: [*side.packets.pins, "frames"] for side in used}
    sources = ["src/stage_top.cpp", *(f"mover/{one.port}.cpp" for one in found.movers)]
    sources += [f"link/link_{side.packets.way}.cpp" for side in used]
    return filled(
        "kernels.cpp",
        stage=design.name,
        includes=[f'#include "../{source}"' for source in sources],
        kernels=[f"{_known(name, of)}," for name, of in known.items()],
    )


def _known(name: str, pins: Sequence[str]) -> str:
    words = ", ".join(f'"{pin}"' for pin in pins)
    return f'sim::know("{name}", {name},\n              {{{words}}})'
