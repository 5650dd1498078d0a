"""Schedules by name: every generator is an entry point of the group ``pipec.schedules``.

Wherever a schedule is named, its generator's options may stand behind the name:
``interleaved{chunks=4}``, ``pipedream{replicas=3,1 sync=vertical}``. Every schedule with a flush
also takes ``replicas`` and ``adjacent``: ``1f1b{replicas=2}`` is two pipelines that share their
microbatches and sum their gradients (`pipec.schedule.replicate`); and ``parts``: ``1f1b{parts=4}``
runs what a device computes in one piece as four stages (`pipec.schedule.parts`).
"""

import inspect
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import cast

from pipec.errors import PipecError, ScheduleError
from pipec.options import format_options, parse_one, value_of
from pipec.registry import entries, load
from pipec.schedule.action import Action
from pipec.schedule.build import build, check_counts
from pipec.schedule.parts import split_stages
from pipec.schedule.replicate import replicate
from pipec.schedule.schedule import Schedule

GROUP = "pipec.schedules"
Generator = Callable[..., object]
"""Of (stages, microbatches, **options): a schedule, or its rows."""

SYNCHRONOUS = ("1f1b", "gpipe", "1f1b-so", "zb-h1", "interleaved", "zbv", "dualpipev")
"""Schedules whose update waits for a flush, on devices that do one thing at a time."""

ASYNCHRONOUS = ("pipedream", "pipedream-2bw", "pipemare", "pipefb")
"""Schedules without a flush: weights change while microbatches are under way."""

SYNTHESIZED = "synthesized"
"""The order that is made from costs; synchronous, one stage per device."""

STREAMING = ("1f1b-as", "gpipe", "fbp-as")
"""The same on devices that stream: forward and backward may share the device."""

OPTIONS = {"replicas": int, "adjacent": str, "parts": int}
"""What every schedule without replicas of its own takes besides its generator's options."""

MOST = 300_000_000
"""Most stages x microbatches: with I, W, sends and receives, positions are numbers of 32 bits."""
MOST_CHUNKS = 16
"""Stages per device that `stages_on` looks for."""


def names() -> tuple[str, ...]:
    """Every schedule that is installed, in-tree and from other packages."""
    return tuple(entries(GROUP))


def find_generator(name: str) -> Generator:
    """The generator function registered as ``name`` (options behind it do not matter).

    Raises:
        PipecError: No schedule has this name; near names are suggested.
    """
    return cast("Generator", load(GROUP, parse_one(name, ScheduleError)[0]))


def plain_name(name: str) -> str:
    """The name without its options.

    Example:
        >>> plain_name("interleaved{chunks=4}")
        'interleaved'
    """
    return parse_one(name, ScheduleError)[0]


def with_options(name: str, **options: object) -> str:
    """A schedule's name with more options behind it.

    Example:
        >>> with_options("interleaved{chunks=4}", replicas=2)
        'interleaved{chunks=4 replicas=2}'
    """
    plain, given = parse_one(name, ScheduleError)
    return format_options(plain, {**given, **options})


def parse_options(name: str, given: Mapping[str, str]) -> dict[str, object]:
    """Options of a schedule from text, those behind its name and more.

    Raises:
        PipecError: The name is unknown.
        ScheduleError: An option is unknown, given twice, or has a value of the wrong type.

    Example:
        >>> parse_options("interleaved{chunks=4}", {"split": "true"})
        {'chunks': 4, 'split': True}
    """
    plain, options = parse_one(name, ScheduleError)
    function = find_generator(plain)
    keys = [k.replace("-", "_") for k in (*options, *given)]
    _check_once(plain, keys)
    options = dict(zip(keys, (*options.values(), *given.values()), strict=True))
    _check_known(plain, function, options)
    hints = {**OPTIONS, **typing.get_type_hints(function)}
    return {
        key: value_of(hints.get(key, str), text, f"{plain}{{{key}=...}}", ScheduleError)
        for key, text in options.items()
    }


def _check_once(name: str, options: Sequence[str]) -> None:
    """Refuse what stands behind a schedule's name and beside it."""
    if twice := sorted(key for key, count in Counter(options).items() if count > 1):
        raise ScheduleError("an option is given twice", where=name, got=", ".join(twice))


