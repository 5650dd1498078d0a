"""Running a traced graph node by node, beside another engine or with more roundings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from pipec.compiler.comparison import Allowed, Comparison, coarsest, compare
from pipec.compiler.inputs import round_off
from pipec.errors import PipecError
from pipec.graph.ir import Graph, OutputKind
from pipec.graph.quantised import QUANTIZE
from pipec.runtime.draws import count_draws
from pipec.user_module import user_code

STEPS_OFF = 0.02
"""Share of the places of an integer tensor at which another engine may round to the other side."""

NODE = "node"
"""Kind of the comparison of a node of the traced graph with the file's own engine."""

_TIE = 2.0**-12
"""Steps from the middle between two integers at which float32 cannot tell its side: in means of
four integers every fourth place is a tie."""

COARSE = 1e-4
"""Roundings larger than this (16 bits and fewer) are measured rather than counted."""

ROUNDINGS, TRIALS = 8, 3
"""Times as far as so many trials moved a result by roundings, another engine may be off."""

Tensors = Mapping[str, Tensor]
Yield = tuple[OutputKind, str]
Ran = tuple[dict[Yield, Tensor], list[Comparison]]
"""Values and outputs, and comparisons with what another engine computed."""


def _settle(found: Tensor, reference: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """Integers that ``x / scale`` was rounded to, another engine's at ties one step apart."""
    if scale.numel() > 1 or found.shape != reference.shape:
        return found
    tie = ((x.double() / scale.double()).remainder(1) - 0.5).abs() < _TIE
    return torch.where(tie & ((found.int() - reference.int()).abs() == 1), reference, found)


def run_graph(
    graph: Graph,
    inputs: Tensors,
    values: set[str],
    reference: Tensors | None = None,
    tolerance: float = 0.0,
    seed: int | None = None,
) -> Ran:
    """Values by name, and all outputs, of the traced graph; other values are freed early.

    Args:
        graph: The graph, with weights.
        inputs: By name.
        values: Names of nodes whose values are wanted.
        reference: What another engine computed for nodes: it is compared, and goes on instead.
        tolerance: Tolerance for floats among these; a rounding of their own dtype at the least.
        seed: Every value is rounded once more, by chance of this seed.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    kept: dict[Yield, Tensor] = {}
    checks: list[Comparison] = []

    def allow_for(t: Tensor) -> Allowed:
        least = torch.finfo(t.dtype).eps if t.dtype.is_floating_point else 0.0
        return Allowed(max(tolerance, least), share=STEPS_OFF)

    class Capture(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if generator is not None and isinstance(result, Tensor):
                moved = round_off(result, generator)
                result = torch.where(moved.isfinite(), moved, result)
            if reference and n.name in reference:
                found, result = result, reference[n.name]
                if n.target == QUANTIZE:
                    found = _settle(found, result, *self.fetch_args_kwargs_from_env(n)[0][:2])
                allow = allow_for(result)
                checks.append(compare(found, result, allow, name=n.name, kind=NODE, stage=0))
            if n.name in values:
                kept[OutputKind.VALUE, n.name] = result
            return result

    args = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    with torch.no_grad():
        results = Capture(graph.module).run(*args)
    kept.update({(o.kind, o.name): r for o, r in zip(graph.outputs, results, strict=True)})
    return kept, checks


def measure_noise(graph: Graph, inputs: Tensors, values: set[str]) -> dict[Yield, float]:
    """Relative errors of values and outputs that coarse roundings of the model's own explain.

    Every value of the graph is rounded once more, in some trials (Monte Carlo arithmetic: Parker,
    UCLA CSD-970002, 1997). What 128 roundings for each node allow would hide in 16 bits what is a
    tenth too large. Nothing for graphs in float32, for those that draw random numbers, and where
    an op does not take what is rounded once more: a number of a row that a table does not have.
    """
    step = coarsest(graph)
    if step < COARSE or count_draws(graph):
        return {}
    exact, _ = run_graph(graph, inputs, values)
    found = dict.fromkeys(exact, 2 * step)
    for trial in range(TRIALS):
        try:
            with user_code("values that are rounded once more are not taken"):
                again, _ = run_graph(graph, inputs, values, seed=trial)
        except PipecError:
            return {}
        for key, t in again.items():
            c = compare(t, exact[key], 0.0, name=key[1], kind=key[0], stage=0)
            found[key] = max(found[key], ROUNDINGS * c.relative_error)
    return found
