"""What other commands wrote, for the report page: verification, metrics, a run's trace, engines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipec.compiler.cycles import StageCycles
from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.plan.weights import stage_folder

Data = dict[str, Any]
_OF_ENGINE = ("name", "kind", "dsp", "busy_cycles")
_OF_FIFO = ("name", "from", "to", "depth", "tokens", "width_bits")


def read_verification(path: Path) -> Data:
    """What ``pipec verify --json`` printed.

    Raises:
        PipecError: The file cannot be read, or is something else.
    """
    found = _json(path)
    rows = found.get("boundaries") if isinstance(found, dict) else None
    wanted = {"name", "stage", "kind", "relative_error", "tolerance", "ok"}
    if not isinstance(rows, list) or not all(
        isinstance(r, dict) and wanted <= r.keys() for r in rows
    ):
        raise _not(path, "a verification", "pipec verify OUT --json > FILE")
    return {"boundaries": [{k: row[k] for k in sorted(wanted)} for row in rows]}


def read_metrics(path: Path) -> list[Data]:
    """What ``pipec run --metrics`` wrote, one JSON object per line.

    Raises:
        PipecError: The file cannot be read, or is something else.
    """
    try:
        rows = [json.loads(line) for line in _text(path).splitlines() if line.strip()]
        return [
            {k: row[k] for k in ("step", "loss", "samples_per_second", "seconds")} for row in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise _not(path, "metrics", "pipec run OUT --metrics FILE") from error


def read_trace(path: Path) -> Data:
    """What ``pipec run --trace`` wrote: a Chrome trace; its actions as rows, from time 0 on.

    Raises:
        PipecError: The file cannot be read, or is something else.
    """
    try:
        events = [e for e in _json(path)["traceEvents"] if e["ph"] == "X"]
        lanes = {e["tid"]: e["args"]["name"] for e in _json(path)["traceEvents"]
                 if e["ph"] == "M" and e["name"] == "thread_name"}  # fmt: skip
        start = min(e["ts"] for e in events)
        rows = [
            [
                e["pid"], lanes[e["tid"]], e["cat"], e["args"]["stage"], e["args"]["microbatch"],
                (e["ts"] - start) / 1e6, (e["ts"] - start + e["dur"]) / 1e6,
            ]
            for e in events
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise _not(path, "a trace of a run", "pipec run OUT --trace FILE") from error
    return {"seconds": max(row[-1] for row in rows), "actions": rows}


def read_engines(
    plan: Plan, directory: Path, simulated: Sequence[StageCycles]
) -> list[Data] | None:
    """The engines and FIFOs of every FPGA stage, as ``stage.json`` says; None of other targets.

    Args:
        plan: The plan.
        directory: Where it was emitted.
        simulated: What a simulation found per stage, or nothing.
    """
    found = [(s.index, path) for s in plan.stages for path in _records(directory, s.index)]
    if {stage for stage, _ in found} != {s.index for s in plan.stages}:
        return None
    cycles = {c.stage: c for c in simulated}
    return [_stage(stage, _json(path), cycles) for stage, path in found]


def _records(directory: Path, stage: int) -> list[Path]:
    """``stage.json`` of a stage: in ``stage0_<chip>``, or one per kernel below it in training."""
    name = stage_folder(stage)
    folders = [f for f in directory.glob(f"{name}*") if f.name == name or f.name[len(name)] == "_"]
    return sorted(
        p for f in folders for pattern in ("", "*/") for p in f.glob(f"{pattern}stage.json")
    )


def _stage(number: int, record: Data, cycles: dict[str, StageCycles]) -> Data:
    found = cycles.get(record["stage"])
    waits = {e.name: e for e in found.engines} if found else {}
    engines = []
    for engine in record["engines"]:
        row = {key: engine.get(key) for key in _OF_ENGINE}
        ran = waits.get(engine["name"])
        row |= {"busy": row.pop("busy_cycles") or 0, "empty": 0, "full": 0, "simulated": bool(ran)}
        if ran:
            row |= {"busy": ran.busy, "empty": ran.empty, "full": ran.full}
            row["waits_for"] = ran.waits_for
        engines.append(row)
    return {
        "stage": number,
        "name": record["stage"],
        "device": record["device"],
        "clock_mhz": record["clock_mhz"],
        "interval": found.interval if found else record["cycles"]["interval"],
        "latency": found.latency if found else record["cycles"]["latency"],
        "resources": record["resources"],
        "engines": engines,
        "fifos": [{key: fifo.get(key) for key in _OF_FIFO} for fifo in record["fifos"]],
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipecError("a file cannot be read", where=path, got=error) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise PipecError("a file is no JSON", where=path, got=error) from error


def _not(path: Path, what: str, command: str) -> PipecError:
    return PipecError(f"the file is not {what}", where=path, hint=f"write it with: {command}")
