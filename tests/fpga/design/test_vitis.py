"""Cycles against AMD's RTL co-simulation, resources against its synthesis reports."""

import gzip
import json
from dataclasses import astuple

import pytest

from benchmarks.vitis import FILE, Json, simulated
from benchmarks.vitis_resources import FOLDER, Reports, rows_of
from pipec.backends.fpga.arithmetic import arithmetic, steps_cost
from pipec.backends.fpga.memory import bram36, fifo_logic, uram, with_control

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


@pytest.mark.parametrize(
    ("products", "sums", "others", "control", "reported"),
    [
        (440, 440, (), (10, 37, 1_408), (2_200, 126_783, 246_308)),  # a matrix product
        (88, 44, (), (3, 15, 0), (352, 16_577, 33_677)),
        (0, 64, (), (2, 10, 0), (128, 13_958, 24_737)),
        (0, 2, ("exp", "reciprocal"), (2, 46, 0), (19, 1_467)),  # a sigmoid; fewer flip-flops
        (1, 1, (), (7, 17, 64), (5, 900, 1_063)),  # its control is larger than its operators
    ],
)
def test_loops_take_what_amd_reports(
    products: int, sums: int, others: tuple[str, ...], control: tuple[int, ...],
    reported: tuple[int, ...],
) -> None:  # fmt: skip
    """Loops of Stream-HLS at an interval of 1: DSPs as reported, LUTs and flip-flops nearly.

    ``control`` is the report's: additions on the fabric, stages, bits of words of its memories.
    """
    steps = [*["mul"] * products, *["add"] * sums, *others]
    found = with_control(*steps_cost(steps, 1, "float32"), *control)
    assert found.dsp == reported[0]
    assert astuple(found)[3 : 2 + len(reported)] == pytest.approx(reported[1:], rel=0.13)
    both = steps_cost(["mul", "add"], 1, "float32")
    assert (arithmetic("float32").mac_dsp, arithmetic("float32").mac_lut) == both


@pytest.mark.parametrize(
    ("words", "halves"), [(160, 1), (640, 2), (1_024, 2), (12_544, 25), (44_000, 86), (2_048, 4)]
)
def test_block_rams_of_words_of_32_bits_are_those_that_amd_reports(words: int, halves: int) -> None:
    assert 2 * bram36(32, words) == halves


def test_memories_and_fifos_are_those_that_amd_reports() -> None:
    assert [uram(32, words) for words in (1_066, 3_584, 4_096)] == [1, 1, 1]
    logic = [fifo_logic(32, depth).lut for depth in (25, 256, 1_000)]
    assert logic == pytest.approx([51, 71, 78], abs=8)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the reports are not here")
def test_a_kernel_is_in_one_half_in_all_its_versions() -> None:
    reports = Reports.read(FOLDER)
    halves = [{r.design for r in rows_of(reports, held_back=held)} for held in (False, True)]
    kernels = [{d.rpartition("/")[2].removesuffix(".prj").lstrip("k") for d in h} for h in halves]
    assert all(kernels)
    assert not kernels[0] & kernels[1]
