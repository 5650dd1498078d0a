"""The one writer of tables keeps to the width, and drops spare columns in their order."""

import io

import pytest
from rich.console import Console

from pipec.report.table import Table


def drawn(width: int) -> list[str]:
    table = Table(
        "engines",
        ("stage", "graph", "limit", "nodes", "seconds"),
        right=3,
        texts=("limit",),
        spare=("graph", "nodes"),
    )
    table.add(
        "0", "e1cbdf48459c", "engine conv2d_swg, which reads more than it has", "6", "1.25 ms"
    )
    table.add("1", "[red]", "none")
    console = Console(width=width, file=(out := io.StringIO()))
    console.print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_wide_terminal_shows_everything_as_it_is() -> None:
    lines = drawn(120)
    assert lines[1].split() == ["stage", "graph", "limit", "nodes", "seconds"]
    assert len(lines) == 4
    assert "[red]" in lines[3]


@pytest.mark.parametrize(
    ("width", "left_out"), [(70, ""), (60, "graph"), (51, "graph"), (46, "graph, nodes")]
)
def test_spare_columns_go_in_their_order(width: int, left_out: str) -> None:
    lines = drawn(width)
    assert all(len(line) <= width for line in lines)
    shown = lines[1].split()
    assert shown == [
        c for c in ("stage", "graph", "limit", "nodes", "seconds") if c not in left_out.split(", ")
    ]
    assert (lines[-1] == f"not shown: {left_out}") is bool(left_out)
    assert any(line.endswith("1.25 ms") for line in lines)


def test_words_are_broken_only_between_them_while_there_is_room() -> None:
    text = " ".join(drawn(51))
    for word in ("conv2d_swg,", "which", "reads", "more"):
        assert word in text
