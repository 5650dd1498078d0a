"""Losses that are nodes of the file."""

from torch import Tensor
from torch.nn import functional as fn

from pipec.frontends.onnx.context import Context, Result, lowering

_NO_CLASS = -100
"""What torch ignores by default: no valid target."""


@lowering("NegativeLogLikelihoodLoss")
def nll_loss(ctx: Context, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Result:
    """Minus the log probability of the target's class, averaged or summed by class weight."""
    ignored, how = ctx.attr("ignore_index", _NO_CLASS), ctx.attr("reduction", "mean")
    return fn.nll_loss(x, target.long(), weight, ignore_index=ignored, reduction=how)


@lowering("SoftmaxCrossEntropyLoss")
def cross_entropy(ctx: Context, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Result:
    """Softmax and negative log likelihood in one; the log probabilities too if asked."""
    ignored, how = ctx.attr("ignore_index", _NO_CLASS), ctx.attr("reduction", "mean")
    if not ctx.wants(1):
        return fn.cross_entropy(x, target.long(), weight, ignore_index=ignored, reduction=how)
    logs = fn.log_softmax(x, 1)
    return fn.nll_loss(logs, target.long(), weight, ignore_index=ignored, reduction=how), logs
