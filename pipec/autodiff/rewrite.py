"""Rewrites of the F→B edges: saved values that B computes again, or fetches from host memory.

```text
          F                    B                          F                      B
keep      save(v)              v = input          offload offload(v, slot)       v = fetch(slot)
recompute -                    v = op(kept, w)
```

Neither changes what F and B compute, bit for bit.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from operator import getitem

from torch import Tensor, fx

from pipec.autodiff.model import Training
from pipec.autodiff.recompute import everything, views
from pipec.errors import GraphError
from pipec.graph.comm import FETCH, OFFLOAD
from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, OutputKind
from pipec.graph.lower import transfer
from pipec.graph.written import ancestors, copy_calls

_WEIGHTS = (InputKind.PARAMETER, InputKind.CONSTANT)


def lineage(training: Training, value: str, kept: Collection[str]) -> list[fx.Node]:
    """What computing a saved value again takes: nodes of F, down to weights and kept values.

    Returns:
        Nodes of F in graph order: calls, and placeholders that would have to be saved for it.
    """
    nodes = training.F.nodes
    there = {*kept} - {value} | {i.node for i in training.F.inputs_of(*_WEIGHTS)}
    found = ancestors([nodes[value]], lambda n: n.name not in there)
    return [n for n in nodes.values() if n in found and n.name not in there]


def reads_trained(training: Training, nodes: Collection[fx.Node]) -> bool:
    """Whether one of some nodes of F reads a weight that is trained."""
    parameters = training.F.inputs_of(InputKind.PARAMETER)
    trained = {i.node for i in parameters if i.name in training.trained}
    return any(read.name in trained for n in nodes for read in n.all_input_nodes)


def recompute_values(training: Training, values: Collection[str]) -> Training:
    """The same training with some saved values computed again by B, I and W.

    A value is computed right before its first reader, so that few of them are alive at a time.

    Raises:
        GraphError: A value cannot be computed again: random numbers are drawn on the way.
    """
    again = frozenset(values)
    if not again:
        return training
    kept = {v.name for v in training.saved} - again
    for name in sorted(again):
        for node in lineage(training, name, kept):
            if node.op == "call_function" and not everything(node):
                raise GraphError(
                    "a random value cannot be computed again", where=name, got=node.name
                )
    found = Replays(training, again)
    outputs = [o for o in training.F.outputs if o.kind is not OutputKind.SAVED]
    outputs += [GraphOutput(n, OutputKind.SAVED, n) for n in training.F.nodes if n in found.read]
    F = _copy_for(training.F, outputs)
    return Training(F, *(found.of(k).graph() for k in ("B", "I", "W")))


def offload(training: Training, slots: Mapping[str, Collection[str]]) -> Training:
    """The same training with some saved values waiting in host memory, by the names of slots.

    Returns:
        F ends with one ``offload`` per value, B and I start with one ``fetch`` each; I passes on
        to W what only W reads.
    """
    slot_of = {value: slot for slot, values in slots.items() for value in values}
    saved = [v.name for v in training.saved if v.name in slot_of]
    if not saved:
        return training
    slot_of = {value: slot_of[value] for value in saved}
    only_w = _list_saved(training.W) & slot_of.keys() - _list_saved(training.I)
    source = training.F.nodes
    in_b = {v: s for v, s in slot_of.items() if v in _list_saved(training.B)}
    return Training(
        F=_with_offloads(training.F, slot_of),
        B=_with_fetches(training.B, source, in_b),
        I=_with_fetches(training.I, source, slot_of, passed=only_w),
        W=training.W,
    )


def _list_saved(graph: Graph) -> set[str]:
    return {i.name for i in graph.inputs_of(InputKind.SAVED)}


class Sources:
    """The nodes of a stage's graphs and what they read, found once for many rewritings."""

    def __init__(self, training: Training) -> None:
        graphs = (training.F, training.B, training.I, training.W)
        self._nodes = {id(g): g.nodes for g in graphs}
        self._reads: dict[fx.Node, list[str]] = {}
        calls = training.F.calls
        self.lazy = frozenset(n.name for n in calls)
        self._own = {n.name for n in calls if not views(n) and isinstance(n.meta["val"], Tensor)}
        self._items = {n.name: n.all_input_nodes[0].name for n in calls if n.target is getitem}

    def nodes(self, graph: Graph) -> dict[str, fx.Node]:
        """Name to node of one of the graphs."""
        return self._nodes[id(graph)]

    def list_lasting(self, computed: frozenset[str]) -> set[str]:
        """What W may read of F's values that I computes again: tensors with memory of their own."""
        return {n for n, made in self._items.items() if made in computed} | self._own & computed

    def reads(self, node: fx.Node) -> list[str]:
        """Names of what a node reads, the last one first."""
        if node not in self._reads:
            self._reads[node] = [n.name for n in reversed(node.all_input_nodes)]
        return self._reads[node]


