"""Mutants of emitted directories, and how commands take each: as data, or with one clear error.

A mutant changes one to three places of a plan: a value in one of its JSON files (another type, a
huge number, a name with control characters, a path out of the directory, a list nested ten
thousand times), bytes of a file, or the file itself (gone, empty, a pipe, a link to /dev/zero).
Digests are written anew for three of four, as whoever forges a plan would do. The commands run in
a process of their own, forked from this one, in a folder where nothing may appear.
"""

import contextlib
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pipec.cli.main import cli, main
from pipec.plan.manifest import PLAN, _digest, sha256_of

SECONDS, BYTES = 20, 1 << 30
MODEL = """
import os
from pathlib import Path
import torch
if "PIPEC_MUTANTS" in os.environ:
    Path(__file__).with_name("ran").touch()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(11, 6)
        self.one, self.two = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    def forward(self, ids):
        x = torch.relu(self.one(self.words(ids)))
        y = x[:, [2, 0, 1]].softmax(-1)
        return self.two(torch.gather(y, 1, torch.zeros_like(y, dtype=torch.int64)).cumsum(1))
def make():
    return Net(), torch.zeros(2, 4, dtype=torch.int64)
def chain():
    layers = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers), torch.ones(2, 6)
class Loss(torch.nn.Module):
    def forward(self, out):
        return out.square().mean()
def loss():
    return Loss()
"""
BASES = {
    "torch": ("make", "--devices", "2xcpu"),
    "onnx": ("make", "--devices", "2xcpu", "--target", "onnx"),
    "training": ("make", "--devices", "2xcpu", "--loss", "{model}:loss", "--microbatches", "2"),
    "fpga": ("chain", "--devices", "2xvcu118", "--target", "fpga"),
}
"""Plans that are mutated: name to how they are compiled."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 1 << 31, -(1 << 63), 1 << 64, 1e308, -0.5, "", "0", "x",
    "../../../etc/passwd", "/etc/passwd", "\x1b[2J\x00\r\n", "%x", "aten.mm.default", "__import__",
    "\u202ename", "ab" * 5000, [], {}, [[]], {"": {}}, [0], ["%x"], [-1, 1 << 40],
)  # fmt: skip
DEEP = "[" * 10_000 + "]" * 10_000


@dataclass(frozen=True)
class Ended:
    """How a command took a mutant: `fault` is empty where it did as it should."""

    words: tuple[str, ...]
    fault: str


def bases(folder: Path) -> dict[str, Path]:
    """Compile the plans into `folder`, under their names."""
    model = folder / "model.py"
    model.write_text(MODEL)
    (folder / "own.py").write_text(MODEL.replace(".touch()", ".exists()"))
    for name, (factory, *options) in BASES.items():
        words = [o.format(model=model) for o in options]
        done = CliRunner().invoke(
            cli, ["compile", f"{model}:{factory}", "-o", str(folder / name), *words]
        )
        assert done.exit_code == 0, (done.output, done.exception)
    return {name: folder / name for name in BASES}


def mutate(base: Path, place: Path, rng: random.Random) -> str:
    """Write a mutant of the plan in `base` to `place`; what was changed, in words.

    What is not changed stays the file of `base`, by another name.
    """
    shutil.copytree(base, place, copy_function=os.link)
    files = sorted(p for p in place.rglob("*") if p.is_file())
    told = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        files = [p for p in files if p.is_file() and not p.is_symlink()]
        texts = [p for p in files if p.suffix == ".json"]
        kind = rng.random()
        with contextlib.suppress(ValueError, FileNotFoundError, RecursionError):
            if kind < 0.8 and texts:
                weights = [8 if p.name == PLAN else 2 for p in texts]
                told.append(_mutate_json(rng.choices(texts, weights)[0], rng))
            elif kind < 0.9:
                told.append(_mutate_bytes(rng.choice(files), rng))
            else:
                told.append(_mutate_file(rng.choice(files), rng))
    if rng.random() < 0.75 and (place / PLAN).is_file() and not (place / PLAN).is_symlink():
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            _seal(place)
    return "; ".join(told)


def _mutate_json(path: Path, rng: random.Random) -> str:
    data = json.loads(path.read_text())
    spots = list(_spots(data))
    if not spots:
        return "nothing"
    holder, key = rng.choice(spots)
    said = f"{path.name} {key!r}"
    kind = rng.random()
    if kind < 0.1:
        del holder[key]
        change = "gone"
    elif kind < 0.2:
        other, name = rng.choice(spots)
        holder[key] = other.get(name) if isinstance(other, dict) else other[name]
        change = "as elsewhere"
    elif kind < 0.25 and isinstance(holder, list):
        holder.insert(key, holder[key])
        change = "twice"
    elif kind < 0.28:
        holder[key] = "DEEP"
        change = "nested"
    elif kind < 0.5 and type(holder[key]) is int:
        holder[key] += rng.choice((-1, 1, 7, -100, 1 << 33))
        change = f"{holder[key]}"
    else:
        holder[key] = rng.choice(VALUES)
        change = repr(holder[key])[:40]
    _write(path, json.dumps(data).replace('"DEEP"', DEEP).encode())
    return f"{said}: {change}"


def _spots(data: Any) -> Iterator[tuple[Any, Any]]:
    """All places of a JSON value: the list or dictionary, and the key in it."""
    keys = list(data) if isinstance(data, dict) else range(len(data))
    for key in keys:
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _spots(data[key])


def _mutate_bytes(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 4, 64))):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
    _write(path, data)
    return f"{path.name}: bytes"


def _mutate_file(path: Path, rng: random.Random) -> str:
    path.unlink()
    kind = rng.choice(("gone", "empty", "pipe", "zero", "folder", "passwd", "dangling"))
    if kind == "empty":
        path.touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "gone":
        path.symlink_to({"zero": "/dev/zero", "passwd": "/etc/passwd", "dangling": "x"}[kind])
    return f"{path.name}: {kind}"


def _seal(place: Path) -> None:
    """Write digests that fit what is there now."""
    record = json.loads((place / PLAN).read_text())
    for name in record["files"]:
        with contextlib.suppress(Exception):  # a file that is none keeps its digest
            record["files"][name] = sha256_of(place / name)
    record.pop("digest", None)
    _write(place / PLAN, json.dumps({**record, "digest": _digest(record)}).encode())


def _write(path: Path, content: bytes | bytearray) -> None:
    """Another file in place of one, which may be a sound plan's too."""
    path.unlink()
    path.write_bytes(content)


