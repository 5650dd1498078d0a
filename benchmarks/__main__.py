"""``make bench``: every benchmark in turn, each in a process of its own.

``python -m benchmarks NAME ...`` runs some of them.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ON_REQUEST = ("gpu", "zoo", "fuzz_onnx")
"""What needs a machine of its own kind, the network, or hours."""
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def title(name: str) -> str:
    """First line of a benchmark's docstring."""
    text = (HERE / f"{name}.py").read_text()
    return text.removeprefix('"""').splitlines()[0].removesuffix('"""')


def main(names: list[str]) -> int:
    """Run the named benchmarks, by default all that any machine can; the number that failed."""
    unknown = [n for n in names if n not in NAMES]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return 2
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
