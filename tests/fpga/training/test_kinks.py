"""ReLUs at zero and maxima at a tie: kernels and torch may take unlike sides."""

from functools import cache
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pipec
from pipec.backends.fpga.training.kinks import apply_sides
from pipec.compiler.verify_training import add, chain_stages, gradients_of
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import InputKind, Source
from pipec.plan.model import Plan
from pipec.runtime.program import Program
from tests.autodiff.chain import cut
from tests.runtime.pipelines import scheduled, staged_graph
from tests.trained import trained_mlp

WIDTH, ROWS, BATCHES = 6, 4, 2
Tensors = dict[str, Tensor]
Saved = dict[tuple[int, int], Tensors]


@cache
def plan() -> Plan:
    graph = trained_mlp(3, width=WIDTH, batch=ROWS)
    cut_in_two = staged_graph(graph, cut(graph, 2))
    return cut_in_two.replace(schedule=scheduled(cut_in_two, "gpipe", BATCHES))


def batches() -> list[Tensors]:
    generator = torch.Generator().manual_seed(0)
    names = [i.name for i in plan().graph.inputs_of(InputKind.INPUT)]
    return [{n: torch.randn(ROWS, WIDTH, generator=generator) for n in names}
            for _ in range(BATCHES)]  # fmt: skip


def weights(units: set[int], argument: float) -> Tensors:
    """Every weight of some units of the middle layer is zero: their arguments are their biases."""
    generator = torch.Generator().manual_seed(1)
    found = {n: torch.randn(w.shape, generator=generator) for n, w in plan().graph.weights.items()}
    for unit in units:
        found["2.weight"][unit] = 0.0
        found["2.bias"][unit] = argument
    return found


def saved_with(held: Tensors) -> Saved:
    """What the stages save with these weights."""
    return saved_by(plan(), held, batches())


def saved_by(made: Plan, held: Tensors, frames: list[Tensors]) -> Saved:
    """What the stages of a plan save."""
    found: Saved = {}
    for k, inputs in enumerate(frames):

        def kept(stage: int, saved: Tensors, at: int = k) -> Tensors:
            found[stage, at] = saved
            return saved

        chain_stages(Program.of(made).stages, held, inputs, 0, kept)
    return found


def autograd(held: Tensors) -> Tensors:
    """Sums of gradients over the microbatches."""
    found: Tensors = {}
    for inputs in batches():
        add(found, gradients_of(plan().graph.replace(weights=held), inputs, set(held), 0))
    return found


@given(st.sets(st.integers(0, WIDTH - 1), min_size=1, max_size=2), st.sampled_from([1e-7, -1e-7]))
def test_gradients_on_the_other_side_of_zero_are_explained(units: set[int], theirs: float) -> None:
    here, there = weights(units, -theirs), weights(units, theirs)
    sides = apply_sides(
        Program.of(plan()).stages, here, batches(), 0, saved_with(there), tolerance=1e-5
    )
    assert (sides.relus, sides.maxima) == (len(units) * ROWS * BATCHES, 0)
    got, want = autograd(here), autograd(there)
    assert any(not torch.allclose(got[n], want[n], atol=1e-3) for n in want)
    add(got, sides.gradients)
    for name, gradient in want.items():
        assert torch.allclose(got[name], gradient, atol=1e-4), name


def test_values_further_from_zero_than_rounding_explain_nothing() -> None:
    """A kernel that is wrong there stays wrong, and so does one that saved other values."""
    stages, units = Program.of(plan()).stages, {1, 4}
    here, there = weights(units, -1e-7), weights(units, 1e-3)
    assert apply_sides(stages, here, batches(), 0, saved_with(there), 1e-5).gradients == {}
    same = {at: {n: 1.5 * v for n, v in s.items()} for at, s in saved_with(here).items()}
    assert apply_sides(stages, here, batches(), 0, same, 1.0).relus == 0


SIZE = 6
POOLS = [(2, 2, 0, 1), (3, 2, 1, 1), (2, 1, 1, 2)]
"""Kernel, stride, padding and dilation: windows side by side, overlapping, and with gaps."""


