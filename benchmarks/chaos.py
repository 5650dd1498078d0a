"""Commands that are killed, starved or raced while they write: `make chaos`.

    python -m benchmarks.chaos [--cases 1400] [--seed 0] [--only kill|full|odd] [--verbose]

Each case runs a command in a process forked from this one, in a folder of its own, with or without
an older output in place, and lets one thing happen to it:

- a kill (INT, TERM or KILL) before one of the calls that change the disk, or at any moment;
- a disk that is full at some byte (a small tmpfs, or `RLIMIT_FSIZE` where none can be mounted);
- few open files, little memory, a closed or full stdout, a folder that is read-only or gone, a
  second command that writes the same output.

Then every output is what it was, or new and whole; nothing of the command runs on; there is no
traceback; and after the same command ran once more nothing is left that does not belong there.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from safetensors import safe_open

from benchmarks._exit import positive
from pipec.cli.main import cli
from pipec.cli.main import main as pipec
from pipec.plan.manifest import check_files, read_manifest
from tests.plan.mutants import MODEL

SECONDS = 60
NEW = ("compile", "{model}:make", "--devices", "2xcpu", "-o", "{here}/out")
INFER, TRAIN = ("run", "{plan}", "--local"), ("run", "{training}", "--local", "--rounds")
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "compile": (NEW, "out"),
    "replace": ((*NEW, "--force"), "out"),
    "explore": (("explore", "{model}:make", "--devices", "2xcpu", "--top", "2"), ""),
    "run": ((*INFER, "--rounds", "1", "--outputs", "{here}/out.npz"), "out.npz"),
    "train": ((*TRAIN, "2", "--save", "{here}/out.safetensors"), "out.safetensors"),
    "resume": ((*TRAIN, "3", "--every", "1", "--checkpoints", "{here}/kept"), "kept"),
    "trace": ((*TRAIN, "1", "--trace", "{here}/out.json"), "out.json"),
    "metrics": ((*TRAIN, "2", "--metrics", "{here}/out.jsonl"), "out.jsonl"),
    "profile": (
        ("profile", "{plan}", "--local", "--seconds", "0.01", "-o", "{here}/out.json"),
        "out.json",
    ),
    "verify": (("verify", "{plan}", "--json"), ""),
    "report": (("report", "{plan}", "-o", "{here}/out.html"), "out.html"),
}
"""Name to words of the command, and what it writes."""
CHANGES = frozenset(f"os.{name}" for name in ("rename", "mkdir", "remove", "rmdir", "chmod")) | {
    "shutil.rmtree",
    "ctypes.dlsym",
}
"""Audit events after which the disk is another; an `open` to write is one too."""
ODD = ("files", "memory", "closed", "full stdout", "read-only", "gone", "race")


@dataclass
class World:
    """Where cases run, and what commands do when nothing happens."""

    base: Path
    clean: dict[str, tuple[list[str], int, float]] = field(default_factory=dict)
    """Name of a command to the files that it leaves, its changes of the disk, its seconds."""


def build(base: Path) -> World:
    """Compile the two plans that are run, and run every command once undisturbed."""
    (base / "model.py").write_text(MODEL)
    (base / "state").mkdir()
    os.environ["XDG_STATE_HOME"] = str(base / "state")
    world = World(base)
    for name, more in (("plan", ()), ("training", ("--loss", f"{base}/model.py:loss"))):
        words = ["compile", f"{base}/model.py:make", "--devices", "2xcpu", "-o", str(base / name)]
        done = CliRunner().invoke(cli, [*words, *more])
        assert done.exit_code == 0, done.output
    with _folder(world, "", random.Random(0), old=False) as here:
        for name in COMMANDS:  # in this process: what they import is there for all cases
            done = CliRunner().invoke(cli, _words(world, name, here))
            assert done.exit_code == 0, (name, done.output, done.exception)
            if name == "replace":
                shutil.rmtree(here / "out")
    for name in COMMANDS:
        with _folder(world, name, random.Random(0), old=False) as here:
            start, count, output = time.monotonic(), here / "count", base / "output"
            child = _start(_words(world, name, here), here, output, count=count)
            assert _wait_for(child) == 0, output.read_text()
            seconds, calls = time.monotonic() - start, int(count.read_text())
            count.unlink()
            world.clean[name] = _listing(here), calls, seconds
    return world


@contextlib.contextmanager
def _folder(world: World, name: str, rng: random.Random, *, old: bool) -> Iterator[Path]:
    """A folder for one case, with an older output of the command in it if asked for."""
    here = Path(tempfile.mkdtemp(prefix="case", dir=world.base))
    for part in ("home", "cache", "temporary"):
        (here / part).mkdir()
    shutil.copytree(world.base / "state", here / "state")
    if old or name == "replace":
        _wait_for(_start(_words(world, name, here), here, world.base / "old"))
    try:
        yield here
    finally:
        subprocess.run(["umount", "-q", here], check=False, capture_output=True)
        shutil.rmtree(here, ignore_errors=True)


def _words(world: World, name: str, here: Path) -> list[str]:
    base = world.base
    places = {"model": base / "model.py", "plan": base / "plan", "training": base / "training"}
    return [w.format(here=here, **places) for w in COMMANDS[name][0]]


def _start(
    words: list[str],
    here: Path,
    output: Path,
    *,
    before: Callable[[], None] = lambda: None,
    count: Path | None = None,
) -> int:
    """Fork a process that runs a command in a folder; what it says goes to a file."""
    child = os.fork()
    if child:
        return child
    code, calls = 97, [0]
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDONLY) if number == 0 else file, number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        os.chdir(here)
        places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "TMPDIR": "temporary"}
        os.environ |= {k: str(here / v) for k, v in places.items()}
        os.environ["XDG_STATE_HOME"] = str(here / "state")
        tempfile.tempdir = os.environ["TMPDIR"]  # else Python tries it with a file of its own
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        def hook(event: str, args: tuple[object, ...]) -> None:
            calls[0] += _changes(event, args)

        if count:
            sys.addaudithook(hook)
        before()
        sys.argv = ["pipec", *words]
        pipec()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
            if count:
                count.write_text(str(calls[0]))
        os._exit(code)


def _changes(event: str, args: tuple[object, ...]) -> bool:
    if event == "open":
        return isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in CHANGES


def _wait_for(child: int) -> int | None:
    """Wait for a child: its exit status, negative for a signal, None where it hangs."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.003)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def kill_at(calls: int, number: signal.Signals) -> Callable[[], None]:
    """What a child does first so that a signal comes before its n-th change of the disk."""

    def install() -> None:
        left = [calls]

        def hook(event: str, args: tuple[object, ...]) -> None:
            if left[0] and _changes(event, args):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), number)

        sys.addaudithook(hook)

    return install


