"""The facts of any cut of a model, before its stages are made.

The joint graph of the whole model, each node labelled with the model's node that it comes of, says
what every node's backward reads. A stage then saves what the backwards of its nodes read: the same
values as when the stage is differentiated by itself.
"""

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import fx

from pipec.autodiff.joint import trace_joint
from pipec.autodiff.recompute import list_holders, views
from pipec.autodiff.tidy import results, separate_convolutions
from pipec.cluster.cluster import Cluster
from pipec.compiler.problem import find_needs, list_weights
from pipec.compiler.stage_timing import holder, life, peak_of
from pipec.compiler.timeline import sum_seconds
from pipec.cost.stage import OPTIMIZER_COPIES, StageCost, update_cost
from pipec.cost.table import CostTable
from pipec.graph.ir import Graph, InputKind, OutputKind, nbytes, origin
from pipec.graph.written import ancestors, extract
from pipec.partition.costgraph import FloatArray, IntArray
from pipec.plan.facts import Facts, SharedSum, StageFacts
from pipec.schedule.channels import Channel, slots_of, value
from pipec.schedule.schedule import Placement

_SUM = torch.ops.aten.add.Tensor
PER_CALL = 8
"""More values of a call's own size than its backward reads for each of its inputs."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Who reads what, sorted by who makes it.

    Attributes:
        producer: The call that makes a value, [edges].
        reader: A call that reads it, [edges].
        nbytes: Bytes of the value, [edges].
    """

    producer: IntArray
    reader: IntArray
    nbytes: FloatArray

    @classmethod
    def none(cls) -> Self:
        """No edges."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True)
class Outline:
    """One model with its costs on one cluster.

    Attributes:
        graph: The whole model; with a loss it is trained.
        costs: Seconds of its nodes.
        cluster: The devices.
        microbatches: Number of them in one step: no more are in flight.
        activations: Whether what the backward needs counts; not where a later pass moves it.
        state: Whether the optimizer's state counts while no stage steps.
        counted: Whether what the backward needs counts where there is room for all of it, too.
    """

    graph: Graph
    costs: CostTable
    cluster: Cluster
    microbatches: int
    activations: bool = True
    state: bool = True
    counted: bool = False

    @cached_property
    def trains(self) -> bool:
        """Whether the model has a loss."""
        return bool(self.graph.outputs_of(OutputKind.LOSS))

    def facts(self, stage: IntArray, place: Placement, *, split: bool = False) -> Facts:
        """What is known of the stages of a cut.

        Args:
            stage: Stage of every call of the graph, [calls].
            place: Devices of the stages.
            split: Whether gradients of weights are computed apart, from what I leaves for W.
        """
        of = dict(zip(self._names, stage.tolist(), strict=True))
        rows: list[list[str]] = [[] for _ in place.forward]
        for name, s in of.items():
            rows[s].append(name)
        slowest, devices = partial(self.costs.slowest, trains=self.trains), self.cluster.devices
        kinds, behind = (
            [
                slowest([devices[d].kind for d in at], row)
                for at, row in zip(side, rows, strict=True)
            ]
            for side in place.sides
        )
        weights, trained, shared = self._weights(of, len(rows))
        if self.trains:
            found = [
                self._training(*stage, split=split, counted=self._keeps(place))
                for stage in zip(rows, kinds, behind, weights, trained, strict=True)
            ]
        else:
            found = list(self._forward(rows, of, kinds, weights))
        return Facts(
            self.cluster,
            tuple(found),
            trains=self.trains,
            shared=shared,
            messages=self.costs.messages,
            saved_too=tuple(self._list_saved_too(rows, of)) if self._keeps(place) else (),
        )

    def channels(self, stage: IntArray) -> list[Channel]:
        """What crosses between the stages of a cut, and the gradients that come back."""
        of = dict(zip(self._names, stage.tolist(), strict=True))
        found: list[Channel] = []
        for n in self.graph.calls:
            src = of[n.name]
            readers = defaultdict[int, bool](bool)
            for u in n.users:
                if of.get(u.name, src) != src:
                    readers[of[u.name]] |= self._yields_gradient(u)
            for dst in sorted(readers):
                back = self.trains and n.name in self._needs and readers[dst]
                name = f"s{src}.s{dst}.{n.name}"
                found += value(name, src, dst, nbytes(n), depth=slots_of(src, dst), gradient=back)
        return found

    def edges(self, *, gradients: bool) -> Edges:
        """Every value with its readers; with ``gradients`` those that give a gradient back."""
        at = {name: k for k, name in enumerate(self._names)}
        found = [
            (at[n.name], at[u.name], float(nbytes(n)))
            for n in self.graph.calls
            for u in n.users
            if u.name in at
            and (not gradients or (n.name in self._needs and self._yields_gradient(u)))
        ]
        if not found:
            return Edges.none()
        producer, reader, size = zip(*found, strict=True)
        return Edges(np.array(producer), np.array(reader), np.array(size))

    def join_steps(self, seconds: FloatArray, place: Placement) -> FloatArray:
        """What is behind the last backward where all step together: a sum, and the longest step.

        Args:
            seconds: Of a step, [cuts, stages].
            place: Devices of the stages.
        """
        facts = Facts(self.cluster, (), trains=self.trains, messages=self.costs.messages)
        devices = tuple({d for at in place.backward for d in at})
        for norm in self._sum_norm(len(place.backward)):
            longest = seconds.max(axis=1, keepdims=True)
            behind = longest + sum_seconds(facts, devices, norm.nbytes)
            seconds = np.broadcast_to(behind, seconds.shape)
        return seconds

    def least_saved(self, place: Placement) -> Iterator[tuple[float, str]]:
        """Bytes of each value that a backward reads, and one call that it is saved for.

        However the model is cut, the stage of this call saves these bytes at least.
        """
        seen = set[fx.Node]()
        for name in self._names if self._keeps(place) else ():
            for read in self._reads.get(name, ()):
                node, size = read, nbytes(read)
                while node.op == "call_function" and views(node):
                    node = node.all_input_nodes[0]
                    size = min(size, nbytes(node))
                if node not in seen and node not in self._backward.free:
                    seen.add(node)
                    yield float(size), name

    def _keeps(self, place: Placement) -> bool:
        """Whether what the stages save for their backward is counted."""
        return self.trains and (self._counted or place.separate)

    def _list_saved_too(self, rows: Sequence[Sequence[str]], of: dict[str, int]) -> Iterator[str]:
        """Channels of values in memory that their stage saves anyway."""
        kept = [{n.name for n in self._list_saved(frozenset(row))} for row in rows]
        for n in self.graph.calls:
            src = of[n.name]
            if not kept[src].isdisjoint(self._backward.holders.get(n.name, ())):
                readers = {of[u.name] for u in n.users if u.name in of} - {src}
                yield from (f"s{src}.s{dst}.{n.name}" for dst in sorted(readers))

    def _yields_gradient(self, reader: fx.Node) -> bool:
        """Whether what a call yields depends on what it reads, as far as gradients go."""
        items = [u.name for u in reader.users if u.target is operator.getitem]
        return not self._needs.isdisjoint([reader.name, *items])

    def _training(
        self,
        row: Sequence[str],
        kind: str,
        behind: str,
        weights: float,
        trained: Sequence[float],
        *,
        split: bool,
        counted: bool,
    ) -> StageFacts:
        seconds, backward = self.costs.of(kind), self.costs.backward_of(behind)
        took = sum(backward.get(n, 0.0) for n in row)
        device = next(d for d in self.cluster.devices if d.kind == behind)
        update, state = update_cost(device, sum(trained)), int(OPTIMIZER_COPIES * sum(trained))
        cost = StageCost(
            sum(seconds.get(n, 0.0) for n in row),
            B=took,
            I=took / 2,
            W=took / 2,
            accumulate=update.accumulate,
            step=update.step,
            step_copied=update.step,
            optimizer_bytes=state * self.state,
            workspace={} if self.state else {"STEP": state},
        )
        names = frozenset(row)
        return StageFacts(
            kind,
            cost,
            weights,
            gradients=sum(trained),
            parameters=tuple(trained),
            saved=float(sum(map(nbytes, self._list_saved(names)))) if counted else 0.0,
            saved_for_w=self._count_left(names) if counted and split else None,
        )

    def _forward(
        self,
        rows: Sequence[Sequence[str]],
        of: dict[str, int],
        kinds: Sequence[str],
        weights: Sequence[float],
    ) -> Iterator[StageFacts]:
        nodes, inputs = self.graph.nodes, {i.node for i in self.graph.inputs_of(InputKind.INPUT)}
        ends = {o.node for o in self.graph.outputs_of(OutputKind.OUTPUT)} & of.keys()
        for s, row in enumerate(rows):
            calls = [nodes[name] for name in row]
            given = {r.name: r for n in calls for r in n.all_input_nodes if r.name in inputs}
            leave = {n.name for n in calls if any(of.get(u.name, s) != s for u in n.users)}
            order = [*given.values(), *calls]
            names = {n.name for n in order}
            room = peak_of([life(n) for n in order], leave | (ends & names), names)[0]
            kept = {holder(nodes[name]) for name in ends & names}
            outputs = sum(nbytes(n) for n in kept if n.op == "call_function")
            seconds = self.costs.of(kinds[s])
            cost = StageCost(sum(seconds.get(n, 0.0) for n in row), workspace={"F": room})
            yield StageFacts(kinds[s], cost, weights=weights[s], outputs=float(outputs))

    def _weights(
        self, of: dict[str, int], stages: int
    ) -> tuple[list[float], list[list[float]], tuple[SharedSum, ...]]:
        """Bytes of all weights and of each trained one per stage; what stages add up."""
        held, shared = [0.0] * stages, list[SharedSum]()
        trained: list[list[float]] = [[] for _ in held]
        for size, learns, readers in self.weights:
            at = sorted({of[r] for r in readers})
            for s in at:
                held[s] += size
                trained[s] += [size] * learns
            if learns and len(at) > 1:
                shared.append(SharedSum(size, tuple(at)))
        return held, trained, (*shared, *self._sum_norm(stages))

    def _sum_norm(self, stages: int) -> list[SharedSum]:
        """What all stages add up for the norm of all gradients, however the model is cut."""
        return SharedSum.of_norm(sum(w[1] for w in self.weights), stages, self.cluster)

    @cached_property
    def _names(self) -> list[str]:
        return [n.name for n in self.graph.calls]

    @cached_property
    def _needs(self) -> frozenset[str]:
        return find_needs(self.graph)

    @cached_property
    def weights(self) -> list[tuple[float, bool, list[str]]]:
        """Every weight that is read: its bytes, whether it is trained, and who reads it."""
        every, kind = list_weights(self.graph), InputKind.PARAMETER
        return [(float(nbytes(n)), i.kind is kind and n.name in self._needs, readers)
                for i, n, readers in every if readers]  # fmt: skip

    def _list_saved(self, row: frozenset[str]) -> set[fx.Node]:
        """What the backward of these calls reads of their forward."""
        return self._list_kept(row, (r for name in row for r in self._reads.get(name, ())))

    def _count_left(self, row: frozenset[str]) -> float:
        """Bytes of what W of these calls reads: of their forward, of I, of gradients received.

        I computes whatever a backward of another stage reads, and all that this needs; gradients of
        weights that come with it are handed over by W. What comes back as the gradient of two
        values, of a sum's operands, counts once.
        """
        calls, passed = self._backward.calls, self._backward.passed
        nodes = {n for name in row for n in calls.get(name, ())}
        leads = {n for n in nodes if any(u in passed and u not in nodes for u in n.users)}
        early = ancestors(leads) & nodes
        early |= {u for n in early for u in n.users if u.target is operator.getitem}
        late = (nodes & passed) - early
        read = {r for n in late for r in n.all_input_nodes if r not in late}
        read |= {n for n in early if not passed.issuperset(n.users)}
        return float(sum(map(nbytes, self._list_kept(row, read))))

    def _list_kept(self, row: frozenset[str], read: Iterable[fx.Node]) -> set[fx.Node]:
        """What is kept to be read; a view of these calls' own is made again of what it views."""
        stack, seen, kept = list(read), set[fx.Node](), set[fx.Node]()
        while stack:
            node = stack.pop()
            if node in seen or node in self._backward.free:
                continue
            seen.add(node)
            if node.op == "call_function" and views(node) and origin(node).name in row:
                stack.extend(node.all_input_nodes)
            else:
                kept.add(node)
        return kept

    @property
    def _reads(self) -> dict[str, list[fx.Node]]:
        return self._backward.reads

    @cached_property
    def _backward(self) -> "_Backward":
        """Of the graph; traced once for all outlines of it."""
        if self.graph.module not in _known:
            _known[self.graph.module] = _trace(self.graph, self._needs)
        return _known[self.graph.module]

    @cached_property
    def _counted(self) -> bool:
        """Whether what the backward needs may matter: not where there is room for all of it.

        A backward is taken to read at most `PER_CALL` times what a call yields for each of its
        inputs: a recurrent network of many layers is one call.
        """
        if self.counted:
            return self.activations
        yielded = sum(len(n.all_input_nodes) * nbytes(n) for n in self.graph.calls)
        yielded *= PER_CALL * self.microbatches
        weights = (2 + OPTIMIZER_COPIES) * sum(size for size, _, _ in self.weights)
        least = min(d.memory_bytes for d in self.cluster.devices)
        return self.activations and yielded + weights > least


