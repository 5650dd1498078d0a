"""`report`: one HTML page that shows a plan with what was found out about it, or two plans."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipec.arguments import check_arguments
from pipec.compiler.backend import lacking, load_backend
from pipec.compiler.capabilities import Cycles
from pipec.errors import PipecError
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.report.extras import read_metrics, read_trace, read_verification
from pipec.report.page import write_report

Name = str | os.PathLike[str]


@check_arguments
def report(
    plan: Plan | Name,
    path: Name,
    other: Plan | Name | None = None,
    *,
    verified: Name | None = None,
    metrics: Name | None = None,
    trace: Name | None = None,
    cycles: bool = False,
    vitis: Name | None = None,
    allowed: Collection[str] = (),
) -> Path:
    """Write one offline HTML page: a plan, or how another one differs from it.

    Args:
        plan: A plan, or a directory that was written before.
        path: The page.
        other: A second one, to see what differs.
        verified: Show errors: the file that ``pipec verify DIRECTORY --json`` printed.
        metrics: Show curves: what ``pipec run --metrics`` wrote.
        trace: Show what ran beside the prediction: from ``pipec run --trace``.
        cycles: Simulate the engines of a directory, for their waits.
        vitis: Show what Vitis HLS reported of each engine: where a run of ``run_hls.tcl`` left its
            reports. Those within a directory of a plan are always shown.
        allowed: Op namespaces beyond pipec's own that the graphs of a directory may use.

    Returns:
        The path.

    Raises:
        PipecError: A file cannot be read or written, is of another plan, or has no meaning here.

    Example:
        >>> import pipec, tempfile, torch
        >>> plan = pipec.compile(torch.nn.Linear(4, 4), torch.zeros(1, 4), "1xcpu")
        >>> pipec.report(plan, tempfile.mkdtemp() + "/plan.html").read_text()[:15]
        '<!doctype html>'
    """
    given = {"verified": verified, "metrics": metrics, "trace": trace, "cycles": cycles,
             "vitis": vitis}  # fmt: skip
    extras = [name for name, value in given.items() if value]
    if other is not None and extras:
        want = "the difference of two plans alone"
        raise PipecError("only for one plan", got=", ".join(extras), want=want)
    shown, second = _plan(plan, allowed), None if other is None else _plan(other, allowed)
    found: dict[str, Any] = {}
    if verified:
        found["verify"] = read_verification(Path(verified), shown)
    if metrics:
        found["metrics"] = read_metrics(Path(metrics))
    if trace:
        if shown.schedule is None:
            raise PipecError("the plan has no schedule", got=f"a trace: {os.fspath(trace)}")
        found["measured"] = read_trace(Path(trace), shown.schedule)
    backend = load_backend(shown.target)
    if cycles or vitis:
        if not isinstance(backend, Cycles):
            raise lacking(backend, Cycles, "engines")
        if isinstance(plan, Plan):
            want = "a directory in place of the plan"
            raise PipecError("engines are of emitted stages", want=want)
    if second is None and isinstance(backend, Cycles) and not isinstance(plan, Plan):
        directory, reports = Path(plan), None if vitis is None else Path(vitis)
        simulated = backend.cycles(shown, directory) if cycles else ()
        found["engines"] = backend.engines(shown, directory, simulated, reports)
    return write_report(shown, Path(path), other=second, extras=found)


def _plan(plan: Plan | Name, allowed: Collection[str]) -> Plan:
    if isinstance(plan, Plan):
        return plan
    return load_plan(Path(plan), allowed=allowed, check_weights=False)
