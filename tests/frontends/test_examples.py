"""Examples of other shapes than those that a model came with."""

import pytest
import torch

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions, resize_inputs


@pytest.mark.parametrize("like", [torch.ones(4, 2), torch.ones(4, 2, dtype=torch.int64)])
@pytest.mark.parametrize("rows", [10**17, 2**62])
def test_a_shape_beyond_any_memory_is_refused(like: torch.Tensor, rows: int) -> None:
    with pytest.raises(FrontendError, match="an example of this shape cannot be made"):
        resize_inputs({"x": like}, LoadOptions(shapes={"x": (rows, 2)}))


def test_integers_stay_in_their_range() -> None:
    found = resize_inputs({"x": torch.tensor([0, 6])}, LoadOptions(shapes={"x": (1000,)}))["x"]
    assert (int(found.min()), int(found.max()), found.dtype) == (0, 6, torch.int64)
