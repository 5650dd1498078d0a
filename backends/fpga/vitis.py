"""What a user's own run of Vitis HLS reported, beside the estimate of each engine.

``run_hls.tcl`` leaves ``build_hls/solution/syn/report/MODULE_csynth.xml`` and, where it
co-simulates, ``build_hls/solution/sim/report/TOP_cosim.rpt``. An engine is a function template with
its configuration as first argument, so that the module of the engine ``conv2d_mvu`` is called
``mvu_b_conv2d_mvu_s``, or has further arguments before the ``s``; loops that the tool takes out of
it are modules of their own, ``mvu_b_conv2d_mvu_s_Pipeline_...``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pipec.errors import BackendError

_PARTS = {"DSP": "dsp", "LUT": "lut", "FF": "ff", "URAM": "uram", "BRAM_18K": "bram36"}
_OUTLINED = "_Pipeline_"


@dataclass(frozen=True)
class Module:
    """The report of one synthesised module.

    Attributes:
        name: Name of the module.
        loops: (name, initiation interval, pipeline stages) of each pipelined loop.
        latency: Most cycles of one call; None where the tool does not know.
        resources: ``dsp``, ``bram36``, ``uram``, ``lut``, ``ff``, with all that it calls.
        clock_ns: Estimated clock period; ``target_ns`` the one asked for.
    """

    name: str
    loops: tuple[tuple[str, int, int], ...] = ()
    latency: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    clock_ns: float = 0.0
    target_ns: float = 0.0


def read_module(path: Path) -> Module:
    """Read ``MODULE_csynth.xml`` as Vitis HLS 2020 and later write it.

    Raises:
        BackendError: It is not such a report.
    """
    try:
        text = path.read_text().replace("<!", "")  # no entity can be declared
        root = ElementTree.fromstring(text)  # noqa: S314
        area = {e.tag: float(e.text or 0) for e in root.iterfind("AreaEstimates/Resources/*")}
        area["BRAM_18K"] /= 2
        loops = root.iterfind("PerformanceEstimates/SummaryOfLoopLatency//PipelineII/..")
        numbers = (
            (x.tag, x.findtext("PipelineII", ""), x.findtext("PipelineDepth")) for x in loops
        )
        return Module(
            root.findtext("UserAssignments/TopModelName") or path.name.removesuffix("_csynth.xml"),
            tuple((name, int(ii), int(depth or 0)) for name, ii, depth in numbers),
            _count(root.findtext(".//SummaryOfOverallLatency/Worst-caseLatency")),
            {ours: area.get(theirs, 0.0) for theirs, ours in _PARTS.items()},
            float(root.findtext(".//SummaryOfTimingAnalysis/EstimatedClockPeriod") or 0),
            float(root.findtext("UserAssignments/TargetClockPeriod") or 0),
        )
    except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
        raise BackendError("not a report of Vitis HLS", where=path, got=str(error)) from error


def read_cosimulation(path: Path) -> int | None:
    """Most cycles of one run in RTL, of ``TOP_cosim.rpt``; None if none passed."""
    found = re.search(
        r"^\|\s*(?:Verilog|VHDL)\s*\|\s*Pass\s*\|(.*)$",
        path.read_text(errors="replace"),
        re.MULTILINE,
    )
    cells = found[1].split("|") if found else []
    return _count(cells[2]) if len(cells) > 2 else None


def add_reports(stages: Iterable[dict[str, Any]], directory: Path) -> int:
    """Give every engine of a report's rows what the tool made of it; how many stages have reports.

    Rows are those of `pipec.backends.fpga.cycles.engines_of`, changed in place under ``vitis``;
    reports may lie at any depth.

    Raises:
        BackendError: A file is not such a report.
    """
    found, reports = 0, sorted(directory.rglob("*_csynth.xml"))
    for stage in stages:
        top = f"{stage['name']}_top"
        for file in [p for p in reports if p.name == f"{top}_csynth.xml"][:1]:
            found += 1
            modules = [read_module(p) for p in sorted(file.parent.glob("*_csynth.xml"))]
            runs = sorted(file.parent.parent.parent.glob(f"sim/report/{top}_cosim.rpt"))
            whole = read_module(file)
            stage["vitis"] = {
                "latency": whole.latency,
                "cosimulated": read_cosimulation(runs[0]) if runs else None,
                "clock_ns": whole.clock_ns,
                "resources": dict(whole.resources),
            }
            owned = _assign(modules, [e["name"] for e in stage["engines"]])
            for engine in stage["engines"]:
                if own := owned.get(engine["name"]):
                    parts = [m for m in modules if m.name.split(_OUTLINED)[0] == own.name]
                    loops = [loop for m in parts for loop in m.loops]
                    engine["vitis"] = {
                        "module": own.name,
                        "ii": max((ii for _, ii, _ in loops), default=None),
                        "depth": max((depth for *_, depth in loops), default=None),
                        "resources": dict(own.resources),
                    }
    return found


def _assign(modules: Iterable[Module], engines: Iterable[str]) -> dict[str, Module]:
    """The module of every engine that has one; of names within names the longest counts."""
    found = {}
    for module in modules:
        named = [e for e in engines if f"_{e}_" in module.name and _OUTLINED not in module.name]
        if named:
            found[max(named, key=len)] = module
    return found


def _count(text: str | None) -> int | None:
    """A number of cycles; the tool writes ``undef``, ``?`` or ``NA`` where it has none."""
    text = (text or "").strip()
    return int(text) if text.isdigit() else None
