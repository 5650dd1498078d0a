"""From a stage graph as it is saved to the pure graph that is computed, and back to its transfers.

```text
stage graph                               lower(stage)
  h = recv(channel='s0.s1.h', ...)          receives  [Transfer('s0.s1.h', 'h')]
  y = aten.linear(h, w)                     graph     h ─► y        (no communication)
  send(y, channel='s1.s2.y', ...)           sends     [Transfer('s1.s2.y', 'y')]
  offload(h, slot='s1.host', ...)           offloads  [Transfer('s1.host', 'h')], h is saved
```

In the same way the ``fetch`` nodes at the start of a backward graph become saved inputs.

A value keeps one name everywhere: the node that computes it, the node that receives it, and the
input and output entries of every stage are all called after the node of the whole model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from pipec.graph.comm import FETCH, OFFLOAD, RECV, SEND
from pipec.graph.ir import (
    Ends,
    Graph,
    GraphInput,
    GraphOutput,
    InputKind,
    Origin,
    OutputKind,
    nbytes,
    origin,
    tensor,
)
from pipec.graph.torch_private import OpOverload
from pipec.graph.written import Part, copy_calls

End = tuple[str, fx.Node]
"""A channel, and the value that it moves: its name and type count."""


@dataclass(frozen=True)
class Transfer:
    """One send, receive or copy of a stage: the channel or slot, the value, and its bytes."""

    channel: str
    value: str
    nbytes: int


@dataclass(frozen=True)
class Lowered(Ends):
    """What a stage does in one microbatch: receive or fetch, compute, send or offload.

    Attributes:
        stage: The graph with its transfers.
        calls: What it computes, nodes of that graph.
        inputs: What it reads, received and fetched values included.
        outputs: What it yields, sent and offloaded values included.
    """

    stage: Graph
    calls: tuple[fx.Node, ...]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    receives: tuple[Transfer, ...]
    sends: tuple[Transfer, ...]
    fetches: tuple[Transfer, ...]
    offloads: tuple[Transfer, ...]

    @cached_property
    def nodes(self) -> Mapping[str, fx.Node]:
        """Name to node of the stage's graph."""
        return self.stage.nodes

    @cached_property
    def graph(self) -> Graph:
        """The computation alone, as a graph: the stage's own where nothing is transferred."""
        if not (self.receives or self.sends or self.fetches or self.offloads):
            return self.stage
        return copy_calls(self.stage, self.inputs, self.calls, self.outputs)


_ENDS: dict[object, tuple[str, InputKind | None, OutputKind | None]] = {
    RECV: ("channel", InputKind.VALUE, None),
    SEND: ("channel", None, OutputKind.VALUE),
    FETCH: ("slot", InputKind.SAVED, None),
    OFFLOAD: ("slot", None, OutputKind.SAVED),
}
"""How a kind of communication node looks once it is peeled off: what names its end, input, output.
"""


def lower(stage: Graph) -> Lowered:
    """Peel the communication off a stage graph.

    Args:
        stage: A graph whose ``recv`` and ``fetch`` nodes come first and whose ``send`` and
            ``offload`` nodes come last.

    Returns:
        The transfers in graph order, and what is computed, with inputs and outputs of kind
        ``VALUE`` and ``SAVED`` in their places. A value that is sent twice is one output.
    """
    moved: dict[object, list[Transfer]] = {op: [] for op in _ENDS}
    new_inputs, calls = list[GraphInput](), list[fx.Node]()
    leaves = dict[tuple[OutputKind, str], GraphOutput]()
    for n in stage.calls:
        if n.target not in _ENDS:
            calls.append(n)
            continue
        word, read, yielded = _ENDS[n.target]
        value = n if read else n.all_input_nodes[0]
        moved[n.target].append(Transfer(str(n.kwargs[word]), value.name, nbytes(value)))
        if read:
            new_inputs.append(GraphInput(n.name, read, n.name))
        if yielded:
            leaves[yielded, value.name] = GraphOutput(value.name, yielded, value.name)
    inputs, outputs = (*stage.inputs, *new_inputs), (*stage.outputs, *leaves.values())
    transfers = (tuple(moved[op]) for op in (RECV, SEND, FETCH, OFFLOAD))
    return Lowered(stage, tuple(calls), inputs, outputs, *transfers)


def with_transfers(compute: Part, receives: Sequence[End], sends: Sequence[End]) -> Part:
    """Put communication nodes into a part of a model: receives first, sends last."""
    brought, sent = {node.name for _, node in receives}, {node.name for _, node in sends}
    first = [transfer(RECV, node, channel) for channel, node in receives]
    last = [transfer(SEND, node, channel) for channel, node in sends]
    return Part(
        compute.whole,
        [i for i in compute.inputs if i.kind is not InputKind.VALUE or i.name not in brought],
        [*first, *compute.calls, *last],
        [o for o in compute.outputs if o.kind is not OutputKind.VALUE or o.name not in sent],
    )


def transfer(op: OpOverload, value: fx.Node, end: str) -> fx.Node:
    """A communication node of a value, to be copied into a graph that has the value."""
    t, graph, word = tensor(value), fx.Graph(), _ENDS[op][0]
    if op in (SEND, OFFLOAD):
        sends = op is SEND
        name = f"send_{end.replace('.', '_')}" if sends else f"offload_{value.name}"
        args: tuple[fx.Node, ...] = (graph.placeholder(value.name),)
        kwargs: dict[str, Any] = {word: end, "nbytes": nbytes(value)}
        val, source = None, Origin(end, "send" if sends else "offload")
    else:
        strides = {"stride": list(t.stride())} if op is FETCH else {}
        name, args, kwargs = value.name, (), {word: end, "size": list(t.shape), **strides}
        kwargs["dtype"] = t.dtype
        val, source = t.contiguous() if op is RECV else t, origin(value)
    node = graph.create_node("call_function", op, args, kwargs, name)
    node.meta.update(val=val, origin=source)
    return node
