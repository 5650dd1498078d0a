"""Every stage of an emitted training plan alone, on the values that torch computes for it.

    python -m benchmarks.fpga_training_apart DIRECTORY

`pipec verify` runs all stages one behind the other, so that the rounding of one goes into the next.
Here the kernels of each stage get what torch's stages send in float32, downwards and upwards, one
microbatch; what they send, their statistics, gradients and two updates are held against torch's
graphs of that stage alone and torch.optim.SGD, with the tolerance of `pipec verify` and its
judgement of ReLUs at zero and maxima at a tie (`pipec.backends.fpga.training.kinks`). Beside
them: in how many gradients of the whole model autograd in float32 is farther than that from
autograd in float64.

Seconds are processor seconds since the start, those of g++ and of the simulation included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import torch
from torch import Tensor

from benchmarks.fpga_csim import cpu
from pipec.backends.fpga.training.compare import compare_updates
from pipec.backends.fpga.training.kinks import copy_sides
from pipec.backends.fpga.training.run import TrainedRunner, load_training
from pipec.compiler.comparison import Comparison, compare
from pipec.compiler.inputs import draw
from pipec.compiler.verify_training import NOISE, add, gradients_of
from pipec.compiler.verify_training import compare_each as by_parameter
from pipec.frontends.load import reload
from pipec.graph.ir import Graph, OutputKind
from pipec.plan.store import load_plan
from pipec.runtime.program import Program, StageProgram
from pipec.runtime.stage import Outcome, StageRunner

TOLERANCE = 1e-4

Values = dict[str, Tensor]


@dataclass
class Truth:
    """A stage in torch.

    Attributes:
        stage: The stage.
        runner: The stage in torch.
        weights: Weights of the stage.
        arrived: What it reads; ``given`` the gradients of what it yields.
        saved: What its F saves.
        forward: What its F yields; ``backward`` what its B does.
    """

    stage: StageProgram
    runner: StageRunner
    weights: Values
    arrived: Values
    saved: Values
    forward: Outcome
    given: Values = field(default_factory=dict)
    backward: Outcome = field(default_factory=dict)


def truths(
    stages: Sequence[StageProgram], weights: Mapping[str, Tensor], inputs: Values
) -> list[Truth]:
    """F of all stages in torch, then B of all."""
    found, values, back = list[Truth](), Values(), Values()
    for stage in stages:
        runner, own = StageRunner(stage), {n: weights[n].detach() for n in stage.weights}
        arrived = {v: values[v] for v in stage.incoming}
        outcome = runner.forward(0, own, arrived, inputs)
        values |= outcome[OutputKind.VALUE]
        saved = dict(runner.saved.get(0, {}))
        found.append(Truth(stage, runner, own, {**inputs, **arrived}, saved, outcome))
    for t in reversed(found):
        assert t.stage.training is not None
        if t.stage.loss is not None:
            back[t.stage.loss] = torch.ones((), dtype=t.stage.loss_dtype)
        t.given = {n: back[n] for n in t.stage.training.gradients_in()}
        t.backward = backward(t, t.saved)
        add(back, t.backward[OutputKind.GRADIENT])
    return found


def backward(truth: Truth, saved: Values) -> Outcome:
    """B of a stage in torch on some saved values."""
    truth.runner.saved[0] = dict(saved)
    return truth.runner.backward("B", 0, truth.weights, truth.given)


def compare_values(
    found: Values, want: Mapping[str, Tensor], kind: str, stage: int
) -> list[Comparison]:
    """All floating point values; counters are the host's."""
    return [
        compare(found[n], w, TOLERANCE, name=n, kind=kind, stage=stage)
        for n, w in want.items()
        if w.is_floating_point()
    ]


def check_stage(truth: Truth, runner: TrainedRunner, source: Graph) -> tuple[list[Comparison], str]:
    """The kernels of a stage against torch, and how many sides were theirs."""
    stage = truth.stage
    runner.begin(1)
    outputs = runner.forward(0, truth.arrived)
    saved = runner.read_saved(0)
    kinds = (OutputKind.VALUE, OutputKind.BUFFER_UPDATE, OutputKind.LOSS)
    want = {name: value for kind in kinds for name, value in truth.forward[kind].items()}
    found = compare_values(outputs, want, "value", stage.index)
    sent = runner.backward(0, {n: g for n, g in truth.given.items() if n != stage.loss})
    sums = runner.gradients()

    def gradients(of: Outcome) -> list[Comparison]:
        places = dict.fromkeys(sums, stage.index)
        weights = by_parameter(sums, of[OutputKind.WEIGHT_GRADIENT], places, TOLERANCE)
        return compare_values(sent, of[OutputKind.GRADIENT], "gradient", stage.index) + weights

    outcome, sides = truth.backward, ""
    if not all(c.ok for c in gradients(outcome)):
        theirs, relus, maxima = copy_sides(stage, truth.saved, saved, TOLERANCE)
        outcome, sides = backward(truth, theirs), f"{relus} ReLU, {maxima} max"
    found += gradients(outcome)
    summed = outcome[OutputKind.WEIGHT_GRADIENT]
    return found + compare_updates(source, stage, summed, runner, TOLERANCE), sides


def largest(comparisons: Sequence[Comparison], kind: str) -> str:
    """The largest relative error of one kind."""
    found = max((c.relative_error for c in comparisons if c.kind == kind), default=0.0)
    return f"{found:.1e}"


def by_rounding(source: Graph, inputs: Values, names: set[str]) -> tuple[int, float]:
    """In how many gradients autograd in float32 and float64 differ by more, and the most."""
    single = gradients_of(source, inputs, names, 0)
    wide = {n: w.double() if w.is_floating_point() else w for n, w in source.weights.items()}
    turned = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    double = gradients_of(source.replace(weights=wide), turned, names, 0)
    floor = NOISE * max(float(g.abs().max()) for g in double.values())
    errors = [
        float((single[n] - g).abs().max()) / max(float(g.abs().max()), floor)
        for n, g in double.items()
    ]
    return sum(e > TOLERANCE for e in errors), max(errors)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
def main(directory: Path) -> None:
    """Print one row per stage; exit 1 if any value is off by more than 1e-4."""
    plan = load_plan(directory)
    loaded = reload(plan.graph.source)
    inputs = draw(loaded.graph, loaded.example_inputs, 0)
    start, right, total = cpu(), 0, 0
    print("stage     values  gradients    updates       right  sides           seconds")
    every = truths(Program.of(plan).stages, loaded.graph.weights, inputs)
    for truth in every:
        (folder,) = directory.glob(f"stage{truth.stage.index}_*")
        (runner,) = load_training([folder])
        found, sides = check_stage(truth, runner, loaded.graph)
        good = sum(c.ok for c in found)
        right, total = right + good, total + len(found)
        errors = [largest(found, kind) for kind in ("value", "gradient", "update")]
        print(
            f"{truth.stage.index:5} {errors[0]:>10} {errors[1]:>10} {errors[2]:>10} "
            f"{good:>5} of {len(found):>3}  {sides:15} {cpu() - start:7.0f}",
            flush=True,
        )
    names = {n for t in every for n in t.backward[OutputKind.WEIGHT_GRADIENT]}
    off, most = by_rounding(loaded.graph, inputs, names)
    print(f"{right} of {total} right")
    print(f"autograd in float32 and float64: {off} of {len(names)} gradients differ, {most:.1%}")
    raise SystemExit(right != total)


if __name__ == "__main__":
    main()