@dataclass(frozen=True, eq=False)
class _Backward:
    """What the backward of a whole model reads.

    Attributes:
        reads: Call of the model to what its backward reads of the forward.
        calls: Call of the model to the calls of its backward.
        holders: Call of the model to the nodes of the joint graph in whose memory its value lies.
        passed: Calls of the backward that more follows than sums of one weight's gradients.
        free: Weights of the joint graph: they are there anyway.
    """

    reads: dict[str, list[fx.Node]]
    calls: dict[str, list[fx.Node]]
    holders: dict[str, tuple[str, ...]]
    passed: frozenset[fx.Node]
    free: frozenset[fx.Node]


_known: WeakKeyDictionary[fx.GraphModule, _Backward] = WeakKeyDictionary()


def _trace(model: Graph, needs: frozenset[str]) -> _Backward:
    graph = _joint(model, needs)
    separate_convolutions(graph)
    ends = results(graph)[: len(model.outputs)]
    forward = ancestors(n for n in ends if isinstance(n, fx.Node))
    forward |= {u for n in forward for u in n.users if u.target is operator.getitem}
    given = {n for n in graph.nodes if n.op == "placeholder" and n.name.startswith("grad_")}
    back = [n for n in graph.nodes if n.op == "call_function" and n not in forward]
    reads, calls = (defaultdict[str, list[fx.Node]](list) for _ in range(2))
    passed = set[fx.Node]()
    for n in reversed(back):
        calls[origin(n).name].append(n)
        others = [r for r in n.all_input_nodes if r not in given]
        reads[origin(n).name] += [r for r in others if r in forward or r.op == "placeholder"]
        if n.target is not _SUM or not passed.isdisjoint(n.users):
            passed.add(n)
    kinds = (InputKind.PARAMETER, InputKind.CONSTANT)
    names = {i.node for i in model.inputs_of(*kinds)}
    free = {n for n in graph.nodes if n.op == "placeholder" and n.name in names}
    holders = _list_holders(model, [n for n in graph.nodes if n in forward])
    return _Backward(reads, calls, holders, frozenset(passed), frozenset(free))


