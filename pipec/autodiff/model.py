"""What differentiation makes of a stage: four graphs and the values saved between them.

```text
        values, inputs ─► F ─► values, loss, outputs, buffer updates
                          │ saved
        gradients of ◄─── B ◄─── gradients of the values that F yielded
        the values F read │
                          ▼
                  weight gradients           B = I then W:  I yields what the stage before waits
                                             for, W the weight gradients, whenever there is time
```

Every graph takes the parameters that it reads as arguments: which version of a parameter B uses is
decided by whoever calls it.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from pipec.autodiff.recompute import list_holders
from pipec.graph.ir import (
    Graph,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    tensor,
    tensor_nbytes,
)
from pipec.graph.lower import lower
from pipec.graph.structure import structural_key
from pipec.graph.tensor_type import dtype_text

_End = TypeVar("_End", GraphInput, GraphOutput)
KINDS = ("F", "B", "I", "W")
"""The training graphs of a stage."""


@dataclass(frozen=True)
class SavedValue:
    """One value that F keeps for B (or I for W).

    Attributes:
        name: Name of the node that computes it, the same in all graphs of the stage.
        shape: Sizes of its dimensions.
        dtype: As torch writes it without ``torch.``.
        stride: In elements. Backward kernels rely on it: whoever moves the value must restore it.
        nbytes: Dense bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Training:
    """The training graphs of one stage.

    Attributes:
        F: Forward: yields what the stage's own graph yields, then the saved values.
        B: Backward: reads saved values, weights and gradients; yields the gradients of the values
            that the stage received and of its parameters.
        I: The part of B that the gradients of received values need; it also yields what W reads.
        W: The rest of B.
    """

    F: Graph
    B: Graph
    I: Graph  # noqa: E741
    W: Graph

    @property
    def key(self) -> str:
        """Digest of the four graphs, names aside, computed anew (`structural_key`)."""
        keys = " ".join(structural_key(getattr(self, kind)) for kind in KINDS)
        return hashlib.sha256(keys.encode()).hexdigest()[:12]

    @property
    def graphs(self) -> dict[str, Graph]:
        """The four graphs by their kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @cached_property
    def saved(self) -> tuple[SavedValue, ...]:
        """What F keeps on the device for B, parameters and constants not counted."""
        nodes = self.F.nodes
        values = [(o.name, tensor(nodes[o.node])) for o in self.F.outputs_of(OutputKind.SAVED)]
        return tuple(
            SavedValue(n, tuple(t.shape), dtype_text(t.dtype), tuple(t.stride()), tensor_nbytes(t))
            for n, t in values
        )

    @cached_property
    def holders(self) -> dict[str, tuple[str, ...]]:
        """Output of the stage to the nodes of F in whose memory it lies (`list_holders`)."""
        nodes, ends = self.F.nodes, self.F.outputs
        return {o.name: list_holders(nodes[o.node]) for o in ends if o.kind is not OutputKind.SAVED}

    @property
    def saved_bytes(self) -> int:
        """Bytes that one microbatch in flight keeps on the stage."""
        return sum(v.nbytes for v in self.saved)

    @property
    def trained(self) -> tuple[str, ...]:
        """Parameters that get a gradient, in the order of B's outputs."""
        return tuple(o.name for o in self.B.outputs_of(OutputKind.WEIGHT_GRADIENT))

    def lower(self) -> "Training":
        """The pure graphs: what waits in host memory is saved like the rest."""
        low = {kind: lower(graph) for kind, graph in self.graphs.items()}
        if not low["F"].offloads and not low["B"].fetches:
            return self
        return Training(**{kind: part.graph for kind, part in low.items()})

    def gradients_in(self) -> tuple[str, ...]:
        """Values (and the loss) whose gradient B wants."""
        return tuple(i.name for i in self.B.inputs_of(InputKind.GRADIENT))

    def gradients_out(self) -> tuple[str, ...]:
        """Received values whose gradient B yields."""
        return tuple(o.name for o in self.B.outputs_of(OutputKind.GRADIENT))


def share_training(training: Training, original: Graph, twin: Graph) -> Training:
    """The training graphs of ``twin``, a stage of the same structure as ``original``.

    Returns:
        Graphs that share their modules with ``training`` and carry the names of ``twin``.
    """
    entering, leaving = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
    for own, other in zip(original.inputs, twin.inputs, strict=True):
        entering[own.kind, own.name] = other.name
        if own.kind in _GRADIENT_OF:
            leaving[_GRADIENT_OF[own.kind], own.name] = other.name
    for o, other_o in zip(original.outputs, twin.outputs, strict=True):
        leaving[o.kind, o.name] = other_o.name
        if o.kind in (OutputKind.VALUE, OutputKind.LOSS):
            entering[InputKind.GRADIENT, o.name] = other_o.name

    def rename(graph: Graph) -> Graph:
        """A graph of the twin under the names of this stage, with the weights that it reads."""
        inputs = tuple(_under(i, entering) for i in graph.inputs)
        outputs = tuple(_under(o, leaving) for o in graph.outputs)
        read = {i.name for i in inputs if i.kind.is_weight}
        return graph.replace(
            inputs=inputs,
            outputs=outputs,
            weights={n: w for n, w in twin.weights.items() if n in read},
            tied={n: t for n, t in twin.tied.items() if n in read},
            source=twin.source,
        )

    return Training(**{kind: rename(graph) for kind, graph in training.graphs.items()})


def _under(end: _End, names: Mapping[tuple[str, str], str]) -> _End:
    """An end of a graph under another stage's name; saved values keep theirs."""
    if end.kind == OutputKind.SAVED:
        return end
    return dataclasses.replace(end, name=names[end.kind, end.name])


_GRADIENT_OF = {
    InputKind.VALUE: OutputKind.GRADIENT,
    InputKind.PARAMETER: OutputKind.WEIGHT_GRADIENT,
}
"""What a stage reads to what its backward yields under that name."""
