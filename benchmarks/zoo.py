"""Models that other people made: ONNX files out of published packages, cut and compared.

    python -m benchmarks.zoo                     the list beside this file; rewrites docs/zoo.md
    python -m benchmarks.zoo --list other.toml   any list; prints its table only
    python -m benchmarks.zoo --only silero       models whose name has this in it; prints only

A list has one table per model::

    [[model]]
    package = "silero-vad"                   # of the package index, fetched without dependencies
    version = "6.2.3"
    file = "silero_vad/data/silero_vad.onnx" # inside the wheel or the source archive
    shapes = { input = [1, 576] }            # what ``--shape`` takes
    bind = { sr = [16000] }                  # what ``--bind`` takes
    ranges = { ids = [0, 30000] }            # smallest and largest number of an input
    devices = 3                              # stages to cut it into
    targets = ["onnx", "torch"]

In place of a package a model has ``path`` (a file on this machine) or ``export`` (the name of a
function of `benchmarks._zoo_exports`). How one model is judged: `benchmarks._zoo_model`.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHE, DOCS = ROOT / ".zoo", ROOT / "docs/zoo.md"
TARGETS = ("onnx", "torch")
KINDS = ("right", "refused", "wrong", "unloadable", "short", "crash", "timeout")
SECONDS = 600
"""Longest time that one model may take."""

Row = dict[str, Any]


def fetch(package: str, version: str, file: str) -> Path:
    """A file of a published package, out of the cache.

    Raises:
        RuntimeError: The package or the file in it cannot be had.
    """
    folder = CACHE / f"{package}-{version}"
    found = folder / file
    if found.is_file():
        return found
    folder.mkdir(parents=True, exist_ok=True)
    archives = [p for p in folder.iterdir() if p.suffix in (".whl", ".gz", ".zip")]
    if not archives:
        words = ["download", "-q", "--no-deps", "--disable-pip-version-check", "-d", str(folder)]
        command = [sys.executable, "-m", "pip", *words, f"{package}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = [p for p in folder.iterdir() if p.is_file()]
        if done.returncode or not archives:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise RuntimeError(f"pip cannot fetch {package}=={version}: {lines[-1]}")
    for archive in archives:
        _unpack(archive, folder)
    if not found.is_file():
        raise RuntimeError(f"{package}=={version} holds no {file}")
    return found


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as z:
            wanted = [n for n in z.namelist() if ".onnx" in n]
            z.extractall(folder, wanted)
    else:
        with tarfile.open(archive) as t:
            wanted_members = [m for m in t.getmembers() if ".onnx" in m.name]
            t.extractall(folder, wanted_members, filter="data")


def locate(entry: Row) -> Path:
    """The file of a model, fetched or exported if need be.

    Raises:
        RuntimeError: It cannot be had.
    """
    if "path" in entry:
        return Path(entry["path"])
    if "export" in entry:
        path: Path = CACHE / "exports" / entry["export"] / "model.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "benchmarks._zoo_exports", entry["export"], str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                path.unlink(missing_ok=True)
                raise RuntimeError(f"cannot export: {done.stderr.strip().splitlines()[-1:]}")
        return path
    return fetch(entry["package"], entry["version"], entry["file"])


def run_model(entry: Row, worker: "Worker") -> list[Row]:
    """The verdicts on one model, one per target."""
    file = str(entry.get("file", entry.get("path")))
    name = entry.get("name") or entry.get("export") or Path(file).stem
    origin = f"{entry['package']} {entry['version']}" if "package" in entry else "made here"
    row = {"model": name, "origin": origin}
    try:
        path = locate(entry)
    except RuntimeError as error:
        return [{**row, "target": "-", "kind": "timeout", "reason": str(error)}]
    targets = entry.get("targets", TARGETS)
    request = {"path": str(path), "targets": targets}
    request |= {k: entry[k] for k in ("shapes", "bind", "ranges", "devices") if k in entry}
    return [{**row, **f} for f in worker.judge(request)]


class Worker:
    """A process that judges models one after the other; a new one if it dies or takes too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def judge(self, request: Row) -> list[Row]:
        """One verdict per target."""
        found: list[Row] = []
        for target in request["targets"]:
            process = self._process = self._process or self._start()
            assert process.stdin
            assert process.stdout
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({**request, "targets": [target]}) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
            late = not timer.is_alive()
            timer.cancel()
            if line:
                found.append(json.loads(line))
                continue
            status, self._process = process.wait(), None
            kind, why = ("timeout", f"over {SECONDS} s") if late else ("crash", f"status {status}")
            found.append({"target": target, "kind": kind, "reason": why})
        return found

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks._zoo_model"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()


