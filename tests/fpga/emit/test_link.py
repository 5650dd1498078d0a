"""Scripts around the kernel: every port is led somewhere, once; banks are the board's."""

import math
import re
from dataclasses import replace

import pytest

from pipec.backends.fpga.banks import ddr_ports, with_banks
from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.link import Connections, Site, block_design, connect, link_cfg
from pipec.backends.fpga.emit.stage import texts_of
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.tables import pointers
from pipec.backends.fpga.wire import ports_of
from pipec.cluster.presets import preset
from tests.fpga.design.models import graph_of, made

BANKS = tuple(f"HBM[{k}]" for k in range(32))


@pytest.fixture(scope="module")
def design() -> StageDesign:
    """Two outputs of one input, and a matrix that is streamed from memory."""
    model, x = made("vgg")
    network = lower(graph_of(model, x))
    streamed = {layer.name: 1 for layer in network.layers if isinstance(layer.nest, Mvu)}
    found = size_fifos(design_at(network, 4_000, streamed=streamed))
    banked = with_banks(replace(found, ddr=ddr_ports(found)), preset("u280"))
    assert isinstance(banked, StageDesign)
    return banked


def test_link_cfg_leads_every_port_somewhere(design: StageDesign) -> None:
    inputs, outputs = ([n for n in ports_of(design) if n.startswith(p)] for p in ("in_", "out_"))
    crossing = [ports_of(design)[outputs[0]].port.value]
    text = link_cfg(design, connect(design, Site(crossing=crossing, banks=BANKS)))
    packets = "stage0_link_tx_1"  # a row of four numbers is half a beat
    assert f"stream_connect=stage0_top_1.{outputs[0]}:{packets}.{outputs[0]}\n" in text
    assert f"stream_connect={packets}.out:krnl_aurora_1.tx_axis\n" in text
    assert f"# to or from the host, by a data mover: stage0_top_1.{inputs[0]}\n" in text
    banks = dict(re.findall(r"^sp=stage0_top_1\.m_axi_(\w+):(\S+)$", text, re.MULTILINE))
    assert set(banks) == {p.bundle for p in pointers(design)}
    assert {banks[p.name] for p in design.ddr} == {p.bank for p in design.ddr}
    assert all(re.fullmatch(r"HBM\[\d+\]", bank) for bank in banks.values())
    assert text.count("nk=krnl_aurora:") == text.count("gt_refclk") == 1


def test_every_stream_of_the_host_has_a_mover_in_a_bank_of_its_own(design: StageDesign) -> None:
    text = link_cfg(design, connect(design, Site(platform=True, banks=BANKS, hosted=True)))
    banks = dict(re.findall(r"^sp=(\w+\.\w+):(\S+)$", text, re.MULTILINE))
    moved = {pin: bank for pin, bank in banks.items() if "_move_" in pin}
    own = {bank for pin, bank in banks.items() if pin not in moved}
    assert len(set(moved.values()) - own) == len(moved) == len(ports_of(design))
    streams = dict(re.findall(r"^stream_connect=(\S+):(\S+)$", text, re.MULTILINE))
    ends = {end.split(".")[1] for pair in streams.items() for end in pair}
    assert ends == {*ports_of(design), "in", "out"}
    kernels = re.findall(r"^nk=(\w+):1:\1_1$", text, re.MULTILINE)
    assert len(kernels) == 1 + len(moved)
    assert "by a data mover" not in text


def test_a_mover_says_how_much_memory_it_works_in(design: StageDesign) -> None:
    """Beats of 64 bytes of a frame in float32: co-simulation allocates no more than that."""
    emitted = texts_of(design, Site(platform=True, banks=BANKS, hosted=True))
    for name, wire in ports_of(design).items():
        (depth,) = re.findall(r" depth = (\d+) ", emitted[f"mover/{name}.cpp"])
        stream = wire.stream
        assert int(depth) == math.ceil(stream.rows * stream.tokens_per_row * stream.lanes / 16)


def test_cores_on_both_sides_of_a_board_are_one_kernel(several: StageDesign) -> None:
    ports = {**ports_of(several)}
    values = [wire.port.value for wire in ports.values()]
    text = link_cfg(several, connect(several, Site(crossing=values)))
    assert "nk=krnl_aurora:2:krnl_aurora_0,krnl_aurora_1\n" in text


@pytest.fixture(scope="module")
def several() -> StageDesign:
    """Two values out, both to the next board."""
    model, x = made("excite")
    found = size_fifos(design_at(lower(graph_of(model, x)), 1_000))
    assert len(found.outputs) > 1
    return found


