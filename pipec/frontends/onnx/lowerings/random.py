"""Random numbers: real nodes of the graph, never folded."""

import torch
from torch import Tensor

from pipec.frontends.onnx.context import Context, Result, lowering
from pipec.frontends.onnx.values import torch_dtype


@lowering("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(ctx: Context, x: Tensor | None = None) -> Result:
    """Normal or uniform numbers of a given shape, or of another tensor's."""
    shape = list(ctx.attr("shape") if x is None else x.shape)
    like = torch.float32 if x is None else x.dtype
    dtype = torch_dtype(ctx.attr("dtype")) if ctx.has("dtype") else like
    if "Normal" in ctx.node.op_type:
        start: float = ctx.attr("mean", 0.0)
        scale: float = ctx.attr("scale", 1.0)
        return (torch.randn(shape) * scale + start).to(dtype)
    start = ctx.attr("low", 0.0)
    scale = ctx.attr("high", 1.0) - start
    return (torch.rand(shape) * scale + start).to(dtype)


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