def markdown(rows: list[Row], title: str) -> str:
    """The table and its counts."""
    models = len({(r["origin"], r["model"]) for r in rows})
    packages = len({r["origin"] for r in rows} - {"made here"})
    lines = [
        f"# {title}",
        "",
        "Written by `make zoo`: every model is cut, emitted, its stages run one after the other on",
        "three kinds of inputs, and every output in the file's own list compared with onnxruntime",
        "on the original file. *error* is relative to the output's largest number, *allowed* is",
        "8 times what onnxruntime differs from itself without its graph optimizations, at least",
        "2e-4. Files that draw random numbers are compared by type and shape.",
        "",
        f"{models} models, {packages} packages.",
        "",
        "| target | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    for target in sorted({r["target"] for r in rows}):
        counts = Counter(r["kind"] for r in rows if r["target"] == target)
        lines.append(f"| {target} | " + " | ".join(str(counts[k]) for k in KINDS) + " |")
    lines += ["", "| model | from | target | verdict | stages | error | allowed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for r in rows:
        numbers = f"{r['error']:.1e} | {r['allowed']:.1e}" if r.get("stages") else "- | -"
        lines.append(
            f"| {r['model']} | {r['origin']} | {r['target']} | {r['kind']} "
            f"| {r.get('stages') or '-'} | {numbers} |"
        )
    reasons = [r for r in rows if r.get("reason")]
    if reasons:
        lines += ["", "## Not right", ""]
        lines += [
            f"* **{r['model']}** ({r['target']}, {r['kind']}): {_line(r['reason'])}"
            for r in reasons
        ]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """A reason on one line, without paths of this machine."""
    plain = " ".join(text.replace(str(CACHE) + "/", "").split())
    return plain[:400].replace("|", "\\|").replace("<", "\\<")


def _keep(rows: list[Row], options: argparse.Namespace) -> None:
    """Write what is known so far: a run that is stopped leaves what it found."""
    if options.list == ROOT / "benchmarks/zoo.toml" and not options.only:
        DOCS.write_text(markdown(rows, "Models that other people made"), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def main() -> int:
    """Run a list; 1 if a model is wrong, unloadable, short of an output, or crashes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", type=Path, default=ROOT / "benchmarks/zoo.toml")
    parser.add_argument("--only", default="", help="models whose table has this in it")
    parser.add_argument("--json", type=Path, help="also write the verdicts")
    options = parser.parse_args()
    entries = tomllib.loads(options.list.read_text(encoding="utf-8"))["model"]
    chosen = [e for e in entries if options.only in json.dumps(e)]
    rows: list[Row] = []
    worker = Worker()
    for entry in chosen:
        for r in run_model(entry, worker):
            print(
                f"{r['kind']:<10} {r['target']:<6} {r.get('error', 0):.1e} "
                f"{r.get('seconds', 0):5.1f} s  {r['origin']} {r['model']}  "
                f"{_line(r.get('reason', ''))}",
                flush=True,
            )
            rows.append(r)
        _keep(rows, options)
    worker.close()
    counts = Counter(r["kind"] for r in rows)
    print(", ".join(f"{counts[k]} {k}" for k in KINDS if counts[k]))
    return int(bool(counts.keys() - {"right", "refused"}))


if __name__ == "__main__":
    sys.exit(main())
