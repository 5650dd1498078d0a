"""Running passes: check the pipeline first, verify the plan after every pass, tell an observer."""

import time
from collections.abc import Callable, Sequence

from pipec import registry
from pipec.compiler.pass_base import Pass
from pipec.errors import PassError, PipecError
from pipec.options import parse_list
from pipec.plan.model import Plan
from pipec.plan.rules.verify import verify
from pipec.user_module import user_code

Observer = Callable[[Pass, Plan, Plan, float], None]
"""Called after every pass with (pass, plan before, plan after, seconds)."""


def parse_pipeline(text: str) -> list[Pass]:
    """Passes from text: ``annotate-cost,partition{stages=4},insert-comm``.

    Raises:
        PassError: The text is malformed, a pass is unknown, or an option is wrong.
    """
    return [_pass_class(name).from_text(options) for name, options in parse_list(text, PassError)]


def list_passes() -> dict[str, type[Pass]]:
    """Name to class of every registered pass."""
    return {name: _pass_class(name) for name in registry.entries("pipec.passes")}


def _pass_class(name: str) -> type[Pass]:
    return registry.load_class("pipec.passes", name, Pass)  # type: ignore[type-abstract]


def check_pipeline(passes: Sequence[Pass], plan: Plan) -> None:
    """See before running whether each pass will find the facts that it requires.

    Raises:
        PassError: A fact is missing; passes that would provide it are suggested.
    """
    facts = set(plan.facts())
    for p in passes:
        missing = p.requires - facts
        if missing:
            fact = min(missing)
            every = registry.list_working("pipec.passes", Pass)  # type: ignore[type-abstract]
            helpful = [c.name for c in every if fact in c.provides - c.requires]
            hint = f"put {' or '.join(helpful)} before it" if helpful else None
            raise PassError(f"pass {p.name} requires the fact {fact}", want=fact, hint=hint)
        facts |= p.provides


def run_passes(passes: Sequence[Pass], plan: Plan, observe: Observer | None = None) -> Plan:
    """Run ``passes`` in order.

    Returns:
        The plan after the last pass.

    Raises:
        PassError: The pipeline cannot work, or a pass does not provide what it declares.
        PipecError: What a pass or the verifier found; a note names the pass and those before it.
    """
    check_pipeline(passes, plan)
    verify(plan)
    done: list[str] = []
    for p in passes:
        before, start = plan, time.perf_counter()
        try:
            with user_code("the pass failed", error=PassError):
                plan = _run_pass(p, before)
                verify(plan, before=before)
        except PipecError as error:
            error.add_note(f"in pass {p}, after {', '.join(done) or 'no other pass'}")
            raise
        missing = p.provides - plan.facts()
        if missing:
            raise PassError(f"pass {p.name} did not provide {', '.join(sorted(missing))}")
        done.append(str(p))
        if observe:
            observe(p, before, plan, time.perf_counter() - start)
    return plan


def _run_pass(p: Pass, before: Plan) -> Plan:
    made: object = p.run(before)
    if isinstance(made, Plan):
        return made
    want = "the new plan, or the one that it was given"
    raise PassError("the pass returned no plan", got=type(made).__name__, want=want)
