"""What surrounds the sources: vendor scripts, Makefile, README."""

from collections.abc import Sequence

from pipec.backends.fpga.csim.build import (
    BOUNDED,
    FLAGS,
    INCLUDES,
    SANITIZED,
    SOURCES,
    STANDARD,
    TIMED,
)
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.emit.block import block_design
from pipec.backends.fpga.emit.cpp import comment
from pipec.backends.fpga.emit.floorplan import FLOORPLAN, floorplan_xdc
from pipec.backends.fpga.emit.host import HOST, KERNELS, host_files
from pipec.backends.fpga.emit.link import around, link_cfg, link_udp_cfg, sides
from pipec.backends.fpga.emit.mover import Mover, mover_files
from pipec.backends.fpga.emit.readme import readme
from pipec.backends.fpga.emit.share import Shared, link_files
from pipec.backends.fpga.emit.source import top_name

PIPELINE_STYLE = "frp"
"""Free-running pipelines, which all cycles are for (`Style.FREE`); without a word the tool chooses,
by version and pipeline. It does not make one of a pipeline on m_axi, and says so (UG1448)."""


def scripts(
    design: StageDesign,
    tolerance: float,
    *,
    platform: bool,
    crossing: Sequence[str] = (),
    banks: Sequence[str] = ("DDR[0]",),
    hosted: bool = False,
    alone: bool = True,
) -> dict[str, str]:
    """File name to text of everything around the sources.

    Args:
        design: The stage.
        tolerance: What its test bench accepts.
        platform: Whether the board has a Vitis platform; an IP is exported where it has none.
        crossing: Values that come from or go to another board.
        banks: Names of the board's memory ports.
        hosted: Whether a host program is written, for a board with a Vitis platform.
        alone: Whether no other kernel of ours stands on its board; one file beside the folders of
            several says what joins them.
    """
    hosted = hosted and platform
    found = around(design, crossing, banks, hosted=hosted)
    regions = {FLOORPLAN: floorplan_xdc(design)} if design.floorplan.regions else {}
    used = sides(design, found)
    muxes = [side.packets for side in used if platform or side.mux is not None]
    board: dict[str, str] = {}
    if alone and platform:
        board = {"link.cfg": link_cfg(design, found), "link_udp.cfg": link_udp_cfg(design, found)}
    elif alone:
        board = {"block_design.tcl": block_design(design, found)}
    clock = period_ns(design)
    building = board_targets(design, found.movers, muxes) if hosted else ""
    return {
        "Makefile": makefile(design) + building,
        "hls_config.cfg": hls_config(design, platform=platform),
        "run_hls.tcl": run_hls(design, platform=platform),
        **board,
        **regions,
        **link_files(design, muxes, clock, platform=platform),
        **mover_files(design, found.movers, clock),
        **(host_files(design, found, used, tolerance) if hosted else {}),
        "README.md": readme(
            design, tolerance, platform=platform, shares=bool(muxes), hosted=hosted, alone=alone
        ),
    }


def period_ns(design: StageDesign) -> str:
    """Clock period in nanoseconds.

    Example:
        >>> period_ns(StageDesign("s", (), {}, (), (), clock_mhz=300.0))
        '3.333'
    """
    return f"{1e3 / design.clock_mhz:.4g}"


def makefile(design: StageDesign) -> str:
    """``make csim`` with plain g++; ``make hls`` with the vendor's tool."""
    flags = " ".join((*STANDARD, *FLAGS))
    return f"""\
# C simulation of {design.name} with any C++17 compiler; no vendor tool is needed for it.
CXX      ?= g++
CXXFLAGS ?= {flags}
INCLUDES := {" ".join(INCLUDES)}
SOURCES  := {" ".join(SOURCES)}
HEADERS  := $(wildcard src/*.h src/engines/*.h tb/*.h csim/*.h)

FRAMES   ?= 3

.PHONY: csim timed bounded asan hls clean

csim: build/csim        ## compile, play the golden frame, compare
\t./build/csim .

timed: build/timed      ## the same, with the cycle of every handshake: latency, interval
\t./build/timed . $(FRAMES)

bounded: build/bounded  ## the same, with streams as deep as declared: a deadlock is named
\t./build/bounded . $(FRAMES)

asan: build/asan        ## the same under the address and undefined-behaviour sanitizers
\t./build/asan .

build/csim build/timed build/bounded build/asan: $(SOURCES) $(HEADERS)
\t@mkdir -p build
\t$(CXX) $(CXXFLAGS) $(EXTRA) $(INCLUDES) $(SOURCES) -o $@

build/timed: EXTRA := {" ".join(TIMED)}
build/bounded: EXTRA := {" ".join(BOUNDED)}
build/asan: EXTRA := {" ".join(SANITIZED)}

hls:                    ## synthesis and export (Vitis)
\tv++ -c --mode hls --config hls_config.cfg --work_dir build/hls

clean:
\trm -rf build
"""


