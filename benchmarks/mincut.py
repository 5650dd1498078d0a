"""What recomputing takes on equal limits: torch's min-cut, plain checkpointing, and our choice.

One stage, one microbatch, nothing leaves: a transformer of four layers. torch's partitioner
(`torch._functorch.partitioners`) cuts the joint graph at budgets of activation memory; plain
activation checkpointing keeps each layer's input. Ours is given as many bytes of saved values as
either kept. What is computed again is timed by one roofline for all; saved bytes are those of
values and of the model's input, not of weights. ``python -m benchmarks.mincut``.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch._functorch.config as functorch
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module
from torch._functorch.partitioners import min_cut_rematerialization_partition

from pipec.autodiff.rewrite import Replays
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.residency import StageWork, list_saved, list_work
from pipec.compiler.working import values_of
from pipec.cost.count import count
from pipec.cost.model import Roofline
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source, nbytes
from pipec.graph.torch_private import OpOverload, is_view
from pipec.residency.choose import DoesNotFitError, choose
from pipec.residency.problem import RECOMPUTE, IntArray, Problem, Working

LAYERS, WIDTH, LENGTH, BATCH = 4, 256, 128, 8
BUDGETS = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.0)
CLUSTER = parse_cluster("1xh100")


def model() -> nn.Module:
    """Encoder layers without dropout."""
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True)
        for _ in range(LAYERS)
    ]
    return nn.Sequential(*layers)


def loss_of(y: torch.Tensor) -> torch.Tensor:
    """A mean of squares."""
    return y.square().mean()


class Trained(nn.Module):
    """The model with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return loss_of(self.model(x))


def work() -> StageWork:
    """The whole model as one stage, each node as slow as its roofline."""
    x = torch.randn(BATCH, LENGTH, WIDTH)
    graph = trace(model(), (x,), loss=Loss(loss_of), source=Source("memory", ""))
    passes = "simplify,annotate-cost,partition{stages=1},insert-comm,differentiate,time-stages"
    (found,) = list_work(make_plan(graph, CLUSTER, passes=parse_pipeline(passes)))
    return replace(found, forward_seconds=seconds(found.training.F.module))


def seconds(module: fx.GraphModule, only: frozenset[str] | None = None) -> float:
    """Of the nodes of a graph, or of some of them, by the roofline."""
    counts, roofline = count(Graph(module, (), (), {})), Roofline()
    return sum(
        roofline.seconds(n, counts[n.name], CLUSTER.devices[0])
        for n in module.graph.nodes
        if n.op == "call_function" and (only is None or n.name in only)
    )


def min_cut(budget: float) -> tuple[float, float]:
    """(bytes of saved values, seconds that the backward computes again) at a budget."""
    found: list[tuple[float, float]] = []

    def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
        results = list(joint.graph.find_nodes(op="output")[0].args[0])[: options["num_fwd_outputs"]]
        ahead = set[fx.Node](r for r in results if isinstance(r, fx.Node))
        for node in reversed(joint.graph.nodes):
            ahead |= set(node.all_input_nodes) if node in ahead else set()
        saved = list(forward.graph.find_nodes(op="output")[0].args[0])[options["num_fwd_outputs"] :]
        again = frozenset(n.name for n in ahead if n.op == "call_function")
        kept = {base(n) for n in saved if isinstance(n, fx.Node)}
        held = sum(nbytes(n) for n in kept if is_counted(n))
        found.append((held, seconds(backward, again)))
        return forward, backward

    x = torch.randn(BATCH, LENGTH, WIDTH)
    with functorch.patch(activation_memory_budget=budget):
        aot_module(
            Trained(), fw_compiler=leave_graph, bw_compiler=leave_graph,
            partition_fn=partition,
        )(x).backward()  # fmt: skip
    return found[0]


def is_counted(node: fx.Node) -> bool:
    """Whether a saved value counts: what was computed, and the model's input; no weight."""
    of_input = node.op == "placeholder" and node.meta["val"].shape == (BATCH, LENGTH, WIDTH)
    return node.op == "call_function" or of_input


def leave_graph(module: fx.GraphModule, inputs: Any) -> Any:
    """A compiler that leaves a graph as it is."""
    del inputs
    return make_boxed_func(module.forward)


def base(node: fx.Node) -> fx.Node:
    """The value that a view shows: several views of one value are saved once."""
    while isinstance(node.target, OpOverload) and is_view(node.target):
        node = node.all_input_nodes[0]
    return node


def measure_checkpointing(one: StageWork) -> tuple[float, float]:
    """The same of plain activation checkpointing: every layer's input is kept."""
    return LAYERS * BATCH * LENGTH * WIDTH * 4, one.forward_seconds


def ours(one: StageWork, limit: float) -> tuple[float, float]:
    """(bytes, seconds) of the choice that keeps no more bytes of saved values."""
    names = list_saved(one.training)
    nodes = one.training.F.nodes

    def bytes_held(again: frozenset[str]) -> float:
        read = Replays(one.training, again).read
        return float(sum(nbytes(nodes[n]) for n in read if is_counted(nodes[n])))

    def working(decision: IntArray) -> Working:
        again = frozenset(names[v] for v in np.flatnonzero(decision == RECOMPUTE))
        left = float(sum(size[n] for n in names if n not in again))
        return Working(max(bytes_held(again) - left, 0.0), 0.0, ())

    sizes, again = values_of(one)
    sizes = np.where([is_counted(nodes[n]) for n in names], sizes, 0.0)
    size = dict(zip(names, sizes.tolist(), strict=True))
    problem = Problem(
        sizes, again, one.forward_seconds, 2 * one.forward_seconds, limit, 0.0,
        together=[{0: 0.0}], working=working,
    )  # fmt: skip
    found = choose(problem)
    chosen = frozenset(names[v] for v in np.flatnonzero(found.decision == RECOMPUTE))
    again_in_b = Replays(one.training, chosen).of("B").computed
    return bytes_held(chosen), sum(one.forward.get(n, 0.0) for n in again_in_b)


def main() -> int:
    """Print a row per limit; 1 if ours is slower anywhere."""
    one = work()
    print(
        f"forward {1e6 * one.forward_seconds:.0f} us by the roofline of {CLUSTER.devices[0].kind}"
    )
    print("limit of               saved MB   again us   ours MB   ours us")
    slower = kept = 0
    rivals = {f"min-cut, budget {b:.2f}": min_cut(b) for b in BUDGETS}
    for name, (limit, took) in {**rivals, "checkpointing": measure_checkpointing(one)}.items():
        row = f"{name:22} {limit / 1e6:8.2f} {1e6 * took:10.1f}"
        try:
            held, own = ours(one, limit)
        except DoesNotFitError as error:
            print(f"{row}   at least {error.least / 1e6:.2f} MB")
            continue
        kept, slower = kept + 1, slower + (own > took * (1 + 1e-6))
        print(f"{row} {held / 1e6:9.2f} {1e6 * own:9.1f}")
    print(f"slower in {slower} of {kept} limits that can be kept")
    return int(slower > 0)


if __name__ == "__main__":
    raise SystemExit(main())
