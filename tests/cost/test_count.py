"""Bytes: what a node reads and writes, and which of it are weights."""

import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.presets import preset
from pipec.cost.count import count
from pipec.cost.model import Roofline
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import Graph
from tests.toys import Builder, aten


def test_a_layer_reads_its_weights_and_writes_its_result() -> None:
    graph = from_module(nn.Linear(8, 4), torch.ones(2, 8)).graph
    (cost,) = count(graph).values()
    assert cost.parameter_bytes == 4 * (8 * 4 + 4)
    assert cost.bytes_read == cost.parameter_bytes + 4 * 2 * 8
    assert cost.bytes_written == cost.output_bytes == 4 * 2 * 4
    assert cost.flops == 2 * 2 * 8 * 4


def test_a_view_of_a_weight_is_that_weight() -> None:
    b = Builder()
    w, x = b.parameter("w", 8, 4), b.input("x", 2, 8)
    turned = b.call(aten.t.default, w)
    y = b.call(aten.linear.default, x, turned)
    costs = count(b.graph(y))
    assert costs[turned.name].bytes_read == costs[turned.name].bytes_written == 0
    assert costs[y.name].parameter_bytes == 4 * 8 * 4


def test_a_lookup_reads_rows_and_not_the_table() -> None:
    graph = from_module(nn.Embedding(1000, 8), torch.zeros(2, 3, dtype=torch.int64)).graph
    (cost,) = count(graph).values()
    assert cost.parameter_bytes == 4 * 2 * 3 * 8
    assert cost.bytes_read == cost.parameter_bytes + 8 * 2 * 3


def test_broadcast_values_are_read_once() -> None:
    b = Builder()
    x = b.input("x", 1, 8)
    wide = b.call(aten.expand.default, x, [64, 8])
    y = b.call(aten.add.Tensor, wide, wide)
    assert count(b.graph(y))[y.name].bytes_read == 4 * 8


def test_a_reshape_costs_only_where_it_copies() -> None:
    b = Builder()
    x = b.input("x", 4, 8)
    flat = b.call(aten.reshape.default, x, [32])
    turned = b.call(aten.reshape.default, b.call(aten.t.default, x), [32])
    costs = count(b.graph(flat, turned))
    assert costs[flat.name].bytes_written == 0
    assert costs[turned.name].bytes_read == costs[turned.name].bytes_written == 4 * 32


def one(width: int) -> tuple[Graph, Tensor]:
    x = torch.ones(width, width)
    return from_module(nn.Linear(width, width, bias=False), x).graph, x


def test_roofline_is_the_larger_of_compute_and_memory() -> None:
    gpu, model = preset("v100"), Roofline()
    for width, bound in ((64, "memory"), (8192, "compute")):
        graph, _ = one(width)
        (node,), costs = graph.calls, count(graph)
        seconds = model.seconds(node, costs[node.name], gpu) - gpu.launch_seconds
        compute = 2 * width**3 / 15.7e12
        memory = 3 * 4 * width**2 / 900e9
        assert seconds == pytest.approx(max(compute, memory))
        assert (compute > memory) == (bound == "compute")


def test_half_precision_takes_its_own_peak() -> None:
    module, x = nn.Linear(8192, 8192, bias=False).to(torch.bfloat16), torch.ones(8192, 8192)
    graph = from_module(module, x.to(torch.bfloat16)).graph
    (node,), costs = graph.calls, count(graph)
    gpu = preset("h100")
    seconds = Roofline().seconds(node, costs[node.name], gpu) - gpu.launch_seconds
    assert seconds == pytest.approx(2 * 8192**3 / 989e12)


def test_views_take_no_time() -> None:
    b = Builder()
    y = b.call(aten.permute.default, b.input("x", 4, 8), [1, 0])
    graph = b.graph(y)
    assert Roofline().seconds(y, count(graph)[y.name], preset("cpu")) == 0


def test_tables_are_plain_data() -> None:
    graph, _ = one(4)
    table = CostTable(count(graph), {"cpu": {"linear": 1e-6}}, {"cpu": "measured"})
    assert CostTable.from_json(table.to_json()) == table
    with pytest.raises(CostError, match="no costs for this kind of device"):
        table.of("h100")
    with pytest.raises(CostError, match="malformed"):
        CostTable.from_json({"nodes": {"linear": [1]}})
