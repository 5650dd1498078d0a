"""Running emitted stages in a chain against the model that they were made of.

```text
inputs ─► stage 0 ─► channel ─► stage 1 ─► channel ─► stage 2 ─► outputs
              compared with the traced graph's values       compared with the model as written
```

Each stage sees its user inputs and what arrives on its channels, nothing else.

In quantised models a float between two integers rounds to either side, and what follows of that is
no smaller than what follows of a fault. So what is compared was computed by one engine: stages of
torch with the traced graph, stages of onnxruntime with the file. The traced graph is held against
the file node by node: each quantised node is given what the file's engine computed before it, and
may be one step off at `interpret.STEPS_OFF` of the places.

Other engines draw other random numbers. Of what such stages draw nothing is compared but what later
stages make of it; and where the model as written is run by another engine than torch, no output
that depends on random numbers is compared with it. The report names all of these.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pipec.compiler.backend import Emitted, load_backend, read_back
from pipec.compiler.comparison import Allowed, Comparison, compare, packing_step
from pipec.compiler.inputs import KINDS, choose_inputs, draw
from pipec.compiler.interpret import (
    NODE,
    STEPS_OFF,
    Ran,
    Tensors,
    Yield,
    measure_noise,
    run_graph,
)  # fmt: skip
from pipec.compiler.job import StageFunction, run_chain
from pipec.compiler.loaded import Loaded
from pipec.compiler.same_model import DECLARED, check_outputs, check_same_model
from pipec.compiler.sizes import compare_sizes
from pipec.compiler.verify_training import compare_gradients, compare_wide_gradients
from pipec.errors import PlanError
from pipec.graph.copies import PACK, find_unpacked
from pipec.graph.ir import Graph, OutputKind, origin
from pipec.plan.model import Plan
from pipec.plan.store import check_shown, load_plan
from pipec.runtime.draws import count_draws, drawing, find_drawn, number_draws, seed_graph, stream

STEEP_TRIALS = 4
"""Where something is off, so many trials and roundings see whether the model is that steep there:
in sums of large numbers that cancel, other kernels' roundings are not small."""

FRAMES = 3
"""Times as many inputs for quantised models, whose few results of few steps hide much."""

_Frame = tuple[int | None, Mapping[str, Tensor], dict[str, Tensor]]
"""The seed of inputs that were chosen for the model, inputs, what it makes of them."""
Progress = Callable[[str], None]
"""Called with what is being done."""


@runtime_checkable
class Trains(Protocol):
    """A target that emits code for the backward pass and the update too."""

    def compare_training(
        self,
        plan: Plan,
        stages: Sequence[StageFunction],
        reference: Loaded,
        tolerance: float,
        seed: int,
    ) -> list[Comparison]:
        """Gradients and updates of the emitted stages against autograd and the optimizer."""


