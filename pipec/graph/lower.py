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

from dataclasses import dataclass
from functools import cached_property

from torch import fx

from pipec.graph.comm import FETCH, OFFLOAD, RECV, SEND
from pipec.graph.ir import (
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
from pipec.graph.torch_private import graph_module
from pipec.graph.written import written


@dataclass(frozen=True)
class Transfer:
    """One send, receive or copy of a stage: the channel or slot, the value, and its bytes."""

    channel: str
    value: str
    nbytes: int


@dataclass(frozen=True)
class Lowered:
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
    def graph(self) -> Graph:
        """The computation alone, as a graph: the stage's own where nothing is transferred."""
        if not (self.receives or self.sends or self.fetches or self.offloads):
            return self.stage
        return written(self.stage, self.inputs, self.calls, self.outputs)


@dataclass(frozen=True)
class _End:
    """How a kind of communication node looks once it is peeled off."""

    keyword: str
    input: InputKind | None = None
    output: OutputKind | None = None


_ENDS: dict[object, _End] = {
    RECV: _End("channel", input=InputKind.VALUE),
    SEND: _End("channel", output=OutputKind.VALUE),
    FETCH: _End("slot", input=InputKind.SAVED),
    OFFLOAD: _End("slot", output=OutputKind.SAVED),
}


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
        end = _ENDS.get(n.target)
        if not end:
            calls.append(n)
            continue
        value = n if end.input else n.all_input_nodes[0]
        moved[n.target].append(Transfer(str(n.kwargs[end.keyword]), value.name, nbytes(value)))
        if end.input:
            new_inputs.append(GraphInput(n.name, end.input, n.name))
        if end.output:
            leaves[end.output, value.name] = GraphOutput(value.name, end.output, value.name)
    inputs, outputs = (*stage.inputs, *new_inputs), (*stage.outputs, *leaves.values())
    transfers = (tuple(moved[op]) for op in (RECV, SEND, FETCH, OFFLOAD))
    return Lowered(stage, tuple(calls), inputs, outputs, *transfers)


def with_transfers(
    compute: Graph, receives: dict[str, str], sends: list[tuple[str, str, fx.Node]]
) -> Graph:
    """Put communication nodes into a pure stage graph: receives first, sends last.

    Args:
        compute: A graph with inputs and outputs of kind ``VALUE``.
        receives: Value to channel, for every ``VALUE`` input.
        sends: (value, channel, node of the whole model) of everything that leaves; a value that
            the stage neither computes nor reads is received and passed on.

    Returns:
        The stage graph without ``VALUE`` inputs and outputs.
    """
    copy, env = fx.Graph(), dict[str, fx.Node]()
    old = compute.nodes
    values = {i.node for i in compute.inputs_of(InputKind.VALUE)}
    for i in compute.inputs:
        if i.node not in values:
            env[i.node] = copy.placeholder(i.node)
            env[i.node].meta = dict(old[i.node].meta)
    passed = {value: node for value, _, node in sends}
    for value, channel in receives.items():
        env[value] = _receive(copy, old.get(value) or passed[value], channel)
    for n in compute.calls:
        env[n.name] = copy.node_copy(n, lambda x: env[x.name])
    for value, channel, _ in sends:
        _send(copy, env[value], channel)
    outputs = [o for o in compute.outputs if o.kind is not OutputKind.VALUE]
    copy.output(tuple(env[o.node] for o in outputs))
    return compute.replace(
        module=graph_module(copy, type(compute.module).__name__),
        inputs=tuple(i for i in compute.inputs if i.node not in values),
        outputs=tuple(outputs),
    )


def _receive(graph: fx.Graph, value: fx.Node, channel: str) -> fx.Node:
    t = tensor(value)
    node = graph.create_node(
        "call_function",
        RECV,
        (),
        {"channel": channel, "size": list(t.shape), "dtype": t.dtype},
        name=value.name,
    )
    node.meta["val"] = t.contiguous()
    node.meta["origin"] = origin(value)
    return node


def _send(graph: fx.Graph, value: fx.Node, channel: str) -> None:
    node = graph.create_node(
        "call_function",
        SEND,
        (value,),
        {"channel": channel, "nbytes": nbytes(value)},
        name=f"send_{channel.replace('.', '_')}",
    )
    node.meta["val"] = None
    node.meta["origin"] = Origin(channel, "send")
