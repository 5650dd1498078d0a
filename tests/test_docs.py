"""Blocks in the docs run, one namespace and one folder per page; commands in them are real."""

import contextlib
import doctest
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import pipec
from pipec.cli.main import cli, main
from tests.runtime import jobs, processes
from tests.scripts import load_script

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), ROOT / "CONTRIBUTING.md"]
"""The one that takes longest is the first."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_package_is_that_of_the_wheel() -> None:
    """``make test`` runs these tests in a folder without the sources, beside the wheel."""
    if not (ROOT / "site").is_dir():
        pytest.skip("these are the sources")
    assert Path(pipec.__file__).is_relative_to(ROOT / "site")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_blocks_run_and_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in an empty folder: Python, files, and commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    text, printed, end = page.read_text(), "", 0
    for block in BLOCK.finditer(text):
        language, code = block.groups()
        if file := re.match(r"# (\w+\.py)\n", code) if language == "python" else None:
            Path(file[1]).write_text(code)
            # Another test in this process may have imported a file of the same name.
            monkeypatch.delitem(sys.modules, Path(file[1]).stem, raising=False)
        elif language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, str(page), "exec", dont_inherit=True), namespace)
            printed = out.getvalue()
        elif language == "text" and printed and not text[end : block.start()].strip():
            compare(code, printed)
        elif language == "console":
            run_commands(code, monkeypatch)
        end = block.end()


TORCHRUN = "torchrun --standalone --nproc-per-node "
processes.PRELOADED += [f"transformers.models.{n}.modeling_{n}" for n in ("gpt2", "llama")]


def run_commands(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each line behind a dollar; what it prints stands below it, `...` for any text.

    Most of `pipec` and of `python` runs in this process, and ranks are forked from one that has
    loaded torch and models, which takes seconds; `pipec examples` needs neither.
    """
    environment = {"COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, want = part.partition("\n")
        words = shlex.split(command)
        if command.startswith("pipec run out"):
            got = run_ranks(words)
        elif command.startswith(TORCHRUN):
            got = run_under_torchrun(command.removeprefix(TORCHRUN).split())
        elif words[0] in ("pipec", "python") and not command.startswith("pipec examples"):
            got = run_here(words, monkeypatch)
        else:
            got = run_alone(command)
        if want.strip():
            compare(want, got)


def run_here(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    out, err = io.StringIO(), io.StringIO()
    script = words[0] == "python"
    monkeypatch.setattr(sys, "argv", words[script:])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run_script(words[1]) if script else main()
        except SystemExit as ended:
            assert not ended.code, f"{words}: {err.getvalue()}"  # noqa: PT017
    return out.getvalue()


def run_script(path: str) -> None:
    with warnings.catch_warnings(record=True, action="default"):  # as `python` has them
        runpy.run_path(path, run_name="__main__")


def run_ranks(words: list[str]) -> str:
    said = Path("said").absolute()
    process = processes.launch(words[1:], said, Path.cwd(), forks=True)
    process.join(600)
    assert process.exitcode == 0, f"{words}: {said.read_text()}"
    return said.read_text()


def run_under_torchrun(words: list[str]) -> str:
    said = Path("said").absolute()
    said.unlink(missing_ok=True)
    processes.elastic(jobs.script, words[1:], said, Path.cwd(), ranks=int(words[0]))
    return said.read_text()


def run_alone(command: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    run = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, env=environment
    )
    assert run.returncode == 0, f"{command}: {run.stderr}"
    return run.stdout


def compare(want: str, got: str) -> None:
    rules = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(want, got, rules), f"want\n{want}\ngot\n{got}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_links_exist(page: Path) -> None:
    text = page.read_text()
    for language, code in BLOCK.findall(text):
        if language in ("sh", "console"):
            for name in re.findall(r"^\$? ?pipec (\w+)", code, re.MULTILINE):
                assert name in cli.list_commands(None), f"{page.name}: pipec {name}"  # type: ignore[arg-type]
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_figures_in_pages_are_those_that_a_benchmark_kept() -> None:
    made = load_script(ROOT / "docs/make_figures.py")
    for page in made.pages():
        assert page.read_text() == made.shown(page), "python docs/make_figures.py"
    told = "".join(page.read_text() for page in made.pages())
    for file in (ROOT / "docs/figures").glob("*.json"):
        assert f"<!-- figures {file.stem} " in told, f"no page shows {file}"


def test_the_page_of_commands_is_what_help_prints() -> None:
    script = ROOT / "docs/make_commands.py"  # a process of its own: no plug-ins of other tests
    printed = subprocess.run(
        [sys.executable, script, "--print"], capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/commands.md").read_text() == printed, "python docs/make_commands.py"
