"""Memory of real ranks, counted by malloc itself: the prediction is a limit of it, and savings
are real."""

from benchmarks.outside_memory import Row, collect
from tests.sampling import ALL

JOBS = {"chain": ["zbv"], "convolutions": ["1f1b"]} if ALL else {"convolutions": ["zbv"]}


def test_malloc_gives_out_what_the_plan_promises() -> None:
    """Half a megabyte is left for blocks that are no tensors: buffers of gloo, Python's objects.

    Kernels of convolutions take several for themselves.
    """
    found = collect(JOBS)
    for model, schedules in JOBS.items():
        assert list(found[model]) == schedules
        for ways in found[model].values():
            check(ways)


def check(ways: dict[str, Row]) -> None:
    """What was counted is no more than predicted; what was to be saved is."""
    assert ways.keys() == {"plain", "offload", "recompute"}
    for predicted, got in ways.values():
        assert all(g <= 1.02 * p for p, g in zip(predicted, got, strict=True))
    for way in ("offload", "recompute"):
        pairs = [zip(ways["plain"][k], ways[way][k], strict=True) for k in (0, 1)]
        promised, real = ([a - b for a, b in pair] for pair in pairs)
        assert max(promised) > 0
        assert all(r >= 0.95 * p for p, r in zip(promised, real, strict=True) if p > 0)