def kill_after(seconds: float, number: signal.Signals) -> Callable[[], None]:
    """The same, at a moment."""
    act = threading.Timer(seconds, os.kill, (0, number))

    def install() -> None:
        act.args = (os.getpid(), number)
        act.daemon = True
        act.start()

    return install


@dataclass(frozen=True)
class Case:
    """A command, the folder that it runs in, what happens to it, and its output before."""

    world: World
    name: str
    here: Path
    what: str
    kept: str | None

    @property
    def output(self) -> Path:
        """Where the command writes to the terminal."""
        return self.world.base / "output"

    def judge(self, child: int, ended: int | None) -> str:
        """What is wrong when the command has ended, in words; empty if nothing is."""
        text = self.output.read_text(errors="replace")
        self.output.unlink()
        faults = [*_complaints(ended, text), *self._find_lost()]
        if living := _living(child):
            faults.append(f"processes live on: {living}")
        again = _wait_for(_start(_words(self.world, self.name, self.here), self.here, self.output))
        if again != 0:
            faults.append(f"the next run ends with {again}: {self.output.read_text()[-800:]}")
        self.output.unlink()
        if left := sorted({*_listing(self.here)} - {*self.world.clean[self.name][0]}):
            faults.append(f"leaves {left[:6]}")
        return f"{self.what} (exit {ended}): {'; '.join(faults)}" if faults else ""

    def _find_lost(self) -> Iterator[str]:
        now = _state(self.here, self.name)
        if now == "broken":
            yield "a half-written output"
        elif now is None and self.kept is not None:
            yield "the old output is lost"
        if self.name == "compile" and now is not None:
            shutil.rmtree(self.here / "out")


def _complaints(ended: int | None, text: str) -> Iterator[str]:
    if ended is None:
        yield f"hangs for {SECONDS} s"
    elif "Traceback" in text or ended == 97:
        yield f"a traceback: {text[-1500:]}"
    elif ended not in (0, 1, 2, 130, 143, -2, -9, -15):
        yield f"exit status {ended}: {text[-300:]}"
    elif ended == 1 and "rror: " not in text and "Aborted" not in text:
        yield f"not a word: {text[-300:]}"


def try_kill(world: World, rng: random.Random) -> str:
    """Kill a command; what is wrong afterwards."""
    name, old = rng.choice(list(COMMANDS)), rng.random() < 0.5 and True
    _, calls, seconds = world.clean[name]
    number = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    if rng.random() < 0.7 and calls:
        at = rng.randint(1, calls)
        before, what = kill_at(at, number), f"{name} {number.name} before change {at}, old={old}"
    else:
        when = rng.uniform(0, seconds)
        before, what = kill_after(when, number), f"{name} {number.name} at {when:.3f} s, old={old}"
    with _folder(world, name, rng, old=old and name != "compile") as here:
        case = Case(world, name, here, what, _state(here, name))
        child = _start(_words(world, name, here), here, case.output, before=before)
        return case.judge(child, _wait_for(child))


