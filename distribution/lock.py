"""Write `requirements.lock` and the bill of materials from the tested versions.

`constraints.txt` says which versions the tests ran with. This script takes from it what a user of
`pipec[train,report]` needs, directly and indirectly, as the installed packages declare it; `uv`
adds the hashes of all files that the package index has of each version, `cyclonedx-py` writes the
bill of materials that stands in the wheel. torch is left out: which build is right depends on the
machine (CPU, CUDA, ROCm), and each comes from an index of its own.
"""

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
SBOM = ROOT / "distribution" / "pipec.cdx.json"
HEADER = """\
# What pipec[train,report] needs, with the hashes of all files; made by `make lock`.
# Install the build of torch for your machine first, then
#   pip install --require-hashes -r requirements.lock && pip install --no-deps pipec
"""
APART = "torch"
OF_GPUS = ("nvidia", "cuda", "triton")  # what only its builds for GPUs need


def needed(name: str, extras: tuple[str, ...], found: set[str]) -> set[str]:
    """Return the names of all packages that `name` with `extras` needs, added to `found`."""
    for line in requires(name) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        child = canonicalize_name(requirement.name)
        if child in found or child.startswith(OF_GPUS):
            continue
        found.add(child)
        needed(child, tuple(requirement.extras), found)
    return found


def main() -> None:
    """Write both files."""
    names = needed("pipec", ("train", "report"), set()) - {APART}
    tested = {
        str(canonicalize_name(line.split("==")[0])): line
        for line in (ROOT / "constraints.txt").read_text().split()
    }
    if missing := sorted(names - set(tested)):
        sys.exit(f"constraints.txt has no version of {', '.join(missing)}")
    pinned = "\n".join(tested[name] for name in sorted(names))
    command = ["uv", "pip", "compile", "-q", "--no-deps", "--generate-hashes", "--no-header"]
    command += ["--no-annotate", "--universal", "--index-url", "https://pypi.org/simple", "-"]
    lock = subprocess.run(command, input=pinned, capture_output=True, text=True, check=True).stdout
    LOCK.write_text(HEADER + lock)
    write = ["cyclonedx-py", "requirements", "--output-reproducible", "--pyproject"]
    write += [str(ROOT / "pyproject.toml"), "--mc-type", "library", "-o", str(SBOM), "-"]
    subprocess.run(write, input=f"{pinned}\n{tested[APART]}\n", text=True, check=True)


if __name__ == "__main__":
    main()
