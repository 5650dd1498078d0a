"""Clusters as people write them: devices, links, levels, and what is wrong with them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.cluster.cluster import Cluster, Level, Link, parse_cluster
from pipec.cluster.device import Device
from pipec.cluster.file import load_cluster
from pipec.cluster.presets import DSP_PER_MAC, PRESETS, preset
from pipec.cluster.units import BANDWIDTH, BYTES, FREQUENCY, RATE, TIME, parse, show
from pipec.errors import ClusterError

FULL = """
[[device]]
kind = "vcu129"
count = 2
clock = "250 MHz"

[[device]]
kind = "h100"
name = "h100-pcie"
memory = "40 GB"
bandwidth = "2 TB/s"
peak = { bfloat16 = "756 TFLOP/s" }

[[device]]
name = "npu"
family = "gpu"
memory = "32 GiB"
bandwidth = "1 TB/s"
peak = { float32 = "20 TFLOP/s" }
link_bandwidth = "200 Gb/s"

[[level]]
size = 2
bandwidth = "30 GB/s"
latency = "5 us"

[[link]]
between = [3, 2]
bandwidth = "100 Gb/s"
"""


def written(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return load_cluster(path)


def test_counts_and_kinds() -> None:
    assert [d.kind for d in parse_cluster("2xvcu129,2xVCU118").devices] == (
        ["vcu129"] * 2 + ["vcu118"] * 2
    )
    assert parse_cluster(" 8 x h100 ").size == 8
    assert parse_cluster("cpu").size == 1


@pytest.mark.parametrize("text", ["", "0xh100", "h100x4", "4x", "4xh100,,cpu", "-1xh100"])
def test_text_that_is_no_cluster(text: str) -> None:
    with pytest.raises(ClusterError, match=r"--devices cannot be read|no such device"):
        parse_cluster(text)


def test_an_unknown_device_suggests_its_neighbour() -> None:
    with pytest.raises(ClusterError, match="did you mean 'vcu118'"):
        parse_cluster("4xvcu188")
    with pytest.raises(ClusterError, match="describe it in a cluster file"):
        parse_cluster("4xabacus")


def test_a_file_with_everything(tmp_path: Path) -> None:
    cluster = written(tmp_path, FULL)
    assert str(cluster) == "2xvcu129,1xh100-pcie,1xnpu"
    fpga, _, h100, npu = cluster.devices
    assert fpga.fpga is not None
    assert fpga.fpga.clock_hz == 250e6
    assert fpga.flops("int8") == pytest.approx(1.25 * preset("vcu129").flops("int8"))
    assert (h100.memory_bytes, h100.memory_bandwidth) == (40e9, 2e12)
    assert (h100.flops("bfloat16"), h100.flops("float32")) == (756e12, 67e12)
    assert (npu.family, npu.flops("float16"), npu.link_bandwidth) == ("gpu", 20e12, 25e9)
    assert cluster.link(0, 1).bytes_per_second == 30e9, "the level"
    assert cluster.link(0, 1).latency_seconds == pytest.approx(5e-6)
    assert cluster.link(0, 1).seconds(60e9) == pytest.approx(2.000005)
    assert cluster.link(0, 1).seconds(0) == 0
    assert "H100" in h100.source
    assert npu.source.startswith("cluster.toml")
    assert cluster.link(2, 3) == cluster.link(3, 2) == Link(12.5e9, 0), "their own"
    slower = min(fpga.link_bandwidth, h100.link_bandwidth)
    assert cluster.link(1, 2).bytes_per_second == slower, "default ports"


def test_levels_nest() -> None:
    levels = (Level(4, Link(3e10, 0)), Level(2, Link(1e10, 0)), Level(4, Link(1e9, 0)))
    cluster = Cluster(parse_cluster("32xv100").devices, levels=levels)
    rates = [cluster.link(0, b).bytes_per_second for b in (3, 4, 7, 8, 31)]
    assert rates == [3e10, 1e10, 1e10, 1e9, 1e9]
    assert cluster.link(7, 8).bytes_per_second == 1e9


def test_plain_data_and_back(tmp_path: Path) -> None:
    cluster = written(tmp_path, FULL)
    assert Cluster.from_json(json.loads(json.dumps(cluster.to_json()))) == cluster
    with pytest.raises(ClusterError, match="malformed"):
        Cluster.from_json({"devices": [{"kind": "x"}]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no device"),
        ("[[device]\n", "cannot be read"),
        ("[device]\nkind = 'cpu'", "not a list of tables"),
        ("[[device]]\nkind = 'cpu'\nmemry = '1 GB'", "unknown key"),
        ("[[device]]\nkind = 'cpu'\ncount = 0", "at least 1"),
        ("[[device]]\nkind = 'cpu'\ncount = true", "at least 1"),
        ("[[device]]\nkind = 3", "not a text"),
        ("[[device]]\ncount = 2", "no bandwidth, family, memory, name, peak"),
        ("[[device]]\nkind = 'cpu'\nmemory = '12 GBs'", r"device\[0\]\.memory"),
        ("[[device]]\nkind = 'cpu'\nmemory = 12", "a number and one of"),
        ("[[device]]\nkind = 'cpu'\nclock = '1 GHz'", "only an FPGA"),
        ("[[device]]\nkind = 'cpu'\npeak = '1 TFLOP/s'", "not a table"),
        ("[[device]]\nkind = 'cpu'\n[[link]]\nbetween = [0, 1]\nbandwidth = '1 GB/s'", "below 1"),
        ("[[device]]\nkind = 'cpu'\n[[level]]\nsize = 2\nbandwidth = '0 B/s'", "above 0"),
        (
            "[[device]]\nkind = 'cpu'\n[[device]]\nkind = 'cpu'\nmemory = '1 GB'",
            "one kind have different figures",
        ),
        (
            "[[device]]\nname='x'\nfamily='fpga'\nmemory='1 GB'\nbandwidth='1 GB/s'\npeak={}",
            "a gpu or a cpu",
        ),
        (
            "[[device]]\nname='x'\nfamily='cpu'\nmemory='1 GB'\nbandwidth='1 GB/s'\npeak={}",
            "peak needs float32",
        ),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        written(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be read"):
        load_cluster(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("100 Gb/s", BANDWIDTH, 12.5e9),
        ("100Gbps", BANDWIDTH, 12.5e9),
        ("1.5 GiB", BYTES, 1.5 * 2**30),
        ("5 us", TIME, 5e-6),
        ("2e3 ns", TIME, 2e-6),
        ("300 MHz", FREQUENCY, 3e8),
        ("989 TFLOP/s", RATE, 989e12),
    ],
)
def test_quantities(text: str, units: dict[str, float], value: float) -> None:
    assert parse(text, units, "here") == pytest.approx(value)


@pytest.mark.parametrize("text", ["12", "GB/s", "12 gb/s", "12 GBs", "-1 GB/s", "1 000 GB/s", None])
def test_text_that_is_no_quantity(text: object) -> None:
    with pytest.raises(ClusterError, match="link"):
        parse(text, BANDWIDTH, "link")


@given(st.floats(1e-8, 1e13))
def test_shown_quantities_read_back(value: float) -> None:
    units = {**BANDWIDTH, "mB/s": 1e-3, "uB/s": 1e-6, "nB/s": 1e-9, "kB/s": 1e3}
    assert math.isclose(parse(show(value, "B/s"), units, ""), value, rel_tol=6e-3)


def test_every_preset_has_figures_and_a_source() -> None:
    gpus, boards = {"v100", "a100", "h100", "h200"}, {"vcu118", "vcu129", "zcu102"}
    assert gpus | boards | {"u250", "u280", "u55c", "cpu"} <= set(PRESETS)
    for kind, device in PRESETS.items():
        assert device.kind == kind
        assert len(device.source) > 20
        assert device.family in ("gpu", "cpu", "fpga")
        assert min(device.memory_bytes, device.memory_bandwidth, device.link_bandwidth) > 0
        assert (device.fpga is not None) == (device.family == "fpga")


def test_fpga_peaks_follow_from_slices() -> None:
    board = preset("vcu118")
    assert board.fpga is not None
    for dtype, slices in DSP_PER_MAC.items():
        units = board.fpga.dsp * 0.70 / slices
        assert board.flops(dtype) == pytest.approx(2 * units * board.fpga.clock_hz)
    bits = board.fpga.bram36 * 36_864 + board.fpga.uram * 294_912
    assert board.fpga.on_chip_bytes == bits // 8
    assert preset("vcu129").fpga.on_chip_bytes * 8 == pytest.approx(454.5e6, rel=0.06)  # type: ignore[union-attr]


def test_a_processor_has_six_memory_ports() -> None:
    fabric = preset("zcu102").fpga
    assert fabric is not None
    with pytest.raises(ClusterError, match=r"fewer memory ports[^§]*got: +7[^§]*at most 6: HP0"):
        replace(preset("zcu102"), fpga=replace(fabric, memory_ports=7))


@pytest.mark.parametrize(
    "name", ["", "a\nb", "x\\", "$(id)", "[exec id]", "a;b", "\u202ea", "`x`", "a" * 65]
)
def test_names_that_programs_cannot_hold_are_refused(name: str, tmp_path: Path) -> None:
    text = "".join(f"\\U{ord(c):08X}" for c in name)
    (tmp_path / "c.toml").write_text(f'[[device]]\nkind = "vcu118"\nname = "{text}"\n')
    with pytest.raises(ClusterError, match="cannot be written everywhere"):
        load_cluster(tmp_path / "c.toml")
    forged = preset("vcu118", "here").to_json() | {"kind": name}
    with pytest.raises(ClusterError, match="cannot be written everywhere"):
        Device.from_json(forged)
    fpga = forged["fpga"]
    assert isinstance(fpga, dict)
    if name:
        with pytest.raises(ClusterError, match="cannot be written everywhere"):
            Device.from_json({**forged, "kind": "a", "fpga": {**fpga, "part": name}})
