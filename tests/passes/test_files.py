"""Passes on the texts in ``files``, with what each must make of them; expectations can fail."""

from pathlib import Path

import pytest

from pipec.testing.filecheck import check, check_file

FILES = sorted((Path(__file__).parent / "files").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_passes(path: Path) -> None:
    check_file(path)


TEXT = "a = f(x)\nb = g(a)\nreturn b"


@pytest.mark.parametrize(
    "checks",
    [
        [("CHECK", "b = g(a)"), ("CHECK", "a = f(x)")],
        [("CHECK", "a = f"), ("CHECK-NEXT", "return")],
        [("CHECK", "a = f"), ("CHECK-NOT", "g("), ("CHECK", "return")],
        [("CHECK", "b = g"), ("CHECK-NOT", "return")],
        [("CHECK", r"[[v:\w+]] = f"), ("CHECK", "return [[v]]")],
        [("CHECK", "b = {{h|i}}")],
        [("CHECK", "a.=")],
    ],
)
def test_what_does_not_hold_is_told(checks: list[tuple[str, str]]) -> None:
    with pytest.raises(AssertionError, match=r"CHECK(-NEXT|-NOT)?: "):
        check(TEXT, checks)


def test_what_holds() -> None:
    check(
        TEXT,
        [
            ("CHECK-NOT", "return"),
            ("CHECK", r"[[v:\w]] = f(x)"),
            ("CHECK-NEXT", "{{b|c}} =  g([[v]])"),
            ("CHECK-NOT", "f("),
        ],
    )


@pytest.mark.parametrize("change", ["passes: annotate-cost", "ERROR: no such thing"])
def test_a_file_fails_when_the_pass_does_otherwise(tmp_path: Path, change: str) -> None:
    text = (Path(__file__).parent / "files" / "simplify.txt").read_text(encoding="utf-8")
    (tmp_path / "other.txt").write_text(f"{text.replace('// passes: simplify', f'// {change}')}")
    with pytest.raises((AssertionError, KeyError)):
        check_file(tmp_path / "other.txt")
