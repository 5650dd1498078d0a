"""A damaged or forged plan ends in one clear error, or is data like any other."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.fuzz_plans import DOZEN, faults_of
from pipec.cli.main import cli
from pipec.frontends import load as loading
from pipec.frontends.base import Loaded, LoadOptions
from tests.plan import mutants
from tests.plan.mutants import bases, commands, try_commands
from tests.sampling import some

DOZENS = 50
"""Of mutants; `make fuzz-plans` tries these and a hundred times more."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The plans; their sound model is traced once, with each set of options that a plan names."""
    found = bases(tmp_path_factory.mktemp("plans"))
    known: dict[str, Loaded] = {}
    load = loading.load

    def load_once(spec: str, options: LoadOptions | None = None) -> Loaded:
        key = f"{spec} {options}"
        if key not in known:
            known[key] = load(spec, options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load", load_once)
        for place in (found["torch"], found["onnx"]):  # here, before any process is forked
            done = CliRunner().invoke(cli, list(commands(place, place)[1]))
            assert done.exit_code == 0, done.output
        assert known
        yield found


@pytest.mark.parametrize("dozen", some(12, range(DOZENS)))
def test_mutants_are_refused_or_harmless(
    plans: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dozen: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    monkeypatch.setenv("PIPEC_MUTANTS", str(plans["torch"].parent / "ran"))
    faults = faults_of(range(dozen * DOZEN, (dozen + 1) * DOZEN), plans, tmp_path)
    assert not faults, "\n".join(faults)


def test_every_kind_of_fault_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that misbehave, in a process as mutants have it."""
    monkeypatch.setenv("PIPEC_MUTANTS", str(tmp_path / "ran"))
    held: list[bytes] = []
    deeds: dict[str, Callable[[], object]] = {
        "good": lambda: None,
        "raises": lambda: json.loads("{"),
        "mute": lambda: sys.exit(1),
        "leaves": lambda: Path("left").touch(),
        "runs": (tmp_path / "ran").touch,
        "large": lambda: held.append(b"x" * (5 << 28)),
        "hangs": lambda: time.sleep(99),
        "dies": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    }

    def misbehave() -> None:
        deeds[sys.argv[1]]()
        sys.exit(0)

    monkeypatch.setattr(mutants, "main", misbehave)
    want = {
        "good": "", "raises": "Traceback", "mute": "without a word", "leaves": "left",
        "runs": "code that the plan names", "large": "MiB more", "hangs": "hangs",
        "dies": "ends the process with -11",
    }  # fmt: skip
    for name, text in want.items():
        monkeypatch.setattr(mutants, "SECONDS", 3 if name == "hangs" else 60)
        first, last = try_commands([("good",), (name,)], tmp_path / "empty")
        assert (first.fault, text in last.fault) == ("", True), (name, last.fault)
        assert bool(last.fault) == bool(text)
