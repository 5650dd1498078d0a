"""How a benchmark ends that needs what a machine may not have."""

import sys
from collections.abc import Callable

from pipec.errors import PipecError


def exit_status(run: Callable[[], object]) -> int:
    """Run it: 0, or 1 behind an error's message."""
    try:
        run()
    except PipecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
