"""Dropout on a board: the host draws masks, F reads them as inputs and saves them for B.

``y = x * m`` and ``dx = dy * m`` with a mask m of zeros, where x is dropped, and 1 / (1 - p).
The mask is the one that torch draws for the op's seed (`pipec.runtime.draws`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pipec.autodiff.recompute import is_random
from pipec.backends.fpga.lowering.rewrite import Emit, Rule
from pipec.graph.ir import Graph, GraphInput, InputKind, op_name, tensor
from pipec.runtime.draws import Draws, Stream


@dataclass(frozen=True)
class Mask:
    """A mask that the host sends to F for every microbatch.

    Attributes:
        name: Of F's input.
        draw: Number of the random op in the model.
        probability: That an element is dropped.
        shape: Of the mask, float32.
    """

    name: str
    draw: int
    probability: float
    shape: tuple[int, ...]

    def drawn(self, stream: Stream) -> torch.Tensor:
        """The mask that torch draws where the op's seed is ``stream(draw)``."""
        ones = torch.ones(self.shape)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream(self.draw))
            return torch.native_dropout(ones, self.probability, True)[0]


def masks_of(forward: Graph, draws: Draws | None) -> tuple[Mask, ...]:
    """The masks of a stage.

    Args:
        forward: Its F.
        draws: Numbers of its random ops in the model; from 0 on if absent.
    """
    random = [n for n in forward.calls if is_random(n)]
    numbers = range(len(random)) if draws is None else draws
    return tuple(
        _mask(n, k)
        for k, n in zip(numbers, random, strict=True)
        if k is not None and _is_dropout(n)
    )


def _is_dropout(node: fx.Node) -> bool:
    return op_name(node) == "aten.native_dropout.default" and node.args[2] is True


def _mask(node: fx.Node, draw: int) -> Mask:
    x, probability = node.args[:2]
    assert isinstance(x, fx.Node)
    assert isinstance(probability, float | int)
    return Mask(_name(node), draw, float(probability), tuple(tensor(x).shape))


def _name(node: fx.Node) -> str:
    return f"mask_{node.name}"


def dropout(emit: Emit, x: Tensor, *_: Any) -> Any:
    """X times an input."""
    if not _is_dropout(emit.old):
        return NotImplemented
    mask = emit.input(_name(emit.old), x)
    return (x * mask, mask)


def dropout_backward(_: Emit, dy: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The saved mask holds the scale already."""
    return dy * mask


RULES: dict[str, Rule] = {
    "aten.native_dropout.default": dropout,
    "aten.native_dropout_backward.default": dropout_backward,
}


def with_masks(forward: Graph, masks: Sequence[Mask]) -> Graph:
    """F with its masks among its inputs."""
    added = (GraphInput(m.name, InputKind.INPUT, m.name) for m in masks)
    return forward.replace(inputs=(*forward.inputs, *added))


def floating_masks(before: Graph, after: Graph) -> Graph:
    """B, rewritten, with saved masks as numbers, as F sends them; before they are truth values."""
    old, new = before.nodes, after.nodes
    for i in before.inputs_of(InputKind.SAVED):
        users = old[i.node].users
        if users and all(op_name(u) in RULES for u in users) and i.node in new:
            value = new[i.node].meta["val"]
            new[i.node].meta["val"] = torch.empty_like(value, dtype=torch.float32)
    return after
