"""Kinds that only move numbers say so: in 8-bit integers they have the format of what they read."""

import pytest
import torch
from torch import Tensor

from pipec.backends.fpga.engines.base import Layer
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.quantise.execute import Chain
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made

Told = dict[str, set[str]]


def by_kind(model: str) -> Told:
    """Of each kind what its layers do in a model: ``moves``, ``computes``, or both."""
    torch.manual_seed(1)
    module, x = made(model)
    graph = graph_of(module, x)
    network, narrow = lower(graph), True
    try:
        lower(graph, "int8")
    except BackendError:  # nothing takes over a format there
        narrow = False
    edges, found = dict[str, Tensor](), Told()

    def note(_stage: int, edge: str, layer: Layer | None, x: Tensor) -> Tensor:
        edges[edge] = x
        if layer is not None and not layer.steps and layer.dtype != "int32":
            known = [edges[use.edge].flatten().double() for use in layer.inputs]
            moved = bool(torch.isin(x.double(), torch.cat([*known, torch.zeros(1)])).all())
            assert layer.moves == moved or not (narrow or layer.moves), (layer.name, layer.nest)
            kind = layer.nest.kind()
            found.setdefault(kind, set()).add("moves" if layer.moves else "computes")
        return x

    inputs = {p.value: torch.randn(p.shape) for p in network.inputs}
    Chain([network]).run({**inputs, network.inputs[0].value: x}, note)
    return found


@pytest.fixture(scope="module")
def told() -> Told:
    found = Told()
    for model in MODELS:
        for kind, does in by_kind(model).items():
            found.setdefault(kind, set()).update(does)
    return found


def test_a_layer_moves_numbers_if_and_only_if_all_that_it_writes_was_read(told: Told) -> None:
    assert {kind for kind, does in told.items() if "moves" in does} == {
        "concat", "perm", "reduce", "repeat", "slice",
    }  # fmt: skip
    assert told["reduce"] == {"moves", "computes"}  # a maximum, a mean
