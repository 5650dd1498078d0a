"""How far two runs of one model may lie apart, from its dtypes and its depth."""

import math

import torch

from pipec.graph.copies import PACK
from pipec.graph.ir import Graph, origin, tensors

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
        graph: The whole model; what values are packed into on their way is not arithmetic of it.
        roundings_per_node: How unlike the two engines' kernels are.
    """
    own = [n for n in graph.calls if origin(n).op != PACK]
    dtypes = {t.dtype for n in own for t in tensors(n) if t.dtype.is_floating_point}
    eps = max((torch.finfo(d).eps for d in dtypes), default=0.0)
    return min(LARGEST, eps * roundings_per_node * math.sqrt(len(graph.calls)))


def packing_step(graph: Graph) -> float:
    """How far packing may move a value, relative to its largest magnitude: a step of its dtypes."""
    dtypes = {t.dtype for n in graph.calls if origin(n).op == PACK for t in tensors(n)}
    return max(
        (
            torch.finfo(d).eps if d.is_floating_point else 1 / torch.iinfo(d).max
            for d in dtypes - {torch.bool}
        ),
        default=0.0,
    )