def sending(text: str, found: Connections) -> dict[str, str]:
    """The streams that a configuration connects; every value sent goes to the link's kernel."""
    streams = dict(re.findall(r"^stream_connect=(\S+):(\S+)$", text, re.MULTILINE))
    for port in found.sends:
        assert streams[f"stage0_top_1.{port}"] == f"stage0_link_tx_1.{port}"
    return streams


def test_several_values_share_a_link(several: StageDesign) -> None:
    values = [port.value for port in several.outputs]
    found = connect(several, Site(crossing=values))
    text = link_cfg(several, found)
    streams = sending(text, found)
    assert streams["stage0_link_tx_1.out"] == "krnl_aurora_1.tx_axis"
    assert streams["krnl_aurora_1.rx_axis"] == "stage0_link_tx_1.back"
    assert len(streams) == len(values) + 2
    assert text.count("nk=stage0_link_tx:1:") == 1
    emitted = texts_of(several, Site(platform=True, crossing=values))
    assert {"link/link.h", "link/link_tx.cpp", "hls_link_tx.cfg"} <= emitted.keys()
    assert "hls_link_tx.cfg" in emitted["README.md"]
    assert "syn.top=stage0_link_tx\n" in emitted["hls_link_tx.cfg"]


@pytest.mark.parametrize("count", [1, 2])
def test_udp_takes_every_value_in_packets(several: StageDesign, count: int) -> None:
    values = [port.value for port in several.outputs][:count]
    found = connect(several, Site(crossing=values))
    text = link_cfg(several, found, udp=True)
    streams = sending(text, found)
    assert streams["stage0_link_tx_1.out"] == "networklayer_1.S_AXIS_sk2nl"
    assert streams["networklayer_1.M_AXIS_nl2sk"] == "stage0_link_tx_1.back"
    assert streams["networklayer_1.M_AXIS_nl2eth"] == "cmac_1.S_AXIS"
    assert streams["cmac_1.M_AXIS"] == "networklayer_1.S_AXIS_eth2nl"
    assert len(streams) == count + 4
    ends = {end.split(".")[0] for pair in streams.items() for end in pair}
    assert ends == set(re.findall(r"^nk=\w+:1:(\w+)$", text, re.MULTILINE))
    emitted = texts_of(several, Site(platform=True, crossing=values))
    assert emitted["link_udp.cfg"] == text
    assert "link/link_tx.cpp" in emitted
    assert ("link/link_tx.cpp" in texts_of(several, Site(platform=False, crossing=values))) == (
        count > 1
    )


def test_a_block_design_has_both_directions_of_a_shared_link(several: StageDesign) -> None:
    values = [port.value for port in several.outputs]
    found = connect(several, Site(crossing=values))
    text = block_design(several, found)
    for end in ("USER_DATA_M_AXIS_RX", "USER_DATA_S_AXIS_TX", "GT_SERIAL_RX", "GT_SERIAL_TX"):
        assert text.count(f"aurora_1/{end}]") == 1
    pins = re.findall(r"link_tx/(\w+)", text)
    assert sorted(pins) == sorted(
        [*found.sends, "ap_clk", "ap_rst_n", "s_axi_control", "out", "back"]
    )


WIDTHS = [(16, 7), (8, 4), (4, 6), (4, 5), (2, 4), (1, 9), (5, 8), (3, 64)]


