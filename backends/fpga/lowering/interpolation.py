"""Linear and cubic interpolation: along each axis, a sum of positions picked, times fixed weights.

```text
out[i] = w0[i] x[p[i]] + w1[i] x[p[i] + 1]      (four for cubic)
```

The positions are constant, so that each term is what `pipec.backends.fpga.lowering.gathering` makes
of an ``index_select``: slices and repetitions. Torch itself says the weights: those of an axis are
what the op makes of an identity matrix.
"""

from typing import Any

import torch
from torch import Tensor

from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.lowering.rewrite import Emit, Rule
from pipec.graph.ir import op_name

aten = torch.ops.aten
_TAPS = {"linear1d": 2, "bilinear2d": 2, "bicubic2d": 4}
"""Positions that a result is made of, along one axis."""
_OPS = {2: aten.upsample_bilinear2d.default, 4: aten.upsample_bicubic2d.default}


def _interpolated(emit: Emit, x: Tensor, size: object, corners: object, *scales: Any) -> Tensor:
    """``(x, sizes, align_corners, scales)``, or one scale after the other."""
    op, before, after = op_name(emit.old), x, shape_of(emit.old)
    taps = _TAPS[op.split("upsample_")[1].partition(".")[0]]
    given = scales[0] if op.endswith(".vec") and scales else scales
    each = [*(given or ()), None, None]
    for axis in reversed(range(2, x.ndim)):  # along rows first: there are fewer of them
        scale, count = each[axis - 2], x.shape[axis]
        if after[axis] != count or scale not in (None, 1.0):
            kernel = _kernel(emit, x, axis, after[axis], taps, corners, scale)
            x = _weighted(emit, x, axis, kernel, min(taps, count))
    return emit.named(x.clone() if x is before else x)


def _kernel(
    emit: Emit, x: Tensor, axis: int, size: int, taps: int, corners: object, scale: object
) -> Tensor:
    """What each position of an axis gives to each position of the result, ``[before][after]``."""
    before = x.shape[axis]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    lines = aten.eye.default(before, dtype=dtype, device="cpu")
    found = _OPS[taps](emit.reshaped(lines, before, 1, before, 1), [size, 1], corners, scale, None)
    return emit.reshaped(found, before, size)


def _weighted(emit: Emit, x: Tensor, axis: int, kernel: Tensor, taps: int) -> Tensor:
    """The sum of so many neighbours along an axis, from the first that counts."""
    before, size = kernel.shape
    shape = [size if d == axis else 1 for d in range(x.ndim)]
    counts = (kernel != 0).to(torch.int32)
    first = counts.argmax(0).clamp(None, before - taps)
    total: Tensor | None = None
    for k in range(taps):
        places = first + k
        weights = emit.whole(aten.to.dtype, kernel.gather(0, places.unsqueeze(0)), x.dtype)
        part = x.index_select(axis, places) * emit.reshaped(weights, *shape)
        total = part if total is None else total + part
    assert total is not None
    return total


INTERPOLATIONS: dict[str, Rule] = {
    f"aten.upsample_{kind}.{form}": _interpolated for kind in _TAPS for form in ("default", "vec")
}
"""Rules by op name."""