def _list_holders(model: Graph, forward: Sequence[fx.Node]) -> dict[str, tuple[str, ...]]:
    """Nodes of the joint graph in whose memory the value of each call lies.

    Of several nodes of a call, the last one of its value's type yields it. Views that cancel each
    other are not in the joint graph: what they show is.
    """
    values = {n.name: n.meta["val"] for n in model.calls}
    found = {
        origin(n).name: list_holders(n)
        for n in forward
        if n.op == "call_function" and _is_like(n, values.get(origin(n).name))
    }
    for n in model.calls:
        base = n
        while base.name not in found and base.op == "call_function" and views(base):
            base = base.all_input_nodes[0]
        if base.name in found and _is_like(n, values.get(base.name)):
            found[n.name] = found[base.name]
    return found


def _is_like(node: fx.Node, value: object) -> bool:
    """Whether a node yields what a value of the model is."""
    own = node.meta["val"]
    if not isinstance(own, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    return own.shape == value.shape and own.dtype == value.dtype


def _joint(model: Graph, needs: frozenset[str]) -> fx.Graph:
    """The joint graph of the whole model, labelled with the model's own nodes."""
    whole = extract(model, [n.name for n in model.calls], "Whole")
    for n in whole.calls:
        n.meta["origin"] = replace(origin(n), name=n.name)
    wanted = tuple(
        k for k, i in enumerate(whole.inputs) if i.kind is InputKind.PARAMETER and i.node in needs
    )
    losses = tuple(k for k, o in enumerate(whole.outputs) if o.kind is OutputKind.LOSS)
    return trace_joint(whole, wanted, losses).graph
