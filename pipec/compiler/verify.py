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
may be one step off at `STEPS_OFF` of the places.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, fx

from pipec.compiler.backend import Emitted, load_backend
from pipec.compiler.chain import StageRunner, run_chain
from pipec.compiler.comparison import Allowed, Comparison, compare
from pipec.compiler.inputs import KINDS, choose_inputs, draw
from pipec.compiler.same_model import DECLARED, check_outputs, check_same_model
from pipec.compiler.sizes import AsWritten, compare_sizes
from pipec.compiler.tolerance import packing_step
from pipec.compiler.verify_training import compare_gradients
from pipec.errors import PlanError
from pipec.graph.copies import PACK, unpacked
from pipec.graph.ir import Graph, OutputKind, origin
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from pipec.runtime.draws import drawing, draws, numbered, seeded, stream

STEPS_OFF = 0.02
"""Share of the places of an integer tensor at which another engine may round to the other side."""

STEEP_TRIALS = 4
"""Where something is off, so many trials and roundings see whether the model is that steep there:
in sums of large numbers that cancel, other kernels' roundings are not small."""

FRAMES = 3
"""Times as many inputs for quantised models, whose few results of few steps hide much."""

NODE = "node"
"""Kind of the comparison of a node of the traced graph with the file's own engine."""

Tensors = Mapping[str, Tensor]
Yield = tuple[OutputKind, str]
_Frame = tuple[int | None, Mapping[str, Tensor], dict[str, Tensor]]
"""The seed of inputs that were chosen for the model, inputs, what it makes of them."""
_Ran = tuple[dict[Yield, Tensor], list[Comparison]]
Progress = Callable[[str], None]
"""Told what is being done."""


class Reference(AsWritten, Protocol):
    """The model as a front end reads it (`pipec.frontends.base.Loaded`)."""

    @property
    def gradients(self) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None:
        """Its gradients by eager autograd, where they can be had."""
        ...


@runtime_checkable
class Trains(Protocol):
    """A target that emits code for the backward pass and the update too."""

    def compare_training(
        self,
        plan: Plan,
        stages: Sequence[StageRunner],
        reference: Reference,
        tolerance: float,
        seed: int,
    ) -> list[Comparison]:
        """Gradients and updates of the emitted stages against autograd and the optimizer."""
        ...


