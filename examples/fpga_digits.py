"""Training on two boards: the emitted kernels in C simulation beside torch, update for update.

A perceptron on scikit-learn's digits, cut over two VCU118, four microbatches per update. The boards
run F, B and the update as emitted C++ (compiled with g++); the host sends them the new weights.
"""

import copy
import tempfile
from pathlib import Path

import torch
from digits import data
from torch import nn
from torch.nn import functional

from pipec.backends.fpga.training.artifacts import reload_tables
from pipec.backends.fpga.training.run import EmittedPipeline, TrainedRunner
from pipec.backends.fpga.training.update import Sgd
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.frontends.torch_module import from_module
from pipec.plan.store import load_plan

MICROBATCHES, ROWS, UPDATES = 4, 32, 8


def main() -> None:
    """Train on boards and with torch."""
    torch.manual_seed(0)
    images, labels, *_ = data()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    loss = (functional.cross_entropy, labels[:ROWS])
    graph = from_module(copy.deepcopy(model), images[:ROWS], loss).graph
    passes = default_passes(microbatches=MICROBATCHES)
    plan = make_plan(graph, parse_cluster("2xvcu118"), "fpga", passes=passes)
    assert plan.timeline is not None
    assert plan.schedule is not None
    rate = ROWS * MICROBATCHES / plan.timeline.seconds
    print(f"{len(plan.stages)} stages, {plan.schedule.name}, {rate:,.0f} images/s predicted")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        emit(plan, out)
        stored = load_plan(out)
        loaded = load_backend("fpga").load(stored, out).stages
        runners = [r for r in loaded if isinstance(r, TrainedRunner)]
        boards = EmittedPipeline(stored, runners, MICROBATCHES)
        optimizer = torch.optim.SGD(model.parameters(), lr=Sgd().rate, momentum=Sgd().momentum)
        for update in range(UPDATES):
            rows = range(update * MICROBATCHES * ROWS, (update + 1) * MICROBATCHES * ROWS, ROWS)
            batches = [(images[r : r + ROWS], labels[r : r + ROWS]) for r in rows]
            found = boards.train([{"input": x, "target": y} for x, y in batches])
            boards_loss = sum(float(loss) for loss in found.losses.values()) / MICROBATCHES
            new = boards.update()
            with torch.no_grad():
                for key, value in new.items():
                    plan.graph.weights[key].copy_(value)
            reload_tables(plan, out)
            optimizer.zero_grad()
            losses = [functional.cross_entropy(model(x), y) / MICROBATCHES for x, y in batches]
            torch.stack(losses).sum().backward()
            optimizer.step()
            theirs = float(torch.stack(losses).sum().detach())
            parameters = model.state_dict()
            apart = max(float((new[n] - p).abs().max()) for n, p in parameters.items())
            print(f"update {update}: loss {boards_loss:.4f} on boards, {theirs:.4f} in torch, "
                  f"weights differ by {apart:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
