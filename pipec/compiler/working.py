"""What recomputing takes of a stage: seconds of every value, and the bytes that B then holds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

import numpy as np
from torch import Tensor, fx

from pipec.autodiff.model import Training
from pipec.autodiff.rewrite import Replays, Sources
from pipec.compiler.residency import StageWork, list_saved
from pipec.compiler.stage_timing import Life, holder, life, own_bytes, peak_of
from pipec.cost.stage import StageCost
from pipec.graph.comm import is_comm
from pipec.graph.ir import GraphOutput, InputKind, OutputKind, tensor, tensor_nbytes
from pipec.graph.kernels import kernel_bytes
from pipec.graph.written import ancestors
from pipec.residency.problem import RECOMPUTE, FloatArray, IntArray, Working

_BACKWARD = ("B", "I", "W")
_Order = tuple[Sequence[fx.Node], Sequence[str], frozenset[str]]


def values_of(work: StageWork, *, alike: bool = True) -> tuple[FloatArray, FloatArray]:
    """Bytes of every saved value, in the order of `list_saved`, and seconds to redo it."""
    names = list_saved(work.training)
    sizes = {v.name: float(v.nbytes) for v in work.training.saved}
    again = [work.recompute(n, alike=alike) for n in names]
    return np.array([sizes[n] for n in names]), np.array(again)


def together(training: Training) -> list[dict[int, float]]:
    """Values that are alive while each saved value is computed again: itself and what it reads."""
    names = list_saved(training)
    at, nodes = {n: v for v, n in enumerate(names)}, training.F.nodes
    found = []
    for v, name in enumerate(names):
        alive = {v: float(own_bytes(nodes[name]))}
        for read in {holder(n) for n in nodes[name].all_input_nodes} - {holder(nodes[name])}:
            if read.name in at:
                alive[at[read.name]] = float(own_bytes(read))
            elif read.op == "call_function":
                alive[v] += own_bytes(read)
        found.append(alive)
    return found


class Rewritten:
    """The graphs of a stage whose B, I and W compute some saved values again, by their nodes.

    Attributes:
        saved: What F keeps, with its bytes.
    """

    def __init__(self, stage: "Rewrites", again: frozenset[str]) -> None:
        self._stage, training = stage, stage.work.training
        self.forward, self._graphs = training.F, training.graphs
        self._replays = Replays(training, again, stage.sources) if again else None
        read = self._replays.read if self._replays else (v.name for v in training.saved)
        self.saved = {n: stage.sizes[n] for n in read}

    def order(self, kind: str) -> _Order:
        """Nodes of B, I or W in order, the names of results, those of what is computed."""
        if self._replays:
            made = self._replays.of(kind)
            return made.nodes, _results(made.outputs), made.computed
        graph = self._graphs[kind]
        calls = frozenset(n.name for n in graph.calls)
        return [*graph.nodes.values()], _results(graph.outputs), calls

    @cached_property
    def for_w(self) -> dict[str, int]:
        """What W reads of what is saved, or of what I yields, with its bytes."""
        W = self._graphs["W"]
        names = {i.node: i.name for i in W.inputs_of(InputKind.SAVED)}
        sizes, in_w = self._stage.sizes, self._stage.sources.nodes(W)
        return {
            names.get(n, n): tensor_nbytes(tensor(in_w[n])) if n in in_w else sizes[n]
            for n in (self._replays.of("W").read if self._replays else names)
        }

    def seconds(self, kind: str) -> float:
        """What B, I or W computes of what F has computed."""
        forward = self._stage.work.forward
        return fsum(forward.get(name, 0.0) for name in self.order(kind)[2])

    @cached_property
    def alive(self) -> tuple[int, frozenset[str]]:
        """Most bytes of values of F that are computed and alive at a time; and which they are.

        In whichever of B, I and W run.
        """
        return max(map(self._alive, self._stage.kinds), key=lambda found: found[0])

    @cached_property
    def working(self) -> dict[str, int]:
        """As `working_bytes` of the graphs."""
        return {kind: self._alive(kind)[0] for kind in self._stage.kinds}

    def _alive(self, kind: str) -> tuple[int, frozenset[str]]:
        nodes, results, computed = self.order(kind)
        order, counted = [self._stage.life_of(n) for n in nodes], self._stage.calls & computed
        return peak_of(order, results, counted, kernels=False)

    @cached_property
    def fullest(self) -> dict[str, int]:
        """Most bytes that are alive in each graph, in F beyond what it saves."""
        found = {k: self._peak(*self.order(k)) for k in self._stage.kinds}
        results = [o.node for o in self.forward.outputs if o.kind is not OutputKind.SAVED]
        results += self.saved
        nodes = self._stage.sources.nodes(self.forward)
        needed = ancestors(nodes[name] for name in results)
        order = [n for n in nodes.values() if n in needed]
        calls = {n.name for n in order if n.op == "call_function"}
        return {**found, "F": self._peak(order, results, calls) - sum(self.saved.values())}

    def _peak(
        self, order: Sequence[fx.Node], results: Collection[str], calls: Collection[str]
    ) -> int:
        return peak_of([self._stage.life_of(n) for n in order], results, calls)[0]


class Rewrites:
    """`Rewritten` by what is computed again, each found once.

    Args:
        work: A stage, nothing offloaded.
        kernels: `kernel_key` to what a kernel allocates, where that is more than it makes.
        kinds: The graphs that run: B, or I and W.

    Attributes:
        sources: The nodes of its graphs.
        calls: Names of what F computes.
        sizes: Bytes of tensors of F, by name.
        life_of: `life` of a node of any of the graphs.
    """

    def __init__(
        self, work: StageWork, kernels: Mapping[str, int], kinds: Sequence[str] = _BACKWARD
    ) -> None:
        self.work, self.kinds, training = work, kinds, work.training
        self.sources = Sources(training)
        self.calls = frozenset(n.name for n in training.F.calls if not is_comm(n))
        values = {n: found.meta.get("val") for n, found in self.sources.nodes(training.F).items()}
        self.sizes = {n: tensor_nbytes(v) for n, v in values.items() if isinstance(v, Tensor)}
        self._known: dict[frozenset[str], Rewritten] = {}
        self._lives: dict[fx.Node, Life] = {}
        for graph in (training.F, *map(training.graphs.__getitem__, _BACKWARD)):
            nodes = self.sources.nodes(graph).values()
            taken = kernel_bytes(nodes, kernels)
            self._lives |= {n: life(n, taken.get(n.name, 0)) for n in nodes}
        self.life_of = self._lives.__getitem__

    def __contains__(self, again: frozenset[str]) -> bool:
        """Whether it was found before."""
        return again in self._known

    def of(self, again: frozenset[str]) -> Rewritten:
        """With some values computed again."""
        if again not in self._known:
            self._known[again] = Rewritten(self, again)
        return self._known[again]

    def cost(self, before: StageCost, again: frozenset[str], *, measured: bool) -> StageCost:
        """What a stage takes whose graphs compute some values again.

        Args:
            before: What it takes as it is.
            again: The values.
            measured: Whether that was measured: then the bytes of an action grow by as much as
                those that are alive at its fullest moment. Else only what is computed again counts.
        """
        if not again:
            return before
        old, new = self.of(frozenset()), self.of(again)
        more = {k: new.seconds(k) - old.seconds(k) for k in self.kinds}
        if measured:
            grown = {k: new.fullest[k] - old.fullest[k] for k in new.fullest}
            workspace = {
                name: max(size + grown.get(name.removeprefix("first "), 0), 0)
                for name, size in before.workspace.items()
            }
        else:
            workspace = {
                name: new.working.get(name.removeprefix("first "), 0) for name in before.workspace
            }
        return replace(
            before,
            workspace=workspace,
            **{k: getattr(before, k) + seconds for k, seconds in more.items()},
        )


def _results(outputs: Iterable[GraphOutput]) -> list[str]:
    return [o.node for o in outputs]


@dataclass(frozen=True)
class WorkingBytes:
    """Bytes that recomputing costs: values alive in B, and inputs that are saved in their place."""

    rewrites: Rewrites
    flight: int

    def __call__(self, decision: IntArray) -> Working:
        """See `Problem.working`."""
        names = self._names
        again = frozenset(names[v] for v in np.flatnonzero(decision == RECOMPUTE).tolist())
        found = self.rewrites.of(again)
        nbytes, alive = found.alive
        before = self.rewrites.of(frozenset()).saved
        more = sum(found.saved.values()) - sum(s for n, s in before.items() if n not in again)
        needed = again & alive if alive <= again else again
        values = tuple(v for v, name in enumerate(names) if name in needed)
        return Working(nbytes + self.flight * more, nbytes, values)

    @cached_property
    def _names(self) -> list[str]:
        return list_saved(self.rewrites.work.training)
