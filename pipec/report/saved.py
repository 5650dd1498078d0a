"""What stages save for their backward: on the device, in host memory, or computed again."""

from typing import Any

from pipec.cluster.units import show
from pipec.graph.ir import nbytes
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage
from pipec.report.table import Table

Data = dict[str, Any]


def saved_data(plan: Plan, stage: Stage) -> Data | None:
    """Saved values of one microbatch of a stage, as its graphs have them; None if undivided.

    Returns:
        ``kept_bytes`` that stay on the device, ``slots`` in host memory (name, values, bytes,
        depth), and ``recomputed``: nodes of F that B, too, computes, with the bytes of each.
    """
    training = stage.training
    if training is None:
        return None
    forward = {n.name for n in lower(training.F).calls}
    again = [n for n in lower(training.B).calls if n.name in forward]
    return {
        "kept_bytes": training.saved_bytes,
        "slots": [
            {"name": s.name, "values": list(s.values), "nbytes": s.nbytes, "depth": s.depth}
            for s in plan.slots
            if s.stage == stage.index
        ],
        "recomputed": {n.name: nbytes(n) for n in again},
    }


def make_saved_table(stages: list[Data]) -> Table | None:
    """One row per stage and host slot; None if no stage was differentiated."""
    columns = ("stage", "on the device", "computed again", "in host memory", "depth")
    table = Table("saved for the backward, per microbatch", columns, right=1)
    rows = [(s["stage"], s["saved"]) for s in stages if s["saved"]]
    for number, saved in rows:
        again = saved["recomputed"]
        first = [str(number), show(saved["kept_bytes"], "B"), _count(again, sum(again.values()))]
        for slot in saved["slots"] or [None]:
            hosted = [_count(slot["values"], slot["nbytes"]), str(slot["depth"])] if slot else []
            table.add(*first, *hosted)
            first = ["", "", ""]
    return table if rows else None


def _count(values: Any, nbytes_: float) -> str:
    return f"{show(nbytes_, 'B')} ({len(values)})" if values else ""
