"""Schedules by name: every generator is an entry point of the group ``pipec.schedules``."""

import inspect
from collections.abc import Callable
from typing import cast

from pipec.errors import ScheduleError
from pipec.registry import entries, load
from pipec.schedule.build import check_counts
from pipec.schedule.schedule import Schedule

GROUP = "pipec.schedules"
Generator = Callable[..., Schedule]

SYNCHRONOUS = ("1f1b", "gpipe", "1f1b-so", "zb-h1", "interleaved", "zbv", "dualpipev")
"""Schedules whose update waits for a flush, on devices that do one thing at a time."""

STREAMING = ("1f1b-as", "gpipe", "fbp-as")
"""The same on devices that stream: forward and backward may share the device."""


def names() -> tuple[str, ...]:
    """Every schedule that is installed, in-tree and from other packages."""
    return tuple(entries(GROUP))


def generator(name: str) -> Generator:
    """The generator function registered as ``name``.

    Raises:
        PipecError: No schedule has this name; near names are suggested.
    """
    return cast("Generator", load(GROUP, name))


def generate(name: str, stages: int, microbatches: int, **options: object) -> Schedule:
    """The schedule ``name`` of compute actions.

    Args:
        name: One of `names`.
        stages: Number of pipeline stages N (of all chunks together).
        microbatches: Number of microbatches M.
        options: The generator's own options, such as ``chunks=2``.

    Raises:
        PipecError: The name is unknown.
        ScheduleError: A count is below 1, an option is unknown, or the generator cannot serve
            this number of stages and microbatches.

    Example:
        >>> print(generate("1f1b", stages=2, microbatches=3))
        0: 0F0 0F1 0B0 0F2 0B1 0B2
        1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    check_counts(stages=stages, microbatches=microbatches)
    function = generator(name)
    known = [p.name for p in inspect.signature(function).parameters.values()][2:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ScheduleError(
            f"schedule {name} has no option {unknown[0]!r}", want=", ".join(known) or "no option"
        )
    return function(stages, microbatches, **options)