def try_full(world: World, rng: random.Random) -> str:
    """Run a command on a disk that is full at some byte; what is wrong afterwards."""
    name, old = rng.choice(list(COMMANDS)), rng.random() < 0.5
    with _folder(world, name, rng, old=old and name != "compile") as here:
        room = rng.choice((0, rng.randrange(1, 16), rng.randrange(1, 64))) << 12
        what = f"{name} with {room >> 10} KiB free, old={old}"
        case = Case(world, name, here, what, _state(here, name))
        mounted = _on_small_disk(here, room)

        def before() -> None:
            if not mounted:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

        child = _start(_words(world, name, here), here, case.output, before=before)
        ended = _wait_for(child)
        (here / "filler").unlink(missing_ok=True)
        return case.judge(child, ended)


def _on_small_disk(here: Path, room: int) -> bool:
    """Put a tmpfs of a few bytes in place of a folder; False where that is not allowed."""
    aside = here.with_name(here.name + "-aside")
    shutil.copytree(here, aside)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "chaos", here], check=False, capture_output=True
    )
    if done.returncode == 0:
        shutil.copytree(aside, here, dirs_exist_ok=True)
        free = os.statvfs(here)
        with (here / "filler").open("wb") as file:
            file.write(bytes(max(free.f_bavail * free.f_bsize - room, 0)))
    shutil.rmtree(aside)
    return done.returncode == 0


def try_odd(world: World, rng: random.Random) -> str:
    """Run a command where something it needs is short or missing; what is wrong afterwards."""
    name, kind = rng.choice(list(COMMANDS)), rng.choice(ODD)
    what = f"{name}, {kind}"
    with _folder(world, name, rng, old=False) as here:
        case, words = Case(world, name, here, what, None), _words(world, name, here)

        def before() -> None:
            if kind == "files":
                os.closerange(3, 64)
                resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
            elif kind == "memory":
                used = int(Path("/proc/self/statm").read_text().split()[0]) << 12
                limit = used + (rng.choice((1, 4, 16, 64)) << 20)
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            elif kind == "closed":
                sys.stdout = None
                os.close(1)
            elif kind == "full stdout":
                os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

        if kind == "gone":
            words = [w.replace(f"{here}/", f"{here}/no/") for w in words]
        elif kind == "read-only":
            for how in (["--bind", str(here)], ["-o", "remount,ro,bind"]):
                subprocess.run(["mount", *how, str(here)], check=False, capture_output=True)
        other = _start(words, here, case.output) if kind == "race" else None
        child = _start(words, here, case.output, before=before)
        ended = _wait_for(child)
        if other and _wait_for(other) == 0:
            ended = 0
        subprocess.run(["umount", "-q", here], check=False, capture_output=True)
        return case.judge(child, ended)


def _living(session: int) -> list[str]:
    """Command lines of the processes of a session that still run after two seconds."""
    end = time.monotonic() + 2
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit() and int(fields[3]) == session and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text()[:80])
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def _state(here: Path, name: str) -> str | None:
    """The output of a command: None if there is none, "whole" or "broken"."""
    path = here / COMMANDS[name][1]
    if path == here or not path.exists():
        return None
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                [arrays[k] for k in arrays]
        elif path.suffix == ".safetensors":
            with safe_open(path, "np") as tensors:
                [tensors.get_tensor(k) for k in tensors.keys()]  # noqa: SIM118
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            [json.loads(line) for line in path.read_text().splitlines()]
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>")
        elif name != "resume":
            check_files(path, read_manifest(path)["files"])
    except Exception:
        return "broken"
    return "whole"


SKIPPED = ("cache/", "output", "kept/", "no/kept")  # a run makes the folder of its checkpoints


def _listing(here: Path) -> list[str]:
    """Files in a folder, without those that tell of the time or of what they hold."""
    names = (str(p.relative_to(here)) for p in here.rglob("*"))
    return sorted(n for n in names if n != "no" and not n.startswith(SKIPPED))


KINDS = {"kill": (try_kill, 10), "full": (try_full, 2), "odd": (try_odd, 2)}
"""Kind of case to what tries one, and how many of fourteen cases are of it."""


def try_cases(
    world: World, numbers: range, only: str | None = None, *, verbose: bool = False
) -> list[str]:
    """Try cases by number; what was wrong."""
    faults = []
    order = [kind for kind, (_, count) in KINDS.items() for _ in range(count)]
    for number in numbers:
        kind = only or order[number * 5 % len(order)]
        found = KINDS[kind][0](world, random.Random(number))
        if found:
            faults.append(f"{number} {kind}: {found}")
            print(faults[-1], flush=True)
        elif verbose:
            print(number, kind, flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=positive, default=1400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        world = build(Path(text))
        for name, (_, calls, seconds) in world.clean.items():
            print(f"{name}: {calls} changes of the disk, {seconds:.2f} s", flush=True)
        numbers = range(given.seed, given.seed + given.cases)
        faults = try_cases(world, numbers, given.only, verbose=given.verbose)
    kinds = Counter(f.split()[1] for f in faults)
    print(f"{given.cases} cases: {len(faults)} faults {dict(kinds)}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
