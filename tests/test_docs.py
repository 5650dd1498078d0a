"""Python blocks in the docs run, one namespace per page; shell blocks name real commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipec.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            exec(compile(code, str(page), "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_links_exist(page: Path) -> None:
    text = page.read_text()
    for language, code in BLOCK.findall(text):
        if language in ("sh", "console"):
            for name in re.findall(r"^\$? ?pipec (\w+)", code, re.MULTILINE):
                assert name in cli.list_commands(None), f"{page.name}: pipec {name}"  # type: ignore[arg-type]
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_of_commands_is_what_help_prints() -> None:
    script = ROOT / "docs/make_commands.py"  # a process of its own: no plug-ins of other tests
    printed = subprocess.run(
        [sys.executable, script, "--print"], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/commands.md").read_text() == printed, "python docs/make_commands.py"