@runtime_checkable
class Streams(Protocol):
    """A target whose stages run all at the same time, joined as their devices are."""

    def verify_chain(
        self,
        plan: Plan,
        directory: Path,
        reference: Loaded,
        frames: int,
        *,
        seed: int = 0,
        tolerance: float | None = None,
        progress: Progress = lambda _: None,
    ) -> "VerifyReport":
        """Stream frames through all stages and compare the model's outputs.

        Raises:
            PlanError: The plan was made of another model.
            BackendError: A stage fails.
        """


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        tolerance: Largest relative error that was allowed.
        seed: Seed of the inputs.
        boundaries: One comparison per value that crosses a cut and per output, in order; then
            one per gradient of a parameter if the plan trains.
        drawn: What was not compared, as another engine draws the random numbers that it follows.
    """

    tolerance: float
    seed: int
    boundaries: tuple[Comparison, ...]
    drawn: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that is compared is within a tolerance that not everything is within."""
        return all(b.ok and not b.blind for b in self.boundaries) and bool(self.boundaries)

    @property
    def max_abs_error(self) -> float:
        """Largest difference of all floating point values."""
        return max((b.max_abs_error for b in self.boundaries), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """JSON data: ``ok``, ``unknown`` (names), ``max_abs_error``, ... as the attributes."""
        return {
            "ok": self.ok,
            "unknown": [b.name for b in self.boundaries if b.blind],
            "not_compared": [*self.drawn],
            "max_abs_error": self.max_abs_error,
            "tolerance": self.tolerance,
            "seed": self.seed,
            "boundaries": [asdict(b) for b in self.boundaries],
        }


def verify_artifacts(
    directory: Path,
    reference: Loaded,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    allowed: Collection[str] = (),
    progress: Progress = lambda _: None,
) -> VerifyReport:
    """Load a plan and its stages from a directory and verify them; see `verify_stages`.

    ``tolerance`` is the largest relative error, by default the backend's; ``allowed`` are
    namespaces of ops beyond pipec's own that the plan may use.

    Raises:
        PlanError: A file was changed, or the plan was made of another model.
        BackendError: A stage cannot be loaded.
    """
    progress("checking files")
    plan = load_plan(directory, allowed=allowed)
    check_shown(plan, directory)
    progress("loading the stages")
    emitted = read_back(plan, directory)
    return verify_stages(
        plan, emitted, reference, tolerance=tolerance, seed=seed, progress=progress
    )


@torch.random.fork_rng(devices=[])  # the caller's random numbers go on as if this never ran
def verify_stages(
    plan: Plan,
    emitted: Emitted,
    reference: Loaded,
    *,
    tolerance: float | None = None,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> VerifyReport:
    """Run the stages on random inputs and compare every boundary value, in training the gradients.

    Args:
        plan: The plan, as loaded from its directory.
        emitted: What its backend loaded.
        reference: The model, read from its source.
        tolerance: Largest relative error of a floating point value; what the stages' numbers
            explain if not given.
        seed: Seed of the inputs and of random ops.
        progress: Called with what is being done.

    Raises:
        PlanError: The plan was made of another model.
    """
    check_same_model(plan, reference.graph)
    bounds, measured = (emitted.bounds, True) if tolerance is None else ({}, False)
    tolerance = emitted.tolerance if tolerance is None else tolerance
    check = _Check(plan, emitted, reference, seed, tolerance, bounds, measured, progress)
    frames = check.frames()
    compared: list[Comparison] = []
    for number, given, originals in frames:
        found = check.compare(given, originals)
        if number is not None and not all(c.ok for c in found):
            found = check.compare(*check.choose(number, STEEP_TRIALS))
        compared += found
    sizes = compare_sizes(
        plan, emitted.stages, reference, emitted.axes, tolerance, seed, traced=emitted.traced,
        progress=progress,
    )  # fmt: skip
    found = [comparison for _, comparison in sizes]
    if plan.schedule is not None and plan.schedule.training:
        progress("comparing gradients")
        backend = load_backend(plan.target)
        if isinstance(backend, Trains):
            found += backend.compare_training(plan, emitted.stages, reference, tolerance, seed)
        else:
            more = draw(reference.graph, reference.example_inputs, seed + 1)
            first = [frames[0][1], more][: plan.schedule.microbatches]
            source, eager = reference.graph, reference.gradients
            if find_unpacked(plan.graph):
                source, eager = check.planned, None
                tolerance += packing_step(plan.graph)
            else:
                own = None if measured else tolerance
                compared += compare_wide_gradients(plan, source, first, own, seed)
            compared += compare_gradients(plan, source, first, tolerance, seed, eager)
    drawn = {name for _, name in check.drawn_by_stages | check.drawn_by_file}
    return VerifyReport(tolerance, seed, (*_worst(compared), *found), tuple(sorted(drawn)))


def _worst(compared: list[Comparison]) -> list[Comparison]:
    """Return of each value the comparison that is furthest off, over all inputs."""
    worst: dict[tuple[str, str, int], Comparison] = {}
    for c in compared:
        before = worst.setdefault((c.name, c.kind, c.stage), c)
        if (c.ok, -c.relative_error) < (before.ok, -before.relative_error):
            worst[c.name, c.kind, c.stage] = c
    return list(worst.values())


@dataclass(frozen=True)
class _Check:
    """The stages of a plan and the model that they were made of, on some inputs after the other.

    Attributes:
        plan: As of `verify_stages`, and so on.
        bounds: Values for which a tolerance of their own is known.
        measured: Whether coarse roundings of the model's own say how much less is allowed.
    """

    plan: Plan
    emitted: Emitted
    model: Loaded
    seed: int
    tolerance: float
    bounds: Mapping[str, Allowed]
    measured: bool
    progress: Progress

    def frames(self) -> list[_Frame]:
        """Inputs, and what the model as written makes of them: one set per kind of floats.

        A ReLU that is dead or a tanh that is saturated on one of them hides what feeds it. In
        training, gradients are compared on inputs like the example.
        """
        inputs, graph = self.emitted.inputs(self.seed), self.model.graph
        self.progress("running the original model")
        if inputs is None and not self.plan.trains:
            count = len(KINDS) * (FRAMES if self.model.inner else 1)
            numbers = range(count * self.seed, count * (self.seed + 1))
            return [(k, *self.choose(k)) for k in numbers]
        inputs = draw(graph, self.model.example_inputs, self.seed) if inputs is None else inputs
        return [(None, inputs, self._as_written(inputs))]

    def _as_written(self, inputs: Tensors) -> dict[str, Tensor]:
        """What the model as written makes of inputs; it draws the same numbers whenever it runs."""
        torch.default_generator.manual_seed(self.seed)
        return self.model.original(inputs)

    def choose(self, number: int, trials: int = 1) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs that suit the model, by a seed, and what it makes of them."""
        graph, original = self.model.graph, self.model.original
        if count_draws(graph):
            original = self._as_written
        examples = self.model.example_inputs
        return choose_inputs(graph, examples, original, number, self.tolerance, trials)

    def compare(self, given: Tensors, originals: dict[str, Tensor]) -> list[Comparison]:
        """What the stages yield of one set of inputs, compared with what they should."""
        check_outputs(self.plan, list(originals))
        self.progress("running the traced graph")
        results, apart = self._run_stages(given), self.drawn_by_stages
        if find_unpacked(self.plan.graph):
            ran = list(results)
            want, found = self._expect_packed(given, originals, ran)
            results = iter(ran)
        elif apart:
            ran = list(results)
            sent = {name: t for name, kind, _, t in ran if kind is OutputKind.VALUE}
            want, found = self._expect_drawn(given, originals, sent)
            results = iter(ran)
        else:
            want, found = self._expect(given, originals)
        crossing = {c.value for c in self.plan.channels} & self.model.graph.nodes.keys()
        noise = measure_noise(self.model.graph, given, crossing) if self.measured else {}
        for name, kind, stage, got in results:
            if (kind, name) in apart:
                continue
            if (kind, name) not in want:
                raise PlanError("the source does not compute a value of the plan", got=name)
            share = STEPS_OFF if self.model.inner and kind not in DECLARED else 0.0
            most = min(self.tolerance, noise.get((kind, name), self.tolerance))
            allowed = self.bounds.get(name, Allowed(most, share=share))
            expected = want[kind, name]
            found.append(compare(got, expected, allowed, name=name, kind=kind, stage=stage))
        return found

    def _run_stages(self, inputs: Tensors) -> Iterator[tuple[str, OutputKind, int, Tensor]]:
        """What the stages yield; each draw has its own seed, as stages draw in another order."""
        with drawing(partial(stream, self.seed, 0)):
            yield from run_chain(self.plan, self.emitted.stages, inputs, self.progress)

    def _expect(self, inputs: Tensors, originals: Tensors) -> Ran:
        """What all that stages yield should be; and where the traced graph is farthest off."""
        graph, inner = self.model.graph, self.model.inner
        declared = {(k, n): t for k in DECLARED for n, t in originals.items()}
        own = self._references(inputs)
        if count_draws(graph):
            return own, self._compare_traces(inputs, declared)
        if inner is None:
            return {**own, **declared}, []
        crossing = {c.value for c in self.plan.channels}
        kept, checks = run_graph(graph, inputs, crossing, inner(inputs), self.tolerance)
        checks += self._of_outputs(kept, originals)
        farthest = [min(checks, key=lambda c: (c.ok, -c.relative_error))] if checks else []
        return (own if self.emitted.traced else {**own, **kept, **declared}), farthest

    def _compare_traces(
        self, inputs: Tensors, declared: Mapping[Yield, Tensor]
    ) -> list[Comparison]:
        """The traced graph against the model as written, which draws in one stream."""
        torch.default_generator.manual_seed(self.seed)
        traces, _ = run_graph(self.model.graph, inputs, set())
        at = [key for key in declared if key in traces and key not in self.drawn_by_file]
        return [self._compare_node(traces[key], declared[key], key[1]) for key in at]

    def _expect_drawn(self, inputs: Tensors, originals: Tensors, sent: Tensors) -> Ran:
        """What stages make of the random values that they have sent."""
        declared = {(k, n): t for k in DECLARED for n, t in originals.items()}
        drawn = find_drawn(self.plan.graph)
        given = {n: t for n, t in sent.items() if n in drawn}
        want, _ = self._run(self.planned, inputs, set(sent), given, self.tolerance)
        return want, self._compare_traces(inputs, declared)

    @property
    def drawn_by_stages(self) -> set[Yield]:
        """What follows random numbers that stages draw otherwise than torch, by no cut apart."""
        if self.emitted.traced:
            return set()
        return _list_drawn(self.plan.graph, {c.value for c in self.plan.channels})

    @property
    def drawn_by_file(self) -> set[Yield]:
        """Outputs that follow random numbers which the file's own engine draws."""
        return _list_drawn(self.model.graph, set()) if self.model.draws_apart else set()

    def _compare_node(self, found: Tensor, want: Tensor, name: str) -> Comparison:
        """A node of the traced graph, compared with what the model as written says."""
        return compare(found, want, self.tolerance, name=name, kind=NODE, stage=0)

    def _of_outputs(self, kept: Mapping[Yield, Tensor], originals: Tensors) -> list[Comparison]:
        ends = [(n, t) for (kind, n), t in kept.items() if kind in DECLARED]
        return [self._compare_node(t, originals[n], n) for n, t in ends]

    def _expect_packed(
        self,
        inputs: Tensors,
        originals: Tensors,
        ran: Sequence[tuple[str, OutputKind, int, Tensor]],
    ) -> Ran:
        """What stages yield that pack what they send; how far the plan's graph is off without it.

        The plan's graph is run twice. With the packed values that the stages sent in place of
        its own, which may be a step apart, it says what the stages make of them. With the traced
        graph's values in place of those that it unpacks, which may be a step of packing apart, it
        must yield the outputs of the model as written.
        """
        graph, pairs = self.planned, find_unpacked(self.plan.graph)
        sent = {name: t for name, kind, _, t in ran if kind is OutputKind.VALUE}
        packed = {n: t for n, t in sent.items() if origin(graph.node(n)).op == PACK}
        want, checks = self._run(graph, inputs, set(sent), packed, self.tolerance)
        plain, _ = self._run(self.model.graph, inputs, set(pairs.values()))
        reference = {n: plain[OutputKind.VALUE, value] for n, value in pairs.items()}
        kept, more = self._run(graph, inputs, set(), reference, packing_step(graph))
        return want, [*checks, *more, *self._of_outputs(kept, originals)]

    @property
    def planned(self) -> Graph:
        """The plan's graph with the weights of the source, and those that a pass made."""
        source = self.model.graph.weights
        new = {n: t for n, t in self.plan.graph.weights.items() if n not in source}
        return self.plan.graph.replace(weights={**source, **new})

    def _references(self, inputs: Tensors) -> dict[Yield, Tensor]:
        """What the traced graph computes; what a pass made, from the plan's graph."""
        source, values = self.model.graph, {c.value for c in self.plan.channels}
        want, _ = self._run(source, inputs, values)
        made = (values - source.nodes.keys()) & self.plan.graph.nodes.keys()
        return {**self._run(self.planned, inputs, made)[0], **want} if made else want

    def _run(
        self, graph: Graph, inputs: Tensors, values: set[str], reference: Tensors | None = None,
        tolerance: float = 0.0,
    ) -> Ran:  # fmt: skip
        """As `run_graph`, each draw with a seed of its own."""
        of = seed_graph(graph, number_draws(graph, [graph])[0])
        with drawing(partial(stream, self.seed, 0)):
            return run_graph(of, inputs, values, reference, tolerance)


def _list_drawn(graph: Graph, crossing: set[str]) -> set[Yield]:
    """Values that cross cuts, and outputs, that depend on random numbers; not on sent ones."""
    drawn = find_drawn(graph, crossing)
    values = {(OutputKind.VALUE, name) for name in crossing & drawn}
    return values | {(o.kind, o.name) for o in graph.outputs if o.node in drawn}
