"""Memories in places: items that overflow one kind move to others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipec.backends.fpga.memory import repaired

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
    result = repaired(relative, choice)
    if fits(choice):
        assert (result == choice).all()
    assert fits(result) or not one
