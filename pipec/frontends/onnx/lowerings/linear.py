"""Matrix products, and attention (opset 23 on) where it is plain; else the body in its schema."""

import torch
from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.lowerings.casting import narrow, widen
from pipec.frontends.onnx.refusals import Refused


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


def _heads(x: Tensor, count: int) -> Tensor:
    """[batch, time, heads * size] as [batch, heads, time, size]."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _check(ctx: Context, past: Tensor | None, lengths: Tensor | None) -> None:
    if ctx.attr("softcap", 0.0) or ctx.wants(3) or lengths is not None:
        raise Refused("softcap, key lengths or the scores as an output")
    if ctx.attr("softmax_precision", 0):
        raise Refused("a precision of its own for the softmax")
    if ctx.attr("left_window_size", -1) != -1 or ctx.attr("right_window_size", -1) != -1:
        raise Refused("a sliding window")
    if ctx.attr("is_causal", 0) and past is not None:
        raise Refused("causal attention to past keys")


@lowering("Attention")
def attention(
    ctx: Context,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Result:
    """Scaled dot-product attention with grouped queries, a mask, and a cache."""
    _check(ctx, past_k, lengths)
    flat = q.dim() == 3
    if flat:
        groups = ctx.attr("kv_num_heads")
        q, k, v = _heads(q, ctx.attr("q_num_heads")), _heads(k, groups), _heads(v, groups)
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    causal = bool(ctx.attr("is_causal", 0))
    if causal and mask is not None:
        raise Refused("a mask on top of causal attention")
    if mask is not None and mask.shape[-1] != k.shape[2]:
        raise Refused("a mask that is shorter than the keys")
    y = fn.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=ctx.attr("scale"), enable_gqa=q.shape[1] != k.shape[1]
    )
    if flat:
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return y, k, v
