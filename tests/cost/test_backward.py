"""What backwards take in units of forwards, held against what autograd really computes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pipec.cost.count import count
from pipec.cost.flops import FlopCounter
from pipec.cost.table import CostTable
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source


class Products(nn.Module):
    """Every kind of product; the first convolution reads data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.lines, self.rows = nn.Linear(12, 20), nn.Parameter(torch.randn(20, 6))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.lines(self.second(self.first(x).relu()))
        y = torch.addmm(self.bias, y.flatten(0, 2), self.rows)
        return y @ y.t() + torch.einsum("ij,kj->ik", y, y)


def graph_of(module: nn.Module, *inputs: Tensor) -> Graph:
    loss = Loss(lambda out: out.square().mean())
    return trace(module, inputs, loss=loss, source=Source("memory", ""))


def test_products_as_autograd_multiplies() -> None:
    module, x = Products(), torch.randn(2, 3, 16, 16)
    graph, counter = graph_of(module, x), FlopCounter()
    counted = count(graph)
    products = [n for n in graph.calls if counter.is_product(n)]
    assert len(products) == 6
    forward = sum(counter.count(n) for n in products)
    backward = sum(counted[n.name].backward * counter.count(n) for n in products)
    with FlopCounterMode(display=False) as true:
        loss = module(x).square().mean()
        assert true.get_total_flops() == forward
        loss.backward()
    assert true.get_total_flops() == forward + backward


def test_attention_multiplies_five_times_for_two() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))

    graph = graph_of(Attention(), torch.randn(2, 4, 10, 16))
    (node,) = [n for n in graph.calls if "scaled_dot_product" in n.name]
    assert count(graph)[node.name].backward == 2.5


def test_the_gradient_of_a_gather_is_as_large_as_its_table() -> None:
    graph = graph_of(nn.Embedding(100, 8), torch.zeros(6, dtype=torch.int64))
    (node,) = [n for n in graph.calls if "embedding" in n.name]
    assert count(graph)[node.name].backward == 1 + 100 / (2 * 6)  # rows of gradient, rows moved


def test_what_was_measured_takes_the_place_of_ratios() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4))
    nodes = count(graph)
    seconds = {"cpu": dict.fromkeys(nodes, 1.0)}
    first, second = (n for n in nodes if "linear" in n)
    table = CostTable(nodes, seconds, {"cpu": "given"})
    assert (table.backward_of("cpu")[first], table.backward_of("cpu")[second]) == (1.0, 2.0)
    given = CostTable(nodes, seconds, {"cpu": "given"}, backward={"cpu": dict.fromkeys(nodes, 7.0)})
    assert given.backward_of("cpu")[first] == 7.0
