"""``make bench``: every benchmark in turn, each in a process of its own.

``python -m benchmarks NAME ...`` runs some of them. ``python -m benchmarks keep NAME [WORDS]`` runs
one, one of a package (``hls_check.table``), or a file of ``examples``, and keeps what it prints,
with date and machine, in ``docs/figures`` (`docs/make_figures.py`).
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

HERE = Path(__file__).parent
ON_REQUEST = (
    "gpu",
    "kernels",
    "zoo",
    "fuzz_onnx",
    "slow_link",
    "kills",
    "soak",
    "ap_types",
    "quantised",
)
"""What needs a machine of its own kind, the network, root, or hours."""
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def title(name: str) -> str:
    """First line of a benchmark's docstring."""
    text = (HERE / f"{name}.py").read_text()
    return text.removeprefix('"""').splitlines()[0].removesuffix('"""')


def is_program(name: str) -> bool:
    """Whether there is such a file, a module such as ``hls_check.table``, or a package to run."""
    path = HERE / name.replace(".", "/")
    files = (Path(name), path.with_suffix(".py"), path / "__main__.py")
    return any(file.is_file() for file in files)


def keep(name: str, words: list[str]) -> int:
    """Run a benchmark, and write what it printed to ``docs/figures``, if it ended well."""
    what = [name] if name.endswith(".py") else ["-m", f"benchmarks.{name}"]
    printed = list[str]()
    with subprocess.Popen(
        [sys.executable, *what, *words], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            printed.append(line.rstrip())
    if running.returncode:
        return running.returncode
    record = {
        "command": shlex.join(["python", *what, *words]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "torch": version("torch"),
        "printed": printed,
    }
    folder = HERE.parent / "docs" / "figures"
    folder.mkdir(exist_ok=True)
    label = re.sub(r"[^\w.]+", "-", " ".join([Path(name).stem, *words]))
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (folder / f"{label}.json").write_text(f"{text}\n")
    return 0


def machine() -> str:
    """Processor and number of cores, and a GPU where there is one."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    words = [name, f"{len(os.sched_getaffinity(0))} cores"]
    if torch.cuda.is_available():
        words.append(torch.cuda.get_device_name())
    return ", ".join(words)


def main(names: list[str]) -> int:
    """Run the named benchmarks, by default all that any machine can; the number that failed."""
    keeps = names[:1] == ["keep"]
    names, words = (names[1:2], names[2:]) if keeps else (names, [])
    unknown = [n for n in names if n not in NAMES and not (keeps and is_program(n))]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return 2
    if keeps:
        return keep(names[0], words)
    failed = []
    for name in names or [n for n in NAMES if n not in ON_REQUEST]:
        print(f"\n== {name}: {title(name)}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