def generate(name: str, stages: int, microbatches: int, **options: object) -> Schedule:
    """The schedule ``name`` of compute actions.

    Args:
        name: One of `names`, options behind it or not: ``interleaved{chunks=4}``.
        stages: Number of pipeline stages N (of all chunks together).
        microbatches: Number of microbatches M.
        options: The generator's own options, such as ``chunks=2``.

    Raises:
        PipecError: The name is unknown.
        ScheduleError: A count is below 1 or too large, an option is unknown, or the generator
            cannot serve this number of stages and microbatches.

    Example:
        >>> print(generate("1f1b", stages=2, microbatches=3))
        0: 0F0 0F1 0B0 0F2 0B1 0B2
        1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    check_counts(stages=stages, microbatches=microbatches)
    if stages * microbatches > MOST:
        raise ScheduleError(
            "the schedule is too large",
            got=f"{stages:,} stages x {microbatches:,} microbatches",
            want=f"a product of at most {MOST:,}",
        )
    function = find_generator(name)
    behind = parse_options(name, {})
    every = {**behind, **options}
    _check_once(name, [*behind, *options])
    _check_known(plain_name(name), function, every)
    if "replicas" in inspect.signature(function).parameters:
        return _build(_call(function, name, stages, microbatches, every), name, microbatches)
    replicas, adjacent = every.pop("replicas", 1), str(every.pop("adjacent", "stages"))
    parts = every.pop("parts", 1)
    assert isinstance(replicas, int)
    assert isinstance(parts, int)
    _check_even(microbatches, "microbatches", replicas, "replicas")
    _check_even(stages, "stages", parts, "parts")
    made = _call(function, name, stages // parts, microbatches // replicas, every)
    built = _build(made, name, microbatches // replicas)
    return replicate(split_stages(built, parts) if parts > 1 else built, replicas, adjacent)


def placing(schedule: Schedule) -> dict[str, object]:
    """The options of a schedule that say on which devices its stages are."""
    given = ((k, schedule.options.get(k)) for k in ("chunks", "replicas", "parts"))
    return {k: v for k, v in given if isinstance(v, int)}


def spell(schedule: Schedule) -> str:
    """A schedule's name with its options as a user writes them, defaults and costs left out.

    Example:
        >>> spell(generate("zb-h1", 4, 8, memory=2)), spell(generate("pipedream", 2, 8))
        ('zb-h1{memory=2}', 'pipedream')
    """
    name = schedule.name
    own = inspect.signature(find_generator(name)).parameters if name in names() else {}
    usual = {"adjacent": "stages", **{k: p.default for k, p in own.items()}}
    kept = placing(schedule)
    for k, v in schedule.options.items():
        numbers = v if isinstance(v, list | tuple) else ()
        made = float in map(type, numbers) or set(numbers) == {1}
        if v != usual.get(k) and not made:
            kept.setdefault(k, v)
    return format_options(schedule.name, kept)


def without_parts(schedule: Schedule) -> Schedule:
    """The schedule that the stages of this one are parts of; itself if they are whole."""
    options = dict(schedule.options)
    parts = options.pop("parts", 1)
    if parts == 1:
        return schedule
    assert isinstance(parts, int)
    return generate(schedule.name, schedule.stages // parts, schedule.microbatches, **options)


def _check_even(count: int, what: str, among: int, whom: str) -> None:
    if among < 1 or count % among:
        raise ScheduleError(
            f"{what} cannot be dealt out evenly to the {whom}",
            got=f"{count} {what}, {among} {whom}",
            want=f"a multiple of the {whom}",
        )


def _call(
    function: Callable[..., object],
    name: str,
    stages: int,
    microbatches: int,
    options: Mapping[str, object],
) -> object:
    """What a generator gives, which may be somebody else's code."""
    try:
        return function(stages, microbatches, **options)
    except PipecError:
        raise
    except Exception as error:
        raise ScheduleError(
            f"the function of schedule {plain_name(name)} failed", got=repr(error)
        ) from error


def _build(made: object, name: str, microbatches: int) -> Schedule:
    """What a generator gave as a schedule: it may give plain rows, of actions or of their text."""
    if isinstance(made, Schedule):
        return made
    if not isinstance(made, list | tuple) or not all(isinstance(r, list | tuple) for r in made):
        raise ScheduleError(
            f"schedule {plain_name(name)} gave no schedule",
            got=type(made).__name__,
            want='a Schedule, or one row of actions per device: [["0F0", "0B0"], ["1F0", "1B0"]]',
        )
    rows = [[Action.parse(a) if isinstance(a, str) else a for a in row] for row in made]
    return build(plain_name(name), rows, microbatches)


def stages_on(name: str, devices: int, microbatches: int) -> int:
    """How many stages of a schedule fill a number of devices.

    As many as devices, a multiple (several stages per device), or fewer (replicas, or a
    backward pass on devices of its own); found by asking the generator.

    Raises:
        PipecError: The name is unknown.
        ScheduleError: No number of stages does; the message has the first reason.

    Example:
        >>> [stages_on(s, 4, 12) for s in ("1f1b", "zbv", "pipedream{replicas=3,1}", "pipefb")]
        [4, 8, 2, 2]
    """
    check_counts(devices=devices, microbatches=microbatches)
    parse_options(name, {})
    reason = ""
    multiples = range(devices, (MOST_CHUNKS + 1) * devices, devices)
    for stages in chain(multiples, range(devices - 1, 0, -1)):
        try:
            found = generate(name, stages, microbatches).devices
        except ScheduleError as error:
            reason = reason or f"{error.what}{'' if error.got is None else f': {error.got}'}"
            continue
        if found == devices:
            return stages
    raise ScheduleError(
        f"no number of stages of {name} fills the devices",
        got=f"{devices} devices, {microbatches} microbatches{reason and f': {reason}'}",
        hint="pipec schedule lists the schedules and their options",
    )


def _check_known(name: str, function: Generator, options: Mapping[str, object]) -> None:
    own = [p.name for p in inspect.signature(function).parameters.values()][2:]
    known = list(dict.fromkeys([*own, *OPTIONS])) if "replicas" not in own else own
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ScheduleError(
            f"schedule {name} has no option {unknown[0]!r}", want=", ".join(known) or "no option"
        )