def board_targets(design: StageDesign, moved: Sequence[Mover], packets: Sequence[Shared]) -> str:
    """``make xclbin`` and ``make host`` with the vendor's tools; ``make host-sim`` without."""
    configs = ["hls_config.cfg", *(f"hls_move_{one.port}.cfg" for one in moved)]
    configs += [f"hls_link_{one.way}.cfg" for one in packets]
    return f"""\

# The board (Vitis and XRT), and its host program on a board in software (g++ alone).
PLATFORM ?= $(error PLATFORM is the platform of the board, as v++ --platform takes it)
LINK     ?= link.cfg
KERNELS  ?=
CONFIGS  := {" ".join(configs)}
AROUND   := $(wildcard host/* sim/* sim/xrt/* mover/* link/*)

.PHONY: xclbin host host-sim

xclbin: build/{design.name}.xclbin  ## KERNELS: .xo of link cores that are built elsewhere

build/%.done: %.cfg
\t@mkdir -p build
\tv++ -c --mode hls --config $< --work_dir build/$*
\ttouch $@

build/{design.name}.xclbin: $(CONFIGS:%.cfg=build/%.done) $(LINK)
\tv++ -l -t hw --platform $(PLATFORM) --config $(LINK) \\
\t  $$(find build -name '*.xo') $(KERNELS) -o $@

host: build/host        ## then: build/host build/{design.name}.xclbin

build/host: $(HEADERS) $(AROUND)
\t@mkdir -p build
\t$(CXX) $(CXXFLAGS) -I$(XILINX_XRT)/include -Ihost $(INCLUDES) {HOST} \\
\t  -L$(XILINX_XRT)/lib -lxrt_coreutil -pthread -o $@

host-sim: build/host-sim  ## the host program and all kernels, joined as $(LINK) says
\t./build/host-sim $(LINK) --frames $(FRAMES)

build/host-sim: src/stage_top.cpp $(HEADERS) $(AROUND)
\t@mkdir -p build
\t$(CXX) $(CXXFLAGS) -Isim -Ihost -Imover -Ilink $(INCLUDES) \\
\t  {HOST} {KERNELS} -pthread -o $@
"""


def hls_config(design: StageDesign, *, platform: bool) -> str:
    """For ``v++ -c --mode hls`` (Vitis 2023.2 and newer)."""
    flow, form, suffix = _product(platform=platform)
    return f"""\
# {design.name}: {comment(design.device)}
part={design.part}

[hls]
flow_target={flow}
clock={period_ns(design)}ns
syn.file=src/stage_top.cpp
syn.file=src/stage_top.h
syn.file=src/types.h
syn.cflags=-Isrc -Isrc/engines -std=c++14
syn.top={top_name(design)}
syn.compile.pipeline_style={PIPELINE_STYLE}
tb.file=tb/tb_stage.cpp
tb.cflags=-Isrc -Isrc/engines -Itb -std=c++14
csim.argv={{$PWD}}
cosim.argv={{$PWD}}
package.output.format={form}
package.output.file={top_name(design)}.{suffix}
"""


def _product(*, platform: bool) -> tuple[str, str, str]:
    """Flow, package format and file suffix of what synthesis exports."""
    return ("vitis", "xo", "xo") if platform else ("vivado", "ip_catalog", "zip")


def run_hls(design: StageDesign, *, platform: bool) -> str:
    """For tools before 2023.2: ``vitis_hls -f run_hls.tcl``, in this directory."""
    flow, form, suffix = _product(platform=platform)
    product = f"$stage/{top_name(design)}.{suffix}"
    return f"""\
# {design.name}: run in this directory. Argument 1 may be csim, csynth, cosim or export (default).
set stage [file normalize [file dirname [info script]]]
set step [expr {{$argc > 0 ? [lindex $argv end] : "export"}}]
open_project -reset build_hls
set_top {top_name(design)}
add_files $stage/src/stage_top.cpp -cflags "-I$stage/src -I$stage/src/engines -std=c++14"
add_files -tb $stage/tb/tb_stage.cpp \\
    -cflags "-I$stage/src -I$stage/src/engines -I$stage/tb -std=c++14"
open_solution -reset -flow_target {flow} solution
set_part {design.part}
config_compile -pipeline_style {PIPELINE_STYLE}
create_clock -period {period_ns(design)} -name default
if {{$step in {{csim cosim}}}} {{ csim_design -argv $stage }}
if {{$step != "csim"}} {{ csynth_design }}
if {{$step == "cosim"}} {{ cosim_design -argv $stage }}
if {{$step == "export"}} {{ export_design -format {form} -output {product} }}
exit
"""
