"""The page of schedules and its pictures are what the code draws today."""

from pathlib import Path
from types import ModuleType

import pytest

from pipec.registry import entries
from pipec.schedule.registry import names
from tests.scripts import load_script

DOCS = Path(__file__).parent.parent.parent / "docs"
AGAIN = "run: python docs/make_schedules.py"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load_script(DOCS / "make_schedules.py")


def test_page(maker: ModuleType) -> None:
    assert maker.page() == (DOCS / "schedules.md").read_text(), AGAIN


@pytest.mark.parametrize("name", names())
def test_picture(maker: ModuleType, name: str) -> None:
    assert maker.picture(name) == (DOCS / "schedules" / f"{name}.svg").read_text(), AGAIN


def test_only_schedules_that_exist_are_drawn() -> None:
    assert {p.stem for p in (DOCS / "schedules").glob("*.svg")} == set(entries("pipec.schedules"))
