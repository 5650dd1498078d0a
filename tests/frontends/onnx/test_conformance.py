"""Every node case of the onnx package ends as it is written down, and none ends wrong."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.onnx.cases import MATCHED, cases, read_outcomes, run_case
from tests.sampling import ALL

OUTCOMES = Path(__file__).with_name("outcomes.txt")


PARTS = 4


def tried() -> list[Any]:
    """Of operators that are written out in others, whose own cases run too, one case in four."""
    return [c for k, c in enumerate(cases()) if ALL or "_expanded" not in c.name or not k % 4]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_case_ends_as_written_down(part: int) -> None:
    expected = read_outcomes(OUTCOMES)
    found = [run_case(c) for c in tried()[part::PARTS]]
    changed = [
        f"{o.name}: {o.kind}, was {expected.get(o.name, 'not there')}: {o.reason}"
        for o in found
        if expected.get(o.name) != o.kind
    ]
    assert not changed, "\n".join(changed)


def test_all_cases_are_written_down() -> None:
    assert {c.name for c in cases()} == read_outcomes(OUTCOMES).keys()


def test_what_is_written_down_is_enough() -> None:
    counts = Counter(read_outcomes(OUTCOMES).values())
    assert sum(counts.values()) == 1884
    assert sum(counts[kind] for kind in MATCHED) >= 1797
    assert counts["native"] + counts["folded"] >= 1450
    assert counts["wrong"] + counts["crash"] == 0


def test_a_refusal_names_op_node_and_reason() -> None:
    (case,) = (c for c in cases() if c.name == "test_unique_sorted_without_axis")
    reason = run_case(case).reason
    assert "Unique (node 0)" in reason
    assert "depends on data" in reason