def commands(place: Path, base: Path) -> list[tuple[str, ...]]:
    """Return the commands under which a mutant is tried, none of them trusted."""
    factory = BASES[base.name][0]
    plan, model = str(place), f"{base.parent / 'own.py'}:{factory}"
    return [
        ("inspect", plan),
        ("verify", plan, "--model", model),
        ("run", plan, "--local", "--rounds", "1"),
        ("profile", plan, "--local", "-o", "costs.json"),
        ("diff", plan, str(base)),
    ]


def try_commands(all_words: Sequence[tuple[str, ...]], folder: Path) -> list[Ended]:
    """Run commands on a mutant one after the other, in one process, in the empty `folder`."""
    folder.mkdir()
    report = folder.with_suffix(".jsonl")
    report.touch()
    shared = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    child = os.fork()
    if child == 0:
        _be_the_child(all_words, folder, report)
    code, usage = _wait(child, report)
    faults = [json.loads(line) for line in report.read_text().splitlines()]
    if len(faults) < len(all_words):
        ended = f"hangs for {SECONDS} s" if code is None else f"ends the process with {code}"
        faults.append(ended)
    elif usage - shared > BYTES:
        faults[-1] = f"{(usage - shared) >> 20} MiB more than the process that it was forked from"
    shutil.rmtree(folder)
    report.unlink()
    return [Ended(words, fault) for words, fault in zip(all_words, faults, strict=False)]


def _be_the_child(all_words: Sequence[tuple[str, ...]], folder: Path, report: Path) -> None:
    """Run the commands, report a line for each, and end."""
    with contextlib.suppress(BaseException):
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # a signal is reported by the parent, once
        os.chdir(folder)
        out = folder.with_suffix(".txt")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for words in all_words:
            file = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(file, number)
            sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
            code = _run(words)
            sys.stdout.flush()
            sys.stderr.flush()
            fault = _fault_of(words, code, out.read_text(errors="replace"), folder)
            with report.open("a") as lines:
                lines.write(json.dumps(fault) + "\n")
        out.unlink()
    os._exit(0)


def _run(words: tuple[str, ...]) -> int:
    sys.argv = ["pipec", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    return 97


def _fault_of(words: tuple[str, ...], code: int, text: str, folder: Path) -> str:
    """Say what is wrong with how a command ended; empty where nothing is."""
    left = sorted(p.name for p in folder.iterdir() if p.name != "costs.json")
    ran = Path(os.environ["PIPEC_MUTANTS"])
    for path in folder.iterdir():
        path.unlink()
    if ran.exists():
        ran.unlink()
        return "runs code that the plan names"
    if code not in (0, 1, 2) or "Traceback" in text:
        return f"exit status {code}: {text[-1500:]}"
    if code != 0 and "rror: " not in text and "are off: " not in text and words[0] != "diff":
        return f"exit status {code} without a word: {text[-300:]}"
    return f"leaves {left}" if left else ""


def _wait(child: int, report: Path) -> tuple[int | None, int]:
    """Wait for a child; its exit status (None: it hung) and its largest resident size in bytes."""
    end, size = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10
        if report.stat().st_size > size:  # a command has ended, the next has its own time
            end, size = time.monotonic() + SECONDS, report.stat().st_size
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.wait4(child, 0)
    return None, 0
