"""ReLUs whose arguments lie within rounding of zero: kernels and torch may take unlike sides."""

from functools import cache

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipec.compiler.emitted import add
from pipec.compiler.kinks import other_sides
from pipec.compiler.verify_training import chained, gradients_of
from pipec.graph.ir import InputKind
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
    found: Saved = {}
    for k, inputs in enumerate(batches()):

        def kept(stage: int, saved: Tensors, at: int = k) -> Tensors:
            found[stage, at] = saved
            return saved

        chained(Program.of(plan()).stages, held, inputs, 0, kept)
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
    sides = other_sides(
        Program.of(plan()).stages, here, batches(), 0, saved_with(there), tolerance=1e-5
    )
    assert sides.elements == len(units) * ROWS * BATCHES
    got, want = autograd(here), autograd(there)
    assert any(not torch.allclose(got[n], want[n], atol=1e-3) for n in want)
    add(got, sides.gradients)
    for name, gradient in want.items():
        assert torch.allclose(got[name], gradient, atol=1e-4), name


def test_values_further_from_zero_than_rounding_explain_nothing() -> None:
    """A kernel that is wrong there stays wrong, and so does one that saved other values."""
    stages, units = Program.of(plan()).stages, {1, 4}
    here, there = weights(units, -1e-7), weights(units, 1e-3)
    assert other_sides(stages, here, batches(), 0, saved_with(there), 1e-5).gradients == {}
    same = {at: {n: 1.5 * v for n, v in s.items()} for at, s in saved_with(here).items()}
    assert other_sides(stages, here, batches(), 0, same, 1.0).elements == 0
