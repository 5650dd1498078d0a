"""Cluster files.

```toml
[[device]]
kind = "vcu129"          # a preset
count = 2

[[device]]
kind = "h100"            # a preset with figures of one's own, under a name of its own
name = "h100-pcie"
memory = "40 GB"
bandwidth = "2 TB/s"
peak = { float32 = "51 TFLOP/s", bfloat16 = "756 TFLOP/s" }
host_bandwidth = "25 GB/s"   # between device and host memory

[[device]]
name = "npu"             # a device of one's own
family = "gpu"           # gpu or cpu: runs one node after the other
memory = "32 GiB"
bandwidth = "1 TB/s"
peak = { float32 = "20 TFLOP/s" }

[[level]]                # groups of 4 devices, then groups of groups
size = 4
bandwidth = "30 GB/s"
latency = "5 us"

[[link]]                 # one pair, stronger than any level
between = [3, 4]
bandwidth = "100 Gb/s"
```
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipec.cluster.cluster import Cluster, Level, Link, copies
from pipec.cluster.device import Device
from pipec.cluster.presets import preset
from pipec.cluster.units import BANDWIDTH, BYTES, FREQUENCY, RATE, TIME, parse
from pipec.errors import ClusterError

_FIGURES = {
    "memory": ("memory_bytes", BYTES),
    "bandwidth": ("memory_bandwidth", BANDWIDTH),
    "link_bandwidth": ("link_bandwidth", BANDWIDTH),
    "link_latency": ("link_latency", TIME),
    "host_bandwidth": ("host_bandwidth", BANDWIDTH),
    "launch": ("launch_seconds", TIME),
}
_DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int16",
           "int32", "int64", "int8", "uint8")  # fmt: skip
_ABOVE = 'such as "10 GB/s", or "16 GB" of memory'
_KEYS = {"kind", "name", "family", "count", "clock", "peak", *_FIGURES}


def load_cluster(path: Path) -> Cluster:
    """A cluster from a TOML file (see the module's docstring).

    Raises:
        ClusterError: The file cannot be read, or a table, unit or device is wrong.
    """
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(
            "the cluster file cannot be read",
            where=path,
            got=error,
            hint="--cluster takes a TOML file; a short form such as 4xh100 goes to --devices",
        ) from error
    _only(data, {"device", "link", "level"}, str(path))
    tables = _tables(data, "device", path)
    if not tables:
        raise ClusterError("the cluster file names no device", where=path, want="[[device]]")
    devices = [d for k, table in enumerate(tables) for d in _devices(table, f"{path}, device[{k}]")]
    links = dict[tuple[int, int], Link]()
    for k, table in enumerate(_tables(data, "link", path)):
        pair, link = _pair(table, len(devices), f"{path}, link[{k}]")
        if pair in links:
            want = "one [[link]] per pair; both directions have the same speed"
            raise ClusterError("a pair has two links", where=path, got=list(pair), want=want)
        links[pair] = link
    levels = [
        _level(table, f"{path}, level[{k}]") for k, table in enumerate(_tables(data, "level", path))
    ]
    return Cluster(tuple(devices), links, tuple(levels))


def _tables(data: Mapping[str, Any], name: str, path: Path) -> list[Mapping[str, Any]]:
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ClusterError(f"{name} is not a list of tables", where=path, want=f"[[{name}]]")
    return tables


def _devices(table: Mapping[str, Any], where: str) -> list[Device]:
    _only(table, _KEYS, where)
    for key in ("kind", "name", "family"):
        if key in table and not isinstance(table[key], str):
            raise ClusterError(f"{key} is not a text", where=where, got=table[key], want="quotes")
    if {"kind", "family"} <= table.keys():
        want = "kind, a preset, or family, for a device of one's own"
        raise ClusterError("a preset has its family", where=where, got=table["family"], want=want)
    device = preset(table["kind"], where) if "kind" in table else _blank(table, where)
    for key, (name, units) in _FIGURES.items():
        if key in table:
            value = parse(table[key], units, f"{where}.{key}")
            if value <= 0 and units is not TIME:
                raise ClusterError(
                    f"{key} is not above 0", where=where, got=table[key], want=_ABOVE
                )
            device = dataclasses.replace(device, **{name: value})  # type: ignore[arg-type]
    if "peak" in table:
        device = dataclasses.replace(device, peak_flops=_peak(table["peak"], device, where))
    if "clock" in table:
        device = _set_clock(device, parse(table["clock"], FREQUENCY, f"{where}.clock"), where)
    if _KEYS - {"kind", "count"} & table.keys():
        kind = str(table.get("name", device.kind)).lower()
        source = f"{device.source}{'; changed by ' if device.source else ''}{Path(where).name}"
        device = dataclasses.replace(device, kind=kind, source=source)
    return copies(device, _count(table.get("count", 1), f"{where}.count"), f"{where}.count")


def _blank(table: Mapping[str, Any], where: str) -> Device:
    """A device without a preset; figures that have no default are required."""
    wanted = {"name", "family", "memory", "bandwidth", "peak"}
    if missing := sorted(wanted - table.keys()):
        raise ClusterError(
            "a device has no kind, and not all figures of its own",
            where=where,
            got=f"no {', '.join(missing)}",
            want='kind = "vcu118", or name, family, memory, bandwidth and peak',
        )
    if table["family"] not in ("gpu", "cpu"):
        raise ClusterError(
            "a device of one's own is a gpu or a cpu",
            where=f"{where}.family",
            got=table["family"],
            hint="for an FPGA take a preset and change its clock",
        )
    like = preset("h100" if table["family"] == "gpu" else "cpu", where)
    return dataclasses.replace(
        like, kind=table["name"], peak_flops={}, source="",
        compute_efficiency=1.0, memory_efficiency=1.0,
    )  # fmt: skip


def _peak(table: object, device: Device, where: str) -> dict[str, float]:
    if not isinstance(table, dict):
        raise ClusterError(
            "peak is not a table", where=where, got=table, want='{ float32 = "20 TFLOP/s" }'
        )
    rates = {dtype: parse(text, RATE, f"{where}.peak.{dtype}") for dtype, text in table.items()}
    peak = {**device.peak_flops, **rates}
    if "float32" not in peak or min(peak.values()) <= 0 or not peak.keys() <= set(_DTYPES):
        want = f"rates above 0 of float32, and of others of {', '.join(_DTYPES)}"
        raise ClusterError(
            "peak needs float32, and known dtypes", where=where, got=table, want=want
        )
    return peak


def _set_clock(device: Device, clock_hz: float, where: str) -> Device:
    if device.fpga is None or clock_hz <= 0:
        raise ClusterError(
            "only an FPGA has a clock to choose, above 0",
            where=where,
            got=device.kind,
            want='an FPGA and such as clock = "250 MHz"',
        )
    scale = clock_hz / device.fpga.clock_hz
    return dataclasses.replace(
        device,
        fpga=dataclasses.replace(device.fpga, clock_hz=clock_hz),
        peak_flops={dtype: peak * scale for dtype, peak in device.peak_flops.items()},
    )


def _pair(table: Mapping[str, Any], size: int, where: str) -> tuple[tuple[int, int], Link]:
    _only(table, {"between", "bandwidth", "latency"}, where)
    ends = table.get("between")
    if not (isinstance(ends, list) and len(ends) == 2 and ends[0] != ends[1]) or not all(
        isinstance(e, int) and not isinstance(e, bool) and 0 <= e < size for e in ends
    ):
        raise ClusterError(
            "a link does not join two devices", where=where, got=ends, want=f"[a, b] below {size}"
        )
    return (min(ends), max(ends)), _link(table, where)


def _level(table: Mapping[str, Any], where: str) -> Level:
    _only(table, {"size", "bandwidth", "latency"}, where)
    return Level(_count(table.get("size"), f"{where}.size"), _link(table, where))


def _link(table: Mapping[str, Any], where: str) -> Link:
    rate = parse(table.get("bandwidth"), BANDWIDTH, f"{where}.bandwidth")
    if rate <= 0:
        raise ClusterError("bandwidth is not above 0", where=where, want=_ABOVE)
    return Link(rate, parse(table.get("latency", "0 s"), TIME, f"{where}.latency"))


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        want = "a whole number of at least 1"
        raise ClusterError("this is no count", where=where, got=value, want=want)
    return value


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ClusterError("unknown key", where=where, got=key, want=", ".join(sorted(known)))
