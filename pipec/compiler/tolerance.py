"""How far two runs of one model may lie apart, from its dtypes and its depth."""

import math

import torch

from pipec.graph.ir import Graph, tensors

LARGEST = 0.1
"""No tolerance is larger than this, however coarse the dtype."""

SAME_KERNELS, OTHER_KERNELS = 2, 128
"""Roundings per node between runs of the same kernels, and of another engine's: sums of hundreds
of products in another order, fused operations, other approximations of transcendental functions."""

REWRITTEN = "rewritten"
"""Option of a plan whose ops are not those of the model, with the name of the last such pass."""


def rounding_tolerance(graph: Graph, roundings_per_node: float) -> float:
    """Error relative to a value's largest magnitude that reordered arithmetic explains.

    Roundings of independent sign grow as a random walk (Higham, Accuracy and Stability of
    Numerical Algorithms, section 2.8): ``eps x roundings per node x sqrt(nodes)``.

    Args:
        graph: The whole model.
        roundings_per_node: How unlike the two engines' kernels are.
    """
    dtypes = {t.dtype for n in graph.calls for t in tensors(n) if t.dtype.is_floating_point}
    eps = max((torch.finfo(d).eps for d in dtypes), default=0.0)
    return min(LARGEST, eps * roundings_per_node * math.sqrt(len(graph.calls)))