@runtime_checkable
class Streams(Protocol):
    """A target whose stages run all at the same time, joined as their devices are."""

    def verify_chain(
        self,
        plan: Plan,
        directory: Path,
        reference: Reference,
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
        ...


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        tolerance: Largest relative error that was allowed.
        seed: Seed of the inputs.
        boundaries: One comparison per value that crosses a cut and per output, in order; then
            one per gradient of a parameter if the plan trains.
    """

    tolerance: float
    seed: int
    boundaries: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is within the tolerance."""
        return all(b.ok for b in self.boundaries)

    @property
    def max_abs_error(self) -> float:
        """Largest difference of all floating point values."""
        return max((b.max_abs_error for b in self.boundaries), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """JSON data: ``ok``, ``max_abs_error``, ``tolerance``, ``seed``, ``boundaries``."""
        return {
            "ok": self.ok,
            "max_abs_error": self.max_abs_error,
            "tolerance": self.tolerance,
            "seed": self.seed,
            "boundaries": [asdict(b) for b in self.boundaries],
        }


def verify_artifacts(
    directory: Path,
    reference: Reference,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    allowed: Collection[str] = (),
    progress: Progress = lambda _: None,
) -> VerifyReport:
    """Load a plan and its stages from a directory and verify them; see `verify_stages`.

    Args:
        directory: The output of a compilation.
        reference: The model, read from its source.
        seed: Seed of the inputs.
        tolerance: Largest relative error; the backend's by default.
        allowed: Op namespaces beyond pipec's own that the plan may use.
        progress: Told what is being done.

    Raises:
        PlanError: A file was changed, or the plan was made of another model.
        BackendError: A stage cannot be loaded.
    """
    progress("checking files")
    plan = load_plan(directory, allowed=allowed)
    progress("loading the stages")
    emitted = load_backend(plan.target).load(plan, directory)
    return verify_stages(
        plan, emitted, reference, tolerance=tolerance, seed=seed, progress=progress
    )


@torch.random.fork_rng(devices=[])  # the caller's random numbers go on as if this never ran
def verify_stages(
    plan: Plan,
    emitted: Emitted,
    reference: Reference,
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
        progress: Told what is being done.

    Raises:
        PlanError: The plan was made of another model.
    """
    check_same_model(plan, reference.graph)
    bounds = emitted.bounds if tolerance is None else {}
    tolerance = emitted.tolerance if tolerance is None else tolerance
    frames = _frames(plan, reference, emitted.inputs(seed), seed, tolerance, progress)
    compared: list[Comparison] = []
    for number, given, originals in frames:
        compare_all = partial(
            _compared, plan, emitted, reference, seed, tolerance, bounds, progress
        )
        found = compare_all(given, originals)
        if number is not None and not all(c.ok for c in found):
            found = compare_all(*_chosen(reference, number, seed, tolerance, STEEP_TRIALS))
        compared += found
    sizes = compare_sizes(
        plan, emitted.stages, reference, emitted.axes, tolerance, seed, traced=emitted.traced,
        progress=progress,
    )  # fmt: skip
    found = [*_worst(compared), *(comparison for _, comparison in sizes)]
    if plan.schedule is not None and plan.schedule.training:
        progress("comparing gradients")
        backend = load_backend(plan.target)
        if isinstance(backend, Trains):
            found += backend.compare_training(plan, emitted.stages, reference, tolerance, seed)
        else:
            more = draw(reference.graph, reference.example_inputs, seed + 1)
            first = [frames[0][1], more][: plan.schedule.microbatches]
            source, eager = reference.graph, reference.gradients
            if unpacked(plan.graph):
                source, eager = _with_weights(plan, source), None
                tolerance += packing_step(plan.graph)
            found += compare_gradients(plan, source, first, tolerance, seed, eager)
    return VerifyReport(tolerance, seed, tuple(found))


def _compared(
    plan: Plan,
    emitted: Emitted,
    reference: Reference,
    seed: int,
    tolerance: float,
    bounds: Mapping[str, Allowed],
    progress: Progress,
    given: Tensors,
    originals: dict[str, Tensor],
) -> list[Comparison]:
    """What the stages yield of one set of inputs, compared with what they should."""
    check_outputs(plan, list(originals))
    progress("running the traced graph")
    results = _played(plan, emitted, given, seed, progress)
    if unpacked(plan.graph):
        ran = list(results)
        want, found = _packed(plan, reference.graph, given, originals, ran, seed, tolerance)
        results = iter(ran)
    else:
        traced = emitted.traced
        want, found = _wanted(plan, reference, given, originals, seed, tolerance, traced)
    for name, kind, stage, got in results:
        if (kind, name) not in want:
            raise PlanError("the source does not compute a value of the plan", got=name)
        share = STEPS_OFF if reference.inner and kind not in DECLARED else 0.0
        allowed = bounds.get(name, Allowed(tolerance, share=share))
        expected = want[kind, name]
        found.append(compare(got, expected, allowed, name=name, kind=kind, stage=stage))
    return found


def _played(
    plan: Plan, emitted: Emitted, inputs: Tensors, seed: int, progress: Progress
) -> Iterator[tuple[str, OutputKind, int, Tensor]]:
    """What the stages yield; each draw has its own seed, as stages draw in another order."""
    with drawing(partial(stream, seed, 0)):
        yield from run_chain(plan, emitted.stages, inputs, progress)


def _worst(compared: list[Comparison]) -> list[Comparison]:
    """Return of each value the comparison that is furthest off, over all inputs."""
    worst: dict[tuple[str, str, int], Comparison] = {}
    for c in compared:
        before = worst.setdefault((c.name, c.kind, c.stage), c)
        if (c.ok, -c.relative_error) < (before.ok, -before.relative_error):
            worst[c.name, c.kind, c.stage] = c
    return list(worst.values())


def _frames(
    plan: Plan,
    reference: Reference,
    inputs: Mapping[str, Tensor] | None,
    seed: int,
    tolerance: float,
    progress: Progress,
) -> list[_Frame]:
    """Inputs, and what the model as written makes of them: one set per kind of floats.

    A ReLU that is dead or a tanh that is saturated on one of them hides what feeds it. In training,
    gradients are compared on inputs like the example.
    """
    graph, examples = reference.graph, reference.example_inputs
    progress("running the original model")
    if inputs is None and not plan.trains:
        count = len(KINDS) * (FRAMES if reference.inner else 1)
        numbers = range(count * seed, count * (seed + 1))
        return [(k, *_chosen(reference, k, seed, tolerance)) for k in numbers]
    inputs = draw(graph, examples, seed) if inputs is None else inputs
    return [(None, inputs, _as_written(reference, seed)(inputs))]


def _as_written(reference: Reference, seed: int) -> Callable[[Tensors], dict[str, Tensor]]:
    """The model as written, which draws the same numbers whenever it runs."""

    def run(inputs: Tensors) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return reference.original(inputs)

    return run


def _chosen(
    reference: Reference, number: int, seed: int, tolerance: float, trials: int = 1
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    graph, examples, original = reference.graph, reference.example_inputs, reference.original
    if draws(graph):
        original = _as_written(reference, seed)
    return choose_inputs(graph, examples, original, number, tolerance, trials)


def _wanted(
    plan: Plan,
    reference: Reference,
    inputs: Tensors,
    originals: Tensors,
    seed: int,
    tolerance: float,
    traced: bool,
) -> tuple[dict[Yield, Tensor], list[Comparison]]:
    """What everything that stages yield should be; and where the traced graph is farthest off."""
    declared = {(k, n): t for k in DECLARED for n, t in originals.items()}
    if draws(reference.graph):
        torch.manual_seed(seed)  # the model as written draws in one stream
        traces, _ = _run_graph(reference.graph, inputs, set())
        pairs = [(traces[key], t, key[1]) for key, t in declared.items() if key in traces]
        checks = [compare(g, w, tolerance, name=n, kind=NODE, stage=0) for g, w, n in pairs]
        return _references(plan, reference.graph, inputs, seed), checks
    if reference.inner is None:
        return {**_references(plan, reference.graph, inputs, seed), **declared}, []
    kept, checks = _run_graph(
        reference.graph,
        inputs,
        {c.value for c in plan.channels},
        reference.inner(inputs),
        tolerance,
    )
    for (kind, name), t in kept.items():
        if kind in DECLARED:
            checks.append(compare(t, originals[name], tolerance, name=name, kind=NODE, stage=0))
    farthest = [min(checks, key=lambda c: (c.ok, -c.relative_error))] if checks else []
    own = _references(plan, reference.graph, inputs, seed)
    return (own if traced else {**own, **kept, **declared}), farthest


def _packed(
    plan: Plan,
    source: Graph,
    inputs: Tensors,
    originals: Tensors,
    ran: Sequence[tuple[str, OutputKind, int, Tensor]],
    seed: int,
    tolerance: float,
) -> tuple[dict[Yield, Tensor], list[Comparison]]:
    """What stages yield that pack what they send, and how far the plan's graph is off without it.

    The plan's graph is run twice. With the packed values that the stages sent in place of
    its own, which may be a step apart, it says what the stages make of them. With the traced
    graph's values in place of those that it unpacks, which may be a step of packing apart, it must
    yield the outputs of the model as written.
    """
    graph, pairs = _with_weights(plan, source), unpacked(plan.graph)

    sent = {name: t for name, kind, _, t in ran if kind is OutputKind.VALUE}
    packed = {n: t for n, t in sent.items() if origin(graph.node(n)).op == PACK}
    want, checks = _seeded_run(graph, inputs, set(sent), seed, packed, tolerance)
    plain, _ = _seeded_run(source, inputs, set(pairs.values()), seed)
    theirs = {n: plain[OutputKind.VALUE, value] for n, value in pairs.items()}
    kept, more = _seeded_run(graph, inputs, set(), seed, theirs, packing_step(graph))
    for (kind, name), t in kept.items():
        if kind in DECLARED:
            more.append(compare(t, originals[name], tolerance, name=name, kind=NODE, stage=0))
    return want, [*checks, *more]


def _with_weights(plan: Plan, source: Graph) -> Graph:
    """The plan's graph with the weights of the source, and those that a pass made."""
    new = {n: t for n, t in plan.graph.weights.items() if n not in source.weights}
    return plan.graph.replace(weights={**source.weights, **new})


def _references(plan: Plan, source: Graph, inputs: Tensors, seed: int) -> dict[Yield, Tensor]:
    """What the traced graph computes; what a pass made, from the plan's graph."""
    values = {c.value for c in plan.channels}
    want, _ = _seeded_run(source, inputs, values, seed)
    made = (values - source.nodes.keys()) & plan.graph.nodes.keys()
    if made:
        rewritten, _ = _seeded_run(_with_weights(plan, source), inputs, made, seed)
        want = {**rewritten, **want}
    return want


def _seeded_run(
    graph: Graph,
    inputs: Tensors,
    values: set[str],
    seed: int,
    theirs: Tensors | None = None,
    tolerance: float = 0.0,
) -> _Ran:
    of = seeded(graph, numbered(graph, [graph])[0])
    with drawing(partial(stream, seed, 0)):
        return _run_graph(of, inputs, values, theirs, tolerance)


def _run_graph(
    graph: Graph,
    inputs: Tensors,
    values: set[str],
    theirs: Tensors | None = None,
    tolerance: float = 0.0,
) -> _Ran:
    """Values by name, and all outputs, of the traced graph; other values are freed early.

    Args:
        graph: The graph, with weights.
        inputs: By name.
        values: Names of nodes whose values are wanted.
        theirs: What another engine computed for nodes: it is compared, and goes on instead.
        tolerance: Of floats among these; a rounding of their own dtype at the least.
    """
    kept: dict[Yield, Tensor] = {}
    checks: list[Comparison] = []

    def allowed(t: Tensor) -> Allowed:
        least = torch.finfo(t.dtype).eps if t.dtype.is_floating_point else 0.0
        return Allowed(max(tolerance, least), share=STEPS_OFF)

    class Capture(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            """Run a node and keep its value if it crosses a boundary."""
            result = super().run_node(n)
            if theirs and n.name in theirs:
                found, result = result, theirs[n.name]
                allow = allowed(result)
                checks.append(compare(found, result, allow, name=n.name, kind=NODE, stage=0))
            if n.name in values:
                kept[OutputKind.VALUE, n.name] = result
            return result

    args = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    with torch.no_grad():
        results = Capture(graph.module).run(*args)
    kept.update({(o.kind, o.name): r for o, r in zip(graph.outputs, results, strict=True)})
    return kept, checks
