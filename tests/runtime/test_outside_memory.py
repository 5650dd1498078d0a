"""Memory of real ranks, counted by malloc itself: the prediction is a limit of it, and savings
are real."""

from benchmarks.outside_memory import counted


def test_malloc_gives_out_what_the_plan_promises() -> None:
    """Half a megabyte is left for blocks that are no tensors: buffers of gloo, Python's objects."""
    found = counted("chain", ["gpipe", "zbv"])
    assert found["gpipe"].keys() == found["zbv"].keys() == {"plain", "offload", "recompute"}
    for ways in found.values():
        for predicted, got in ways.values():
            assert all(g <= 1.02 * p for p, g in zip(predicted, got, strict=True))
        for way in ("offload", "recompute"):
            for rank in (0, 1):
                promised, real = (ways["plain"][k][rank] - ways[way][k][rank] for k in (0, 1))
                assert real >= 0.95 * promised > 0
