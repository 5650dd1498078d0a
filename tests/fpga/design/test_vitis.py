"""Rigid pipelines against cycles of AMD's RTL co-simulation."""

import gzip
import json

import pytest

from benchmarks.vitis import FILE, Json, simulated

SMALL = 3_000


def loop(trip: int, ii: int, depth: int, **access: list[int]) -> Json:
    """Reads FIFO ``r`` and writes FIFO ``w`` in every iteration."""
    listed = [{"op": op, "fifos": f, "at": [[0, [[1, trip]]]]} for op, f in access.items()]
    return {"trip": trip, "runs": 1, "ii": ii, "depth": depth, "access": listed}


def design(depth: int, *processes: Json) -> Json:
    return {"fifos": [{"depth": depth}], "processes": list(processes)}


def process(*loops: Json, after: tuple[int, ...] = ()) -> Json:
    return {"name": "p", "after": list(after), "loops": list(loops)}


@pytest.mark.parametrize("together", [True, False])
def test_cycles_by_hand(together: bool) -> None:
    def cycles(what: Json) -> int:
        return simulated(what, together=together)

    alone = process(loop(10, 3, 7))
    assert cycles(design(2, alone)) == 9 * 3 + 7 + 2
    assert cycles(design(2, process(loop(10, 3, 7), loop(4, 1, 5)))) == 34 + 8 + 2
    # An array is handed over: the second starts two cycles after the first has finished.
    assert cycles(design(2, alone, process(loop(4, 1, 5), after=(0,)))) == 36 + 2 + 8 + 1
    # Words written in cycle 6 + i are read from 7 + i on; until then the reader stood still.
    chain = [process(loop(10, 1, 7, w=[0])), process(loop(10, 1, 4, r=[0]))]
    assert cycles(design(8, *chain)) == 7 - 1 + 9 + 4 + 2
    # One slot: a word every second cycle.
    assert cycles(design(1, *chain)) == 7 - 1 + 2 * 9 + 4 + 2


def test_small_designs_meet_co_simulation() -> None:
    if not FILE.is_file():
        pytest.skip("the reports are not here")
    with gzip.open(FILE) as file:
        designs = [d for d in json.load(file)["designs"] if d["cosim"]["latency_max"] < SMALL]
    structures = {json.dumps([d["fifos"], d["processes"]]): d for d in designs}
    assert len(structures) >= 4
    for d in structures.values():
        want = d["cosim"]["latency_max"]
        assert abs(simulated(d) - want) <= 0.005 * want, d["design"]
