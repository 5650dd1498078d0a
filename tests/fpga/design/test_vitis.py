"""Cycles against AMD's RTL co-simulation, resources against its synthesis reports."""

import gzip
import json
import statistics
from dataclasses import astuple
from itertools import pairwise

import pytest

from benchmarks.vitis import FILE, Json, simulate_design
from benchmarks.vitis_resources import FOLDER, Reports, multiplexer, rows_of
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
        return simulate_design(what, together=together)

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
        assert abs(simulate_design(d) - want) <= 0.005 * want, d["design"]


@pytest.mark.parametrize(
    ("products", "sums", "others", "control", "reported"),
    [
        (440, 440, (), (10, 37, 1_408, 44, 15), (2_200, 126_783, 246_308)),  # a matrix product
        (88, 44, (), (3, 15, 0, 88, 10), (352, 16_577, 33_677)),
        (0, 64, (), (2, 10, 0, 128, 8), (128, 13_958, 24_737)),
        (0, 2, ("exp", "reciprocal"), (2, 46, 0, 2, 15), (19, 1_467)),  # fewer flip-flops
        (1, 1, (), (7, 17, 64, 3, 21), (5, 900, 1_063)),  # its control is larger than its operators
        (0, 0, (), (4, 4, 0, 1, 16), (0, 220, 87)),  # moves words of 32 bits
        (0, 0, (), (1, 2, 0, 15, 5), (0, 203, 13)),  # writes zeros to 15 FIFOs
    ],
)
def test_loops_take_what_amd_reports(
    products: int, sums: int, others: tuple[str, ...], control: tuple[int, ...],
    reported: tuple[int, ...],
) -> None:  # fmt: skip
    """Loops of Stream-HLS at an interval of 1: DSPs as reported, LUTs and flip-flops nearly.

    ``control`` is the report's: additions on the fabric, stages, bits of words of its memories,
    FIFOs that it reads and writes, bits that count its iterations.
    """
    steps, (*counts, ports, bits) = [*["mul"] * products, *["add"] * sums, *others], control
    costs = steps_cost(steps, 1, "float32")
    found = with_control(*costs, *counts, word=32, ports=ports, bits=bits)
    assert found.dsp == reported[0]
    assert found.lut == pytest.approx(reported[1], rel=0.11)
    assert astuple(found)[4 : 2 + len(reported)] == pytest.approx(reported[2:], rel=0.24)
    both = steps_cost(["mul", "add"], 1, "float32")
    assert (arithmetic("float32").mac_dsp, arithmetic("float32").mac_lut) == both


def test_an_address_waits_in_a_shift_register() -> None:
    """Beyond 32 stages only whether they work is a flip-flop more; an address of a memory is 18."""
    depths = (3, 32, 33, 320)
    moved, updated = ([with_control(0, 0, 1, d, w).ff for d in depths] for w in (0, 32))
    assert [b - a for a, b in pairwise(moved)] == [58, 2, 574]
    assert [b - a for a, b in pairwise(updated)] == [580, 2, 574]


@pytest.mark.parametrize(
    ("words", "halves"), [(160, 1), (640, 2), (1_024, 2), (12_544, 25), (44_000, 86), (2_048, 4)]
)
def test_block_rams_of_words_of_32_bits_are_those_that_amd_reports(words: int, halves: int) -> None:
    assert 2 * bram36(32, words) == halves


def test_memories_and_fifos_are_those_that_amd_reports() -> None:
    assert [uram(32, words) for words in (1_066, 3_584, 4_096)] == [1, 1, 1]
    logic = [fifo_logic(32, depth).lut for depth in (25, 256, 1_000)]
    assert logic == pytest.approx([51, 71, 78], abs=8)


def test_multiplexers_are_those_that_amd_reports() -> None:
    """Of all 50,000 of the half that rules were made on: by inputs, at 1 to 64 bits alike."""
    reported = {2: 9, 3: 14, 4: 20, 5: 26, 6: 31, 7: 37, 8: 43, 9: 49, 10: 54, 11: 59, 12: 65}
    assert [multiplexer(k) for k in reported] == pytest.approx([*reported.values()], rel=0.04)


@pytest.fixture(scope="module")
def reports() -> Reports:
    if not FOLDER.is_dir():
        pytest.skip("the reports are not here")
    return Reports.read(FOLDER)


@pytest.mark.parametrize(
    ("kind", "lut", "ff"),
    [
        ("loops, II 1, that compute", 0.045, 0.08),
        ("loops, II 1, that move", 0.095, 0.22),
        ("loops, II > 1", 0.12, 0.13),
        ("made of modules", 0.085, 0.08),
    ],
)
def test_modules_take_what_amd_reports(reports: Reports, kind: str, lut: float, ff: float) -> None:
    """The half that rules were made on: median errors."""
    rows = [row for row in rows_of(reports, held_back=False) if row.kind == kind]
    found = [statistics.median(abs(r.error(of)) for r in rows) for of in ("dsp", "lut", "ff")]
    assert (found[0], found[1] < lut, found[2] < ff) == (0, True, True), found


def test_a_kernel_is_in_one_half_in_all_its_versions(reports: Reports) -> None:
    halves = [{r.design for r in rows_of(reports, held_back=held)} for held in (False, True)]
    kernels = [{d.rpartition("/")[2].removesuffix(".prj").lstrip("k") for d in h} for h in halves]
    assert all(kernels)
    assert not kernels[0] & kernels[1]
