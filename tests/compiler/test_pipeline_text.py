"""Passes as text: parsed, printed back, and refused with the reason."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import parse_pipeline
from pipec.errors import PassError, PipecError
from pipec.plan.model import Plan


@dataclass(frozen=True)
class Sample(Pass):
    """A pass with one option of every type."""

    name: ClassVar[str] = "sample"
    stages: int
    share: float = 0.5
    exact: bool = True
    route: Literal["near", "far"] = "near"
    limit: int | None = None

    def run(self, plan: Plan) -> Plan:
        return plan


def test_options_are_fields() -> None:
    text = {"stages": "4", "share": "0.25", "exact": "false", "route": "far", "limit": "none"}
    sample = Sample.from_text(text)
    assert sample == Sample(4, 0.25, exact=False, route="far", limit=None)
    assert str(sample) == "sample{stages=4 share=0.25 exact=false route=far}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "four"}, "not a number"),
        ({"stages": "1", "exact": "yes"}, "not a truth value"),
        ({"stages": "1", "route": "up"}, "near or far"),
        ({"stages": "1", "colour": "red"}, "no such option"),
        ({}, "wants an option"),
    ],
)
def test_wrong_options_are_told(options: dict[str, str], message: str) -> None:
    with pytest.raises(PassError, match=message):
        Sample.from_text(options)


def test_pipelines_parse_with_commas_and_spaces_in_braces() -> None:
    passes = parse_pipeline("simplify, insert-comm{route=relay,depth=1},insert-comm{depth=3}")
    assert [str(p) for p in passes] == [
        "simplify",
        "insert-comm{route=relay depth=1}",
        "insert-comm{depth=3}",
    ]


@pytest.mark.parametrize("text", ["simplify,", "insert-comm{depth=1", "insert-comm{depth}", ",a"])
def test_malformed_text(text: str) -> None:
    with pytest.raises(PassError):
        parse_pipeline(text)


def test_unknown_pass_suggests_a_near_name() -> None:
    with pytest.raises(PipecError, match="did you mean 'simplify'"):
        parse_pipeline("simplfy")
