"""Every schedule in its variants, for tests that hold for all of them."""

from pipec.schedule.lower import lower
from pipec.schedule.registry import generate, names
from pipec.schedule.schedule import Schedule

VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in names()),
    ("interleaved", {"split": True}),
    ("interleaved", {"order": "breadth"}),
    ("zb-h1", {"memory": 2}),
    ("pipemare", {"slots": "concurrent", "update_every": 2}),
    ("pipedream", {"replicas": [2, 1, 1, 1]}),
    ("pipedream", {"replicas": [3, 1, 2, 1], "sync": "vertical"}),
    ("pipefb", {"saved": "direct"}),
    ("pipefb", {"backward_stages": 6, "publish": 0}),
]
IDS = [f"{n}{''.join(f'-{v}' for v in o.values())}" for n, o in VARIANTS]


_made: dict[str, Schedule] = {}


def full(
    name: str, stages: int, microbatches: int, options: dict[str, object], depth: int | None = None
) -> Schedule:
    """A schedule with everything inserted, made once."""
    key = repr((name, stages, microbatches, options, depth))
    if key not in _made:
        _made[key] = lower(generate(name, stages, microbatches, **options), depth=depth)
    return _made[key]
