"""Memories in places: items that overflow one kind move to others. Adapters as AMD reports them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.memory import Load, beat_lanes
from pipec.backends.fpga.engines.mover import Accumulate, Fetch, Store
from pipec.backends.fpga.engines.parts import Memory, Weight
from pipec.backends.fpga.memory import adapter, logic, repair

shares = st.lists(
    st.tuples(*[st.floats(0.01, 0.6)] * 3, st.integers(0, 2)), min_size=1, max_size=12
)


@given(shares)
def test_items_move_until_no_kind_overflows(found: list[tuple[float, float, float, int]]) -> None:
    relative = np.array([item[:3] for item in found])
    choice = np.array([item[3] for item in found])
    each = np.arange(len(found))

    def fits(kinds: np.ndarray) -> bool:
        return bool(np.bincount(kinds, relative[each, kinds], 3).max() <= 1.0)

    def after(item: int, kind: int) -> np.ndarray:
        moved = choice.copy()
        moved[item] = kind
        return moved

    one = any(fits(after(item, kind)) for item in range(len(found)) for kind in range(3))
    result = repair(relative, choice)
    if fits(choice):
        assert (result == choice).all()
    assert fits(result) or not one


@pytest.mark.parametrize(
    ("bits", "reads", "lut", "ff", "off"),
    [
        # Vitis HLS 2025.1, estimates of synthesis (github.com/asandeep1/FPGA_ECE8893, 2026, labs 0
        # to 3, xczu3eg): the constants come from the reads
        (32, True, 637, 671, 0.01), (1024, True, 2720, 2652, 0.01),
        (32, False, 666, 611, 0.15), (1024, False, 2749, 2592, 0.15),
        # Vivado 2025.1 on labs 0 to 2, after synthesis
        (32, True, 509, 756, 0.3), (32, True, 661, 865, 0.3),
        (32, False, 750, 1029, 0.45), (32, False, 883, 1138, 0.45),
    ],
)  # fmt: skip
def test_memory_adapters_take_what_amd_reports(
    bits: int, reads: bool, lut: int, ff: int, off: float
) -> None:
    found = adapter(bits, reads=reads)
    assert found.lut == pytest.approx(lut, rel=off)
    assert found.ff == pytest.approx(ff, rel=off)


def test_what_is_read_waits_in_block_rams_of_the_adapter() -> None:
    """512 words, as Vivado has them: half a block RAM for 256 words of 32 bits, one for 1,024."""
    assert [adapter(32, reads=reads).bram36 for reads in (True, False)] == [0.5, 0.0]
    assert [adapter(bits, reads=True).bram36 for bits in (33, 64, 512)] == [1.0, 1.0, 7.5]


def test_engines_have_an_adapter_for_every_way_to_memory() -> None:
    """Eight lanes of int8 are read in beats of 64 bits, not of 512; a sum is read and written."""
    load = Load(10, 8, 1, beat_lanes(8, "int8"))
    movers = [Store(10, 8), Fetch(10, 8), Accumulate(10, 8)]
    found = [logic(Engine("e", nest, (), (), depth=3, dtype="int8")) for nest in (load, *movers)]
    assert [f.bram36 for f in found] == [1.0, 0.0, 1.0, 4.0]
    assert found[3].lut - found[1].lut > adapter(256, reads=True).lut


def test_a_table_on_the_chip_has_a_loop_that_fills_it() -> None:
    def engine(memory: Memory) -> Engine:
        table = Weight("weight", (10, 8), "int8", memory, (), lambda: np.zeros((10, 8)))
        load = Load(10, 8, 1, beat_lanes(8, "int8"))
        return Engine("e", load, (), (), depth=3, dtype="int8", weights=(table,))

    filled, streamed = (logic(engine(memory)) for memory in (Memory.BRAM, Memory.DDR))
    assert filled.lut - streamed.lut > 50
