"""Saved values that the user names are computed again, or wait in host memory: no optimiser.

A pattern names modules or values: ``layers.*.mlp`` is every value that is made in such a module and
saved for the backward.
"""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

from pipec.autodiff.model import Training
from pipec.autodiff.recompute import everything
from pipec.autodiff.rewrite import lineage, reads_trained
from pipec.compiler.fates import Fates
from pipec.compiler.residency import list_saved
from pipec.errors import PassError
from pipec.graph.eager import is_tape
from pipec.graph.ir import origin
from pipec.plan.model import Plan
from pipec.schedule.in_flight import in_flight
from pipec.schedule.schedule import Schedule


def choose_named(
    plan: Plan, schedule: Schedule, patterns: Sequence[str], *, host: bool
) -> list[Fates]:
    """What becomes of the saved values of every stage.

    A slot is as deep as leaves at least one set of its values on the host at the fullest.

    Args:
        plan: Differentiated.
        schedule: What it will run.
        patterns: Patterns of modules, of ONNX nodes, or of values; ``*`` stands for any text.
        host: Whether they wait in host memory; else they are computed again.

    Raises:
        PassError: A pattern names nothing that is saved, or that can be computed again.
    """
    able = _movable if host else partial(_recomputable, alike=schedule.rule.alike)
    used, found = set[str](), []
    for stage, turns in zip(plan.stages, in_flight(schedule), strict=True):
        assert stage.training is not None
        hits = {p: _matching(stage.training, p) for p in patterns}
        wanted = able(stage.training, [name for names in hits.values() for name in names])
        used |= {p for p, names in hits.items() if not wanted.isdisjoint(names)}
        order = tuple(v.name for v in stage.training.saved if v.name in wanted)
        slots = ((min(2, max(0, turns.most - 2)), order),) if host and order else ()
        found.append(Fates(frozenset() if host else wanted, slots))
    for pattern in patterns:
        if pattern not in used:
            trained = [s.training for s in plan.stages if s.training is not None]
            every = [t.F.nodes[v] for t in trained for v in able(t, _matching(t, "*"))]
            places = {origin(n).name or n.name for n in every}
            raise _names_nothing(pattern, places, host=host)
    return found


def _matching(training: Training, pattern: str) -> list[str]:
    """Saved values that are made in a module of this name, or have it."""
    nodes = [training.F.nodes[v.name] for v in training.saved]
    made = [n for n in nodes if n.op == "call_function"]
    return [
        n.name
        for n in made
        if fnmatchcase(n.name, pattern)
        or any(fnmatchcase(origin(n).name, p) for p in (pattern, f"{pattern}.*"))
    ]


def _movable(training: Training, values: Sequence[str]) -> frozenset[str]:
    """Those of some values that may leave the device: all but autograd's tapes."""
    return frozenset(v for v in values if not is_tape(training.F.nodes[v]))


def _recomputable(training: Training, values: Sequence[str], *, alike: bool) -> frozenset[str]:
    """Those of some values that come from all others without random numbers.

    And, where B may have other weights than F (not ``alike``), without weights.
    """
    saved, found = {v.name for v in training.saved}, set[str]()
    for name in list_saved(training):
        if name in values:
            steps = lineage(training, name, saved - found - {name})
            calls = [n for n in steps if n.op == "call_function"]
            if all(map(everything, calls)) and (alike or not reads_trained(training, calls)):
                found.add(name)
    return frozenset(found)


def _names_nothing(pattern: str, places: set[str], *, host: bool) -> PassError:
    near = difflib.get_close_matches(pattern, places, n=3, cutoff=0.4) or sorted(places)[:3]
    what = "waits in host memory" if host else "can be computed again"
    return PassError(
        f"nothing of this name {what}",
        got=pattern,
        want="a module of which something can, such as " + ", ".join(near) if near else None,
        hint="pipec inspect OUT lists what stages save",
    )