@cache
def pooled(shape: tuple[int, int, int, int]) -> Plan:
    """A convolution of one pixel, a max pooling and a linear layer, in two stages."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 2, 1), nn.MaxPool2d(*shape), nn.Flatten())
    flat = body(torch.zeros(1, 2, SIZE, SIZE)).shape[1]
    graph = trace(
        nn.Sequential(*body, nn.Linear(flat, 3)),
        (torch.zeros(1, 2, SIZE, SIZE),),
        loss=Loss(nn.functional.mse_loss, torch.zeros(1, 3)),
        source=Source("memory", "pooled"),
    )
    made = staged_graph(graph, cut(graph, 2))
    return made.replace(schedule=scheduled(made, "gpipe", 1))


def tied(made: Plan, pixels: tuple[int, int], gap: float) -> tuple[Tensors, Tensors]:
    """Weights, and an image of which channel 0 has its two largest values at these pixels.

    They lie ``gap`` apart behind the convolution, but are made of unlike values.
    """
    generator = torch.Generator().manual_seed(2)
    held = {n: torch.randn(w.shape, generator=generator) for n, w in made.graph.weights.items()}
    held["0.weight"][0] = torch.tensor([1.0, 2.0]).view(2, 1, 1)
    x = torch.rand(1, 2, SIZE * SIZE, generator=generator)
    x[0, :, pixels[0]] = torch.tensor([4.0 + gap, 0.5])
    x[0, :, pixels[1]] = torch.tensor([1.0, 2.0])
    nodes, found = made.graph.nodes, made.graph.inputs_of(InputKind.INPUT)
    shapes = {i.name: nodes[i.node].meta["val"].shape for i in found}
    return held, {n: x.view(s) if len(s) == 4 else torch.ones(s) for n, s in shapes.items()}


def gradients(made: Plan, held: Tensors, inputs: Tensors) -> Tensors:
    return gradients_of(made.graph.replace(weights=held), inputs, set(held), 0)


@given(st.sampled_from(POOLS), st.booleans(), st.booleans())
def test_gradients_of_another_maximum_are_explained(
    shape: tuple[int, int, int, int], first: bool, across: bool
) -> None:
    """Two pixels of one window, of which another run finds the other one larger."""
    made, step = pooled(shape), shape[3] if across else shape[3] * SIZE
    pixels, gap = (2 * SIZE + 2, 2 * SIZE + 2 + step), 4e-6 if first else -4e-6
    held, here = tied(made, pixels, gap)
    _, there = tied(made, pixels, -gap)
    saved = saved_by(made, held, [there])
    sides = apply_sides(Program.of(made).stages, held, [here], 0, saved, tolerance=1e-5)
    got, want = gradients(made, held, here), gradients(made, held, there)
    assert sides.relus == 0
    assert sides.maxima >= 1
    assert not torch.allclose(got["0.weight"], want["0.weight"], rtol=1e-2)
    add(got, sides.gradients)
    for name, gradient in want.items():
        assert torch.allclose(got[name], gradient, rtol=1e-4, atol=1e-4), name


@given(st.sampled_from(POOLS), st.sampled_from(["far", "outside", "smaller"]))
def test_other_places_explain_nothing(shape: tuple[int, int, int, int], wrong: str) -> None:
    """Places of values that are not nearly the largest, of another window, or chosen wrongly."""
    made, pixels = pooled(shape), (2 * SIZE + 2, 2 * SIZE + 2 + shape[3])
    gap = {"far": 1e-2, "outside": 1e-6, "smaller": 1e-6}[wrong]
    held, here = tied(made, pixels, gap)
    saved = saved_by(made, held, [tied(made, pixels, -gap if wrong == "far" else gap)[1]])
    (places,) = (v for s in saved.values() for v in s.values() if not v.is_floating_point())
    if wrong == "smaller":  # the kernel's own values say that the first pixel is larger
        places[places == pixels[0]] = pixels[1]
    if wrong == "outside":
        places[0, 0, 0, 0] = SIZE * SIZE - 1
        places[0, 0, -1, -1] = SIZE * SIZE * 7
    stages = Program.of(made).stages
    assert apply_sides(stages, held, [here], 0, saved, 1e-5).gradients == {}
    if wrong == "outside":
        assert apply_sides(stages, held, [here], 0, saved, 1e9).maxima == 0


def test_a_gradient_that_is_zero_but_for_rounding_is_no_error(tmp_path: Path) -> None:
    """Of a bias in front of a normalisation: verified from the files, as a user does."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
    model, x = nn.Sequential(*layers), torch.randn(2, 3, 6, 5)

    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    out = tmp_path / "out"
    plan = pipec.compile(model, x, "1xvcu118", target="fpga", loss=loss, microbatches=2)
    plan.save(out)
    report = pipec.verify(out, model, x, loss=loss)
    assert report.ok, [c for c in report.boundaries if not c.ok]
    assert "0.bias" in [c.name for c in report.boundaries if c.kind == "gradient"]
