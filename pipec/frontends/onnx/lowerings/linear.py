"""Matrix products."""

import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.unsigned import narrow, widen


@lowering("MatMul")
def matmul(_: Context, a: Tensor, b: Tensor) -> Result:
    """A product of stacks of matrices."""
    return narrow(torch.matmul(widen(a), widen(b)), a)


@lowering("Gemm")
def gemm(ctx: Context, a: Tensor, b: Tensor, c: Tensor | None = None) -> Result:
    """``alpha * A' B' + beta * C``; a linear layer where it is one."""
    alpha, beta = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0)
    x = a.t() if ctx.attr("transA", 0) else a
    vector = c is None or (
        c.dim() == 1 and c.shape[0] == b.shape[0 if ctx.attr("transB", 0) else 1]
    )
    if ctx.attr("transB", 0):
        if alpha == 1 and (beta == 1 or c is None) and vector and a.is_floating_point():
            return fn.linear(x, b, c)
        b = b.t()
    wide = widen(a).dtype
    y = torch.matmul(x.to(wide), b.to(wide))
    y = _scale(y, alpha)
    if c is not None and beta != 0:
        y = y + _scale(c.to(wide), beta)
    return narrow(y, a)


def _scale(x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    return x * factor if x.is_floating_point() else (x * factor).to(x.dtype)


@lowering("Einsum")
def einsum(ctx: Context, *operands: Tensor) -> Result:
    """A sum of products in index notation."""
    result: Tensor = torch.einsum(ctx.attr("equation"), *operands)
    return result


@lowering("Det")
def det(_: Context, x: Tensor) -> Result:
    """Determinants of a stack of matrices."""
    result: Tensor = torch.linalg.det(x)
    return result
