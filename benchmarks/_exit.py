"""How a benchmark ends that needs what a machine may not have, and what it takes."""

import argparse
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


def positive(text: str) -> int:
    """A count on the command line: a whole number, 1 or more.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: want 1 or more")
    return count