class Replays:
    """B, I and W of a stage that compute some saved values again, each found when it is asked for.

    What F keeps saved is read, by whichever of them needs it. W reads what I has computed again for
    itself, which I then yields; only views are made twice.
    """

    def __init__(
        self, training: Training, again: Collection[str], sources: Sources | None = None
    ) -> None:
        self._training, self._again = training, again
        self._sources = sources or Sources(training)
        self._kept = {v.name for v in training.saved}.difference(again)
        self._known: dict[str, Replay] = {}

    def of(self, kind: str) -> "Replay":
        """B, I or W."""
        if kind not in self._known:
            shared = self._made & self.of("W").read if kind == "I" else ()
            passed = [n for n in self._sources.nodes(self._training.F) if n in shared]
            more = self._made if kind == "W" else ()
            alone = kind == "I" and not passed
            self._known[kind] = self._alone if alone else self._replay(kind, more, passed)
        return self._known[kind]

    @property
    def read(self) -> set[str]:
        """What F must yield, by name: B reads what I and W together do."""
        return self.of("B").read

    @cached_property
    def _made(self) -> set[str]:
        """What W may read of I."""
        return self._sources.list_lasting(self._alone.computed) - self._kept

    @cached_property
    def _alone(self) -> "Replay":
        """I that yields no more than it did."""
        return self._replay("I")

    def _replay(
        self, kind: str, more: Collection[str] = (), passed: Collection[str] = ()
    ) -> "Replay":
        graph, given = self._training.graphs[kind], self._kept.union(more)
        return Replay(graph, self._training.F, self._sources, self._again, given, passed)


class Replay:
    """B, I or W with what it read of some saved values computed in its place, node by node.

    Forward nodes stand as late as possible.

    Args:
        graph: B, I or W.
        forward: F.
        sources: Sources of the nodes of both graphs.
        again: Names of saved values.
        given: Names of values of F that are there, and so are read.
        passed: Names of values of F to yield too.

    Attributes:
        nodes: Those of F and of ``graph`` in their new order, inputs first where they are read.
        outputs: What is yielded.
    """

    def __init__(
        self,
        graph: Graph,
        forward: Graph,
        sources: Sources,
        again: Collection[str],
        given: Collection[str],
        passed: Collection[str] = (),
    ) -> None:
        self._graph, self._forward, self._reads = graph, forward, sources.reads
        nodes = sources.nodes(graph)
        there = {n: node for n, node in nodes.items() if n not in again or _calls(node)}
        self._sources: dict[str, fx.Node] = {**sources.nodes(forward), **there}
        self._given = {n for n in given if n not in there}
        self.nodes: list[fx.Node] = []
        self._done: set[str] = set()
        for name, node in nodes.items():
            if _calls(node) and name not in sources.lazy:
                self._need(name)
        self.outputs = (*graph.outputs, *(GraphOutput(n, OutputKind.SAVED, n) for n in passed))
        for output in self.outputs:
            self._need(output.node)

    def _need(self, name: str) -> None:
        """Put a node and what it needs into the order."""
        stack, done = [name], self._done
        while stack:
            at = stack[-1]
            if at not in done:
                node = self._sources[at]
                reads = () if at in self._given else self._reads(node)
                if needed := [n for n in reads if n not in done]:
                    stack += needed
                    continue
                done.add(at)
                self.nodes.append(node)
            stack.pop()

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names of the nodes that it computes."""
        return frozenset(n.name for n in self.nodes if _calls(n) and n.name not in self._given)

    @cached_property
    def read(self) -> set[str]:
        """Names of the saved values that it reads."""
        return {i.name for i in self.inputs if i.kind is InputKind.SAVED}

    @cached_property
    def inputs(self) -> list[GraphInput]:
        """What it reads, in the order of the kinds."""
        known = {i.node: i for i in self._graph.inputs}
        known |= {i.node: i for i in self._forward.inputs_of(*_WEIGHTS) if i.node not in known}
        read = [n.name for n in self.nodes if n.name not in self.computed]
        entries = [known.get(n, GraphInput(n, InputKind.SAVED, n)) for n in read]
        places = {n: k for k, n in enumerate(self._sources)}
        kinds = list(InputKind)
        return sorted(entries, key=lambda i: (kinds.index(i.kind), places[i.node]))

    def graph(self) -> Graph:
        """As a graph."""
        calls = [n for n in self.nodes if n.name in self.computed]
        title = type(self._graph.module).__name__
        return copy_calls(
            self._forward, self.inputs, calls, self.outputs, nodes=self._sources, title=title
        )


def _calls(node: fx.Node) -> bool:
    return node.op == "call_function"


def _copy_for(graph: Graph, outputs: list[GraphOutput]) -> Graph:
    """A graph with other outputs, and without what is then computed for nothing."""
    needed = ancestors(graph.node(o.node) for o in outputs)
    return copy_calls(graph, graph.inputs, [n for n in graph.calls if n in needed], outputs)


def _with_offloads(forward: Graph, slot_of: Mapping[str, str]) -> Graph:
    """F with its last nodes copying values to their host slots instead of yielding them."""
    whole, nodes = _copy_for(forward, list(forward.outputs)), forward.nodes
    ends = [transfer(OFFLOAD, nodes[name], slot) for name, slot in slot_of.items()]
    kept = [o for o in whole.outputs if o.kind is not OutputKind.SAVED or o.name not in slot_of]
    return copy_calls(whole, whole.inputs, [*whole.calls, *ends], kept)


def _with_fetches(
    graph: Graph,
    source: Mapping[str, fx.Node],
    slot_of: Mapping[str, str],
    passed: Collection[str] = (),
) -> Graph:
    """B or I with its first nodes fetching values instead of reading them; some pass on.

    A value that B or I computes again although it was saved is taken from the host too.
    """
    calls = [transfer(FETCH, n, slot_of[name]) for name, n in source.items() if name in slot_of]
    calls += [n for n in graph.calls if n.name not in slot_of]
    yielded = {o.name for o in graph.outputs_of(OutputKind.SAVED)}
    more = [GraphOutput(n, OutputKind.SAVED, n) for n in source if n in passed and n not in yielded]
    inputs = [i for i in graph.inputs if i.node not in slot_of]
    return copy_calls(graph, inputs, calls, [*graph.outputs, *more])