@pytest.mark.parametrize(("lanes", "tokens"), WIDTHS)
@pytest.mark.parametrize("way", ["rx", "tx"])
def test_widths_of_a_link_fit(lanes: int, tokens: int, way: str) -> None:
    """A value goes without packets only if 32-byte beats hold it exactly; widths are converted."""
    stream = Stream("v", tokens, lanes, lanes)
    port = Port("v", "v", "v", (tokens, lanes), (0, 1), "float32")
    inputs, outputs = ((port,), ()) if way == "rx" else ((), (port,))
    stage = StageDesign("stage0", (), {"v": stream}, inputs, outputs, part="p")
    text = block_design(stage, connect(stage, Site(crossing=["v"])))
    width = 4 * lanes
    beats = -(-tokens * width // 32)  # of the link, the last one filled up
    direct = 32 * beats == tokens * width and 32 % min(width, 32) == 0 == max(width, 32) % 32
    assert (f"link_{way}" not in text) == direct
    link = re.findall(rf"link_{way}", link_cfg(stage, connect(stage, Site(crossing=["v"]))))
    assert (not link) == direct
    takes = re.findall(r"S_TDATA_NUM_BYTES (\d+) CONFIG.M_TDATA_NUM_BYTES (\d+)", text)
    if not direct:
        assert sorted(takes) == [("32", "64"), ("64", "32")]  # values, and credits the other way
    elif width == 32:
        assert not takes
    else:
        assert takes == [("32", str(width)) if way == "rx" else (str(width), "32")]


def test_block_design_connects_every_port_once(design: StageDesign) -> None:
    crossing = [ports_of(design)[n].port.value for n in ports_of(design)]
    text = block_design(design, connect(design, Site(crossing=crossing)))
    assert text.count("[") == text.count("]")
    kernel = re.findall(r"kernel/(\w+)", text)
    wanted = {f"m_axi_{p.bundle}" for p in pointers(design)} | set(ports_of(design))
    wanted |= {"ap_clk", "ap_rst_n", "s_axi_control"}
    assert sorted(kernel) == sorted(wanted)
    made_cells = re.findall(r"create_bd_cell -type ip -vlnv \S+ (\w+)", text)
    used = set(re.findall(r"get_bd_(?:intf_)?pins (\w+)/", text))
    assert len(made_cells) == len(set(made_cells))
    assert used == set(made_cells)


@pytest.mark.parametrize("count", [16, 17, 40, 300])
def test_memory_ports_reach_their_controller_through_interconnects_of_sixteen(
    design: StageDesign, count: int
) -> None:
    found = replace(connect(design, Site()), banks={f"b{k}": "DDR[0]" for k in range(count)})
    text = block_design(design, found)
    sizes = dict(re.findall(r"NUM_SI (\d+) \[get_bd_cells (ddr4_0_\w+)\]", text))
    assert max(map(int, sizes)) <= 16
    pairs = dict(re.findall(r"get_bd_intf_pins (\S+)\] \[get_bd_intf_pins (ddr4_0\S+)\]", text))
    assert len(set(pairs.values())) == len(pairs)
    for k in range(count):
        at = f"kernel/m_axi_b{k}"
        while at != "ddr4_0/C0_DDR4_S_AXI":
            at = pairs.pop(at) if at.startswith("kernel") else pairs[at]
            at = re.sub(r"S\d\d_AXI$", "M00_AXI", at)


def test_a_zynq_reads_the_memory_of_its_processor(design: StageDesign) -> None:
    """No controller is made of its fabric; names and numbers of ports are those of UG1085."""
    zcu102, numbers = (
        preset("zcu102"),
        {"HPC0": 0, "HPC1": 1, "HP0": 2, "HP1": 3, "HP2": 4, "HP3": 5},
    )
    banked = with_banks(replace(design, ddr=ddr_ports(design)), zcu102)
    assert isinstance(banked, StageDesign)
    site = Site.of(zcu102.fpga)
    found = connect(banked, site)
    text = block_design(banked, found)
    assert "ddr4" not in text
    used = set(found.banks.values())
    assert len(used) > 1
    joined = set(re.findall(r"\[get_bd_intf_pins processor/S_AXI_(\w+)_FPD\]", text))
    clocked = set(re.findall(r"clock/clk_out1\] \[get_bd_pins processor/saxi(\w+)_fpd_aclk", text))
    enabled = set(map(int, re.findall(r"PSU__USE__S_AXI_GP(\d) 1", text)))
    assert joined == used
    assert clocked == {port.lower() for port in used}
    assert enabled == {numbers[port] for port in used}
    cells = re.findall(r"create_bd_cell -type ip -vlnv \S+ (\w+)", text)
    assert set(re.findall(r"get_bd_(?:intf_)?pins (\w+)/", text)) == set(cells)
    assert "PCIe" not in texts_of(banked, site)["README.md"]


@pytest.mark.parametrize(("platform", "name"), [(True, "link.cfg"), (False, "block_design.tcl")])
def test_a_board_gets_what_its_tools_take(design: StageDesign, platform: bool, name: str) -> None:
    found = texts_of(design, Site(platform=platform))
    assert name in found
    assert {"link.cfg", "block_design.tcl"} - {name} & found.keys() == set()
    assert name in found["README.md"]
    # the pipelines that cycles are simulated for
    assert "\nsyn.compile.pipeline_style=frp\n" in found["hls_config.cfg"]
    opened, styled = (
        found["run_hls.tcl"].index(word)
        for word in ("open_solution -reset", "\nconfig_compile -pipeline_style frp\n")
    )
    assert opened < styled < found["run_hls.tcl"].index("csynth_design")
