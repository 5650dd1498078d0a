"""Becoming torchrun."""

import os
import sys
from collections.abc import Callable


def start_ranks(devices: int) -> None:
    """This command again, once per device; it does not return."""
    args = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    args += ["--nproc-per-node", str(devices), "--no-python", sys.argv[0], *sys.argv[1:]]
    sys.stdout.flush()
    execute: Callable[[str, list[str]], None] = os.execv
    execute(sys.executable, args)
