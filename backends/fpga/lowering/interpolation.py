"""Linear and cubic interpolation: along each axis, a sum of positions picked, times fixed weights.

```text
out[i] = w0[i] x[p[i]] + w1[i] x[p[i] + 1]      (four for cubic)
```

The positions are constant, so that each term is what `pipec.backends.fpga.lowering.gathering` makes
of an ``index_select``: slices and repetitions. Torch itself says the weights: those of an axis are
what the op makes of an identity matrix.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pipec.backends.fpga.lowering.constants import shape_of
from pipec.backends.fpga.training.rewrite import Emit, Found, Rule
from pipec.graph.ir import op_name

aten = torch.ops.aten
_TAPS = {"linear1d": 2, "bilinear2d": 2, "bicubic2d": 4}
"""Positions that a result is made of, along one axis."""
_OPS = {2: aten.upsample_bilinear2d.default, 4: aten.upsample_bicubic2d.default}


def _interpolated(emit: Emit, old: fx.Node, args: Sequence[Any]) -> Found | None:
    """``(x, sizes, align_corners, scales)``, or one scale after the other."""
    x: fx.Node = args[0]
    size, after = shape_of(x), shape_of(old)
    taps = _TAPS[op_name(old).split("upsample_")[1].partition(".")[0]]
    scales = args[3] if op_name(old).endswith(".vec") and len(args) > 3 else args[3:]
    scales = [*(scales or ()), None, None][: len(size) - 2]
    for axis in reversed(range(2, len(size))):  # along rows first: there are fewer of them
        if after[axis] != size[axis] or scales[axis - 2] not in (None, 1.0):
            kernel = _kernel(emit, x, axis, after[axis], taps, args[2], scales[axis - 2])
            x = _weighted(emit, x, axis, kernel, min(taps, size[axis]))
    if x is args[0]:
        x = emit(aten.clone.default, x)
    x.name = old.name
    return x


def _kernel(
    emit: Emit, x: fx.Node, axis: int, size: int, taps: int, corners: object, scale: object
) -> fx.Node:
    """What each position of an axis gives to each position of the result, ``[before][after]``."""
    before, value = shape_of(x)[axis], x.meta["val"]
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    with value.fake_mode:
        lines = emit(aten.eye.default, before, dtype=dtype, device="cpu")
    lines = emit(aten.reshape.default, lines, [before, 1, before, 1])
    found = emit(_OPS[taps], lines, [size, 1], corners, scale, None)
    return emit(aten.reshape.default, found, [before, size])


def _weighted(emit: Emit, x: fx.Node, axis: int, kernel: fx.Node, taps: int) -> fx.Node:
    """The sum of so many neighbours along an axis, from the first that counts."""
    before, size = shape_of(kernel)
    shape = [size if d == axis else 1 for d in range(len(shape_of(x)))]
    counts = emit(aten.to.dtype, emit(aten.ne.Scalar, kernel, 0), torch.int32)
    first = emit(aten.clamp.default, emit(aten.argmax.default, counts, 0), None, before - taps)
    total: fx.Node | None = None
    for k in range(taps):
        places = emit(aten.add.Scalar, first, k)
        weights = emit(aten.gather.default, kernel, 0, emit(aten.unsqueeze.default, places, 0))
        weights = emit(aten.to.dtype, weights, x.meta["val"].dtype)
        part = emit(aten.index_select.default, x, axis, places)
        part = emit(aten.mul.Tensor, part, emit(aten.reshape.default, weights, shape))
        total = part if total is None else emit(aten.add.Tensor, total, part)
    assert total is not None
    return total


INTERPOLATIONS: dict[str, Rule] = {
    f"aten.upsample_{kind}.{form}": _interpolated for kind in _TAPS for form in ("default", "vec")
}
"""Rules by op name."""
