"""Every wrong pass is named where it ran, and no rule can be spared."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import run_passes
from pipec.errors import PipecError
from pipec.graph import rules as graph_rules
from pipec.plan.model import Plan
from pipec.plan.rules import verify as plan_rules
from tests.plan.edits import Edit
from tests.plan.wrong import start
from tests.plan.wrong_passes import WRONG

TABLES = (graph_rules.NODE_RULES, graph_rules.RULES, plan_rules.RULES)
NAMES = [name for table in TABLES for name in table]


@dataclass(frozen=True)
class Wrong(Pass):
    """Does what a row of the table says."""

    name: ClassVar[str] = "wrong"
    edit: Edit = lambda plan: plan
    label: str = ""

    def run(self, plan: Plan) -> Plan:
        return self.edit(plan)

    def __str__(self) -> str:
        return self.label


def outcome(name: str, begin: str, edit: Edit) -> str | None:
    """What the pass manager says of a pass; None if it lets it through."""
    if name == "edits-in-place":
        start.cache_clear()
    plan = start(begin)
    try:
        run_passes([Wrong(edit, name)], plan)
    except PipecError as error:
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    finally:
        if name == "edits-in-place":
            start.cache_clear()
    return None


@pytest.mark.parametrize("begin", ["traced", "bare", "cut", "eager", "hosted"])
def test_what_they_start_from_is_sound(begin: str) -> None:
    plan_rules.verify(start(begin))


@pytest.mark.parametrize(("name", "begin", "edit", "rule"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_pass_is_named(name: str, begin: str, edit: Edit, rule: str) -> None:
    told = outcome(name, begin, edit)
    assert told is not None
    assert f"[{rule}]" in told
    assert "got " in told
    assert "; want " in told
    assert f"in pass {name}" in told


def test_there_are_sixty() -> None:
    assert len({row[0] for row in WRONG}) == len(WRONG) >= 60


@pytest.mark.parametrize("rule", NAMES)
def test_no_rule_can_be_spared(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule at least one of its wrong passes goes through."""
    for table in TABLES:
        if rule in table:
            monkeypatch.delitem(table, rule)
    assert any(outcome(*row[:3]) is None for row in WRONG if row[3] == rule)
