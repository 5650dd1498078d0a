"""The README of a stage: what it is, how it is run, what was checked and what was not."""

from pipec.backends.fpga.design import Port, StageDesign
from pipec.backends.fpga.emit.cpp import comment, identifier
from pipec.backends.fpga.emit.source import (
    moved_tokens,
    moved_type,
    moving,
    port_names,
    top_name,
)
from pipec.backends.fpga.emit.tables import off_chip, on_chip

_WITH_PLATFORM = """\
`link.cfg` is for `v++ --link`: memory banks, and an Aurora kernel (`krnl_aurora`, to be built from
the vendor's example) in front of each QSFP cage, the board before behind the first one.
`link_udp.cfg` is the same with the UDP network kernels of xup_vitis_network_example (`cmac_0`,
`cmac_1`, `networklayer`): socket 0 of each network layer is the board on that side, every packet is
one datagram of at most 1,088 bytes, and nothing is sent again that a switch has dropped."""
_SEVERAL = """
Where several values cross a link, or frames that are no whole beats of it, and over UDP always, the
kernels in `link/` (`v++ -c --mode hls --config hls_link_tx.cfg --work_dir build_link`) lead them
over it in packets of 64-byte beats, with credits that come back on its other direction, so that no
value waits for another. The host starts them with the number of frames.
"""
_HOST = """
## Host

A host reaches memory and no stream, so every stream to or from it has a kernel in `mover/` that
moves frames between the two. `host/host.cpp` is the host program, on XRT's native C++ API: it loads
the tables into the banks that `link.cfg` gives them, then calls the kernels batch after batch,
with two buffers per stream, and prints frames per second.

```sh
make xclbin PLATFORM=... [KERNELS=krnl_aurora.xo]    # v++: every kernel, then link.cfg
make host                                            # g++ with XRT ($XILINX_XRT)
build/host build/{stage}.xclbin --frames 1000        # the golden frame over and over, compared
build/host build/{stage}.xclbin --data DIR --frames 1000    # DIR/in_*.bin to DIR/out_*.bin
make host-sim                                        # the host and all kernels, without a board
```

`make host-sim` compiles the same `host.cpp` with g++ against `sim/`: XRT's headers over a board in
software that loads `link.cfg`, refuses what is not connected and buffers in other banks, and runs
the kernels' own C++ in threads. Cage K of a link is the socket whose path is in `SIM_QSFP<K>`; of a
chain the boards run at once:

```sh
(cd stage0_...; SIM_QSFP1=/tmp/link0 build/host-sim link.cfg --frames 9) &
(cd stage1_...; SIM_QSFP0=/tmp/link0 SIM_QSFP1=/tmp/link1 build/host-sim link.cfg --frames 9) &
```

On boards it is the same: one `build/host` for each, with the same `--frames`, started within
`--timeout`. XRT's own library and a board were not at hand when this was written: the calls follow
its documented headers.
"""
_AMONG = """\
Other kernels of the stage stand on the same board: `../connections.{suffix}` {what}, with the
memories and the streams between them. Links to other boards are left to you. There is no host
program for the kernels of training, and no movers: the order of their calls is the schedule's, and
`pipec verify` plays it in C simulation."""
_WITHOUT_PLATFORM = """\
This board has no Vitis platform: the kernel is exported as an IP, and `block_design.tcl` puts it
into a Vivado block design with its memory controllers and Aurora cores; pins, the board's clock and
the host's access are left to you. XRT needs a platform, so there is no host program. A host gets in
over PCIe through an XDMA core that you add to the block design: its AXI-Lite master to
`s_axi_control` of each kernel (offsets of the registers are in `x{top}_hw.h` among the drivers of
the exported IP), its AXI master to the DDR4 controllers for the tables, and its stream channels, or
AXI DMA cores, to the ports that no link feeds or reads: the beats of the table above, TLAST at the
end of each frame."""
_CHECKED = """\
## What is checked, and what is not

`make csim` checks, without a vendor tool, and `pipec verify` does for all stages in a chain: the
C++ compiles with g++; its C simulation agrees with torch within the tolerance (`tb/golden` holds
what torch computed for this stage); every stream is read to its last token and never beyond; TLAST
marks the frames. `src/types.h`, the FIFO depths in `src/stage_top.cpp` and `stage.json` come from
one design. Streams are unbounded in this build;
`make bounded` gives them their declared depths and names a deadlock, and `make timed` notes the
cycle of every handshake: `pipec verify --timed` compares them with the simulator's, one by one. The
pragmas were linted: names, targets, partitions, canonical dataflow, one writer and one reader per
stream, bounds equal to `stage.json`.

Simulated or estimated, not measured on a board: cycles and resources in `stage.json`.

Only a vendor tool can say: whether synthesis reaches the initiation intervals that the pragmas ask
for, resource use after synthesis, timing at {clock:g} MHz, FIFO behaviour in
co-simulation, and whether links and memories come up on the board. None of its steps was run.
"""


