"""What a graph is: a flat functional FX graph, and a typed list of what goes in and out.

```text
 parameters ┐
 buffers    │ placeholders, one        call_function nodes          one tuple:
 constants  ├─ GraphInput each   ──►   over ATen (prims, pipec, ──► one GraphOutput each
 inputs     │                          declared namespaces)         (outputs, loss, buffer
 values     ┘ (cross a cut)                                          updates, values)
```

A whole model and one pipeline stage are both a `Graph`; a stage has inputs and outputs of kind
``VALUE`` where it was cut. The forward and backward graphs of a stage are `Graph`s too: forward
yields ``SAVED`` values, backward reads them and the ``GRADIENT`` of what forward yielded.
Nothing is an attribute: a graph is a function of its placeholders.
Every node carries ``meta["val"]`` (fake tensors: shape, dtype, stride) and every call carries
``meta["origin"]`` (the layer or ONNX node that it came from).
"""

import dataclasses
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch import fx

from pipec.errors import GraphError

if TYPE_CHECKING:
    import networkx as nx


class InputKind(StrEnum):
    """What a placeholder stands for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    STATE = "state"  # a buffer that the model changes and that no state dict has
    CONSTANT = "constant"
    INPUT = "input"
    VALUE = "value"
    SAVED = "saved"
    GRADIENT = "gradient"

    @property
    def is_weight(self) -> bool:
        """Whether the tensor belongs to the model (and not to one run of it)."""
        return self is InputKind.CONSTANT or self.changes

    @property
    def changes(self) -> bool:
        """Whether it is a weight that training may change."""
        return self in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.STATE)


class OutputKind(StrEnum):
    """What an element of the output tuple stands for."""

    OUTPUT = "output"
    LOSS = "loss"
    BUFFER_UPDATE = "buffer_update"
    VALUE = "value"
    SAVED = "saved"
    GRADIENT = "gradient"
    WEIGHT_GRADIENT = "weight_gradient"


@dataclass(frozen=True)
class GraphInput:
    """One placeholder.

    Attributes:
        node: Name of the placeholder node.
        kind: What it stands for.
        name: Fully qualified name of the weight, name of the user's input, or, for a value that
            crosses a cut, name of the node that produces it in the whole model. A gradient is
            called after the value or loss that it belongs to.
    """

    node: str
    kind: InputKind
    name: str


@dataclass(frozen=True)
class GraphOutput:
    """One element of the output tuple.

    Attributes:
        node: Name of the node that computes it (may be a placeholder).
        kind: What it stands for.
        name: Name of the user's output, of the updated buffer, or of the value that crosses a cut.
            A gradient is called after the value or parameter that it belongs to.
    """

    node: str
    kind: OutputKind
    name: str


@dataclass(frozen=True)
class Origin:
    """Where a node came from, in the user's words.

    Attributes:
        name: Path of the module (``layer1.0.conv1``) or name of the ONNX node.
        op: Class of the module or ONNX op type; the ATen op where neither is known.
        index: Index of the node in the ONNX file, else None. Nodes with one index stay together.
        location: ``model.py:88`` where known.
    """

    name: str
    op: str
    index: int | None = None
    location: str | None = None

    def __str__(self) -> str:
        place = f" ({self.location})" if self.location else ""
        return f"{self.op} {self.name or '(top level)'}{place}"


class Ends:
    """What reads inputs and yields outputs of several kinds."""

    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]

    def inputs_of(self, *kinds: InputKind) -> list[GraphInput]:
        """The inputs of the given kinds, in placeholder order."""
        return [i for i in self.inputs if i.kind in kinds]

    def outputs_of(self, *kinds: OutputKind) -> list[GraphOutput]:
        """The outputs of the given kinds, in tuple order."""
        return [o for o in self.outputs if o.kind in kinds]


MEMORY = "memory"
"""The kind of a source that is a module given through the API."""


GROWTH = "growth"
"""An option of a source: what its loss is of one row, two and three rows, where it adds up."""


@dataclass(frozen=True)
class Source:
    """The model that a graph was made of, so that it can be read again.

    Attributes:
        kind: ``factory``, ``pt2``, ``onnx``, or ``memory`` (a module given through the API).
        location: The path or ``path/file.py:factory`` as given; a class name for ``memory``.
        sha256: Digest of the file, or of the weights for a module.
        options: Other options of the front end: seed, bound shapes and values, training mode.
    """

    kind: str
    location: str
    sha256: str = ""
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph(Ends):
    """One flat, functional graph; see the module's docstring for what it may contain.

    Attributes:
        module: The FX graph; treat as owned by this object.
        inputs: One entry per placeholder, in order.
        outputs: One entry per element of the output tuple, in order.
        weights: Name to tensor for every weight input. Fake or meta tensors where the model was
            built without data.
        tied: Canonical weight name to its other names in the model's state dict.
        source: What the graph was made of.
        namespaces: Op namespaces beyond ``aten``, ``prims`` and ``pipec`` that the graph uses.
    """

    module: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    weights: Mapping[str, torch.Tensor]
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: Source = field(default_factory=lambda: Source(MEMORY, ""))
    namespaces: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return (
            f"Graph({self.source.location or 'part of a model'}: {len(self.calls)} nodes, "
            f"{len(self.weights)} weights, {len(self.inputs)} inputs, {len(self.outputs)} outputs)"
        )

    @property
    def nodes(self) -> dict[str, fx.Node]:
        """Name to node, in topological order (placeholders first, the output node included)."""
        return {n.name: n for n in self.module.graph.nodes}

    def tensors_of(self, *kinds: InputKind) -> dict[str, torch.Tensor]:
        """Name of each input of the given kinds to the fake tensor that stands for it."""
        nodes = self.nodes
        return {i.name: tensor(nodes[i.node]) for i in self.inputs_of(*kinds)}

    @property
    def calls(self) -> list[fx.Node]:
        """The ``call_function`` nodes in topological order."""
        return [n for n in self.module.graph.nodes if n.op == "call_function"]

    @property
    def weight_bytes(self) -> int:
        """Bytes of one version of all weights that it reads."""
        nodes = self.nodes
        return sum(nbytes(nodes[i.node]) for i in self.inputs if i.kind.is_weight)

    def node(self, name: str) -> fx.Node:
        """The node called ``name``.

        Raises:
            GraphError: There is none.
        """
        found: fx.Node
        for found in self.module.graph.nodes:
            if found.name == name:
                return found
        raise GraphError("no such node", got=name, where=type(self.module).__name__)

    @property
    def rows(self) -> int:
        """Samples that a run takes: the first dimension that most inputs share; 0 if none has one.

        Of several that of the inputs with most dimensions, then the largest: positions [8] or
        [1, 8] beside ids [4, 8] are no batch.
        """
        shapes = [t.shape for t in self.tensors_of(InputKind.INPUT).values()]
        first = [(int(s[0]), len(s)) for s in shapes if len(s)]
        counted = Counter(rows for rows, _ in first)
        return max(first, key=lambda f: (counted[f[0]], f[1], f[0]), default=(0, 0))[0]

    def networkx(self) -> "nx.DiGraph[str]":
        """Inputs and calls as a directed graph, for the algorithms and formats of networkx.

        A node has an ``op``, its ``origin`` in the user's words, and the ``bytes`` that it yields;
        an edge leads to who reads it. Weights are left out. It is a copy: changes do not come back.
        """
        import networkx as nx

        view: nx.DiGraph[str] = nx.DiGraph()
        weights = {i.node for i in self.inputs if i.kind.is_weight}
        for n in self.module.graph.nodes:
            if n.op == "output" or n.name in weights:
                continue
            view.add_node(n.name, op=op_name(n), origin=origin(n).name, bytes=nbytes(n))
            view.add_edges_from((v.name, n.name) for v in n.all_input_nodes if v.name in view)
        return view

    def replace(self, **changes: object) -> "Graph":
        """A copy with some fields changed (`dataclasses.replace`)."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def tensors(node: fx.Node) -> list[torch.Tensor]:
    """The fake tensors that ``node`` yields: one, several (a tuple result), or none."""
    return list(flat_tensors(node.meta.get("val")))


def flat_tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a value: one, those in lists and tuples, or none."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat_tensors(item)


def tensor(node: fx.Node) -> torch.Tensor:
    """The one fake tensor that ``node`` yields.

    Raises:
        GraphError: It yields none, or several.
    """
    found = tensors(node)
    if len(found) != 1 or not isinstance(node.meta.get("val"), torch.Tensor):
        raise GraphError("the node does not yield one tensor", where=node.name, got=len(found))
    return found[0]


def nbytes(node: fx.Node) -> int:
    """Bytes of all tensors that ``node`` yields, dense."""
    return sum(tensor_nbytes(t) for t in tensors(node))


def tensor_nbytes(t: torch.Tensor) -> int:
    """Bytes of one tensor, dense: elements times item size."""
    return t.numel() * t.element_size()


def origin(node: fx.Node) -> Origin:
    """The origin of ``node``; its op and name where none was recorded."""
    found = node.meta.get("origin")
    return found if isinstance(found, Origin) else Origin(node.name, op_name(node))


def op_name(node: fx.Node) -> str:
    """The op of a node as people write it: ``aten.mm.default``, ``getitem``, ``placeholder``."""
    if node.op != "call_function":
        return node.op
    return "getitem" if node.target is operator.getitem else str(node.target)
