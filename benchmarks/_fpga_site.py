"""Peers for FPGAs in a folder of their own: hls4ml and FINN+, installed when first asked for.

They are installed without what they depend on where that is in this environment already (numpy,
onnxruntime, torch, onnxscript); onnx is an older one than pipec's, so they run in processes whose
``PYTHONPATH`` names the folder first.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".bench" / "fpga_peers"
WANTED = (
    "hls4ml==1.3.0", "finn-plus==1.6.1", "qonnx==1.0.0", "onnx==1.18.0", "quantizers", "h5py",
    "pydigitalwavetools==1.1", "pyyaml", "toposort", "bitstring", "bitarray", "tibs", "clize",
    "sigtools", "attrs", "od", "docutils", "mashumaro", "importlib-metadata", "zipp",
)  # fmt: skip
"""115 MB; FINN+'s partitioner wants a solver of 600 MB besides, which is left out."""
PATIENCE = 600


class Unavailable(Exception):  # noqa: N818
    """A peer can't be had, or fails, and why."""


def install() -> None:
    """Make the folder, unless it is there.

    Raises:
        Unavailable: pip fails, as without a network.
    """
    if SITE.is_dir():
        return
    half = SITE.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(half)]
    command += WANTED
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"pip: {done.stderr.strip().splitlines()[-1]}")
    half.rename(SITE)


def ask(module: str, question: object) -> Any:
    """Run ``python -m MODULE`` with JSON on its stdin.

    Args:
        module: Module of a peer; it prints its result behind ``RESULT``.
        question: JSON data.

    Returns:
        JSON data.

    Raises:
        Unavailable: There is no result.
    """
    install()
    path = os.pathsep.join((str(SITE), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module], input=json.dumps(question), env=environment, cwd=ROOT,
            text=True, capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{module}: no result in {PATIENCE} s") from None
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise Unavailable(f"{module}: {(done.stderr.strip().splitlines() or ['no result'])[-1][:200]}")


def reply(found: object) -> None:
    """Print a peer's result."""
    print(f"RESULT {json.dumps(found)}")


def cpu_seconds() -> float:
    """Processor time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