def readme(
    design: StageDesign,
    tolerance: float,
    *,
    platform: bool,
    shares: bool = False,
    hosted: bool = False,
    alone: bool = True,
) -> str:
    """The text of ``README.md``.

    Args:
        design: The stage.
        tolerance: What its test bench accepts.
        platform: Whether the board has a Vitis platform.
        shares: Whether kernels in ``link/`` lead values over its links.
        hosted: Whether it has a host program.
        alone: Whether no other kernel of ours stands on its board.
    """
    around = _WITH_PLATFORM if platform else _WITHOUT_PLATFORM.format(top=top_name(design))
    if not alone:
        suffix, what = ("cfg", "links all") if platform else ("tcl", "is a block design of all")
        around = _AMONG.format(suffix=suffix, what=what)
    several = _SEVERAL if shares else ""
    host = _HOST.format(stage=design.name) if hosted else ""
    product = "kernel .xo" if platform else "IP"
    ports = "\n".join(_row(name, port, design) for name, port in port_names(design).items())
    chip = sum(t.weight.bits for t in on_chip(design)) / 8e6
    ddr = sum(w.bits for _, _, w in off_chip(design)) / 8e6
    return f"""\
# {design.name} for {design.device or "a board"} ({design.part or "part not set"})

HLS C++ of one pipeline stage: {len(design.engines)} engines in one DATAFLOW region, top function
`{top_name(design)}`, {design.clock_mhz:g} MHz, {design.precision}. Tables: {chip:.3f} MB on chip,
{ddr:.3f} MB streamed from memory.

| port | value | shape | axes on the wire | beats per frame | bits |
| --- | --- | --- | --- | --- | --- |
{ports}

A beat carries consecutive elements of one row (channels innermost); the last beat of a row is
padded with zeros. TLAST ends a frame. `src/weights/*.bin` and `tb/golden/*.bin` are little endian,
dense, without a header; `tb/ports.json` says what each data file holds.

## Use

```sh
make csim                     # g++: play tb/golden, compare; tolerance {tolerance:g}, relative
make asan                     # the same under sanitizers
make timed                    # the same with cycles: latency and interval
make bounded                  # the same with streams as deep as declared
make hls                      # v++ -c --mode hls (Vitis 2023.2 or newer): {product}
vitis_hls -f run_hls.tcl      # older tools: csim, csynth, cosim or export as last argument
build/csim . DATA FRAMES      # play DATA/in_*.bin, write DATA/out_*.bin; they may be named pipes
```

{around}
{several}{_regions(design)}
{_tables(design)}{host}{_memory(design)}
{_CHECKED.format(clock=design.clock_mhz)}"""


def _tables(design: StageDesign) -> str:
    if not on_chip(design):
        return "The kernel has no tables on chip; `load_tables` says nothing to it.\n"
    return """\
The host writes the image behind each `tables_` pointer once (the files of its type one after the
other, each at a multiple of 64 bytes, in the order of the `load_table` calls), starts the kernel
with `load_tables=1`, and after that with `load_tables=0`, any number of frames per call.
"""


def _regions(design: StageDesign) -> str:
    if not design.floorplan.regions:
        return ""
    return """
The chip has several super logic regions; `floorplan.xdc` assigns every engine to one, within a
budget per region and with few wires between them (`stage.json` says how many).
"""


def _memory(design: StageDesign) -> str:
    """What the host must know of values that move through memory."""
    ports = moving(design)
    if not ports:
        return ""
    rows = []
    for port in ports:
        tokens, slots = moved_tokens(design, port)
        kind = design.engine(port.engine).kind
        word = moved_type(design, port)
        rows.append(
            f"| `{identifier(port.name)}` | {kind} | {word} | {tokens} | {slots} | {port.bank} |"
        )
    lines = "\n".join(rows)
    return f"""
Buffers in memory, which kernels of this board share by their names:

| pointer | engine | token | tokens | slots | bank |
| --- | --- | --- | --- | --- | --- |
{lines}

`microbatch` is the number of the first frame of a call; frame n uses slot n mod slots. Where there
is an argument `microbatches`, sums begin anew with every n that it divides.
"""


def _row(name: str, port: Port, design: StageDesign) -> str:
    stream = design.streams[port.stream]
    shape, order = ("x".join(map(str, port.shape)), ",".join(map(str, port.order)))
    return (
        f"| `{name}` | {comment(port.value)} | {shape or 'scalar'} {port.dtype} | {order} "
        f"| {stream.tokens} | {stream.token_bits} |"
    )
