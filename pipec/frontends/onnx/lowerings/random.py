"""Random numbers: real nodes of the graph, never folded."""

import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.values import torch_dtype


def _draw(ctx: Context, shape: list[int], dtype: torch.dtype) -> Tensor:
    if "Normal" in ctx.node.op_type:
        mean: float = ctx.attr("mean", 0.0)
        scale: float = ctx.attr("scale", 1.0)
        return (torch.randn(shape) * scale + mean).to(dtype)
    low: float = ctx.attr("low", 0.0)
    high: float = ctx.attr("high", 1.0)
    return (torch.rand(shape) * (high - low) + low).to(dtype)


@lowering("RandomNormal", "RandomUniform")
def random(ctx: Context) -> Result:
    """Normal or uniform numbers of a given shape."""
    return _draw(ctx, list(ctx.attr("shape")), torch_dtype(ctx.attr("dtype", 1)))


@lowering("RandomNormalLike", "RandomUniformLike")
def random_like(ctx: Context, x: Tensor) -> Result:
    """Normal or uniform numbers of another tensor's shape."""
    dtype = torch_dtype(ctx.attr("dtype")) if ctx.has("dtype") else x.dtype
    return _draw(ctx, list(x.shape), dtype)


@lowering("Bernoulli")
def bernoulli(ctx: Context, p: Tensor) -> Result:
    """One with a probability per element, else zero."""
    dtype = torch_dtype(ctx.attr("dtype")) if ctx.has("dtype") else p.dtype
    return torch.bernoulli(p.to(torch.float32)).to(dtype)


@lowering("Multinomial")
def multinomial(ctx: Context, logits: Tensor) -> Result:
    """Classes drawn by their unnormalised log probabilities."""
    count, dtype = ctx.attr("sample_size", 1), torch_dtype(ctx.attr("dtype", 6))
    return torch.multinomial(torch.softmax(logits, -1), count, replacement=True).to(dtype)
