"""FLOPs are torch's own wherever it counts, per op and on whole models."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.cost.flops import FlopCounter
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import op_name
from pipec.report.plan_data import plan_data
from tests.frontends.torch.zoo import make
from tests.toys import Builder, aten


class Body(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *args: Tensor) -> Any:
        return self.body(*args)


def counted(module: nn.Module, *args: Tensor, **kwargs: Tensor) -> int:
    """What `FlopCounterMode` counts on meta tensors."""
    module = module.to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*(a.to("meta") for a in args), **{k: v.to("meta") for k, v in kwargs.items()})
    return int(counter.get_total_flops())


def known(module: nn.Module, inputs: Any) -> int:
    counter = FlopCounter()
    return sum(counter.count(n) for n in from_module(module, inputs).graph.calls)


def r(*shape: int) -> Tensor:
    return torch.randn(shape)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (r(3, 5), r(5, 7))),
    "bmm": (torch.bmm, (r(2, 3, 5), r(2, 5, 7))),
    "addmm": (torch.addmm, (r(7), r(3, 5), r(5, 7))),
    "baddbmm": (torch.baddbmm, (r(2, 3, 7), r(2, 3, 5), r(2, 5, 7))),
    "matmul broadcast": (torch.matmul, (r(4, 1, 3, 5), r(2, 5, 7))),
    "matmul 3x2": (torch.matmul, (r(4, 3, 5), r(5, 7))),
    "einsum": (lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), (r(2, 3, 4, 5), r(2, 3, 6, 5))),
    "linear": (F.linear, (r(2, 3, 5), r(7, 5), r(7))),
    "linear without bias": (F.linear, (r(2, 3, 5), r(7, 5))),
    "conv1d": (F.conv1d, (r(2, 4, 9), r(6, 4, 3))),
    "conv2d strided": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=2),
        (r(2, 4, 9, 9), r(6, 4, 3, 3)),
    ),
    "conv2d grouped": (lambda x, w: F.conv2d(x, w, groups=2), (r(2, 4, 9, 9), r(6, 2, 3, 3))),
    "conv3d": (F.conv3d, (r(1, 2, 5, 5, 5), r(3, 2, 2, 2, 2))),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        (r(2, 4, 5, 5), r(4, 3, 2, 2)),
    ),
    "attention": (F.scaled_dot_product_attention, (r(2, 3, 8, 4), r(2, 3, 6, 4), r(2, 3, 6, 5))),
    "attention causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (r(2, 3, 8, 4), r(2, 3, 8, 4), r(2, 3, 8, 4)),
    ),
    "attention grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (r(2, 4, 8, 4), r(2, 2, 8, 4), r(2, 2, 8, 4)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_equal_torch(name: str) -> None:
    body, args = PRODUCTS[name]
    want = counted(Body(body), *args)
    assert want > 0
    assert known(Body(body), args) == want


def test_recurrent_layers_equal_torch() -> None:
    for kind, options in ((nn.LSTM, {"num_layers": 2, "bidirectional": True}), (nn.GRU, {})):
        want = counted(kind(4, 6, **options), r(5, 3, 4))
        assert known(kind(4, 6, **options), r(5, 3, 4)) == want > 0


@pytest.mark.parametrize("name", ["resnet50", "vit", "bert", "gpt2", "t5", "llama", "whisper"])
def test_whole_models_equal_torch(name: str) -> None:
    """Also where attention is fused: on CPU tensors torch would count it for nothing.

    Decoders do not run on meta tensors; they are counted with attention written out.
    """
    module, inputs = make(name)
    got = known(module, inputs)
    if name in ("gpt2", "llama"):
        module.set_attn_implementation("eager")  # type: ignore[operator]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module.eval()(**inputs)
        assert got == counter.get_total_flops()
    else:
        assert got == counted(module.eval(), **inputs)


def test_attention_on_cpu_tensors_is_the_trap() -> None:
    q = r(2, 3, 8, 4)
    with FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(q, q, q)
    assert counter.get_total_flops() == 0
    assert known(Body(F.scaled_dot_product_attention), (q, q, q)) == 2 * 2 * (2 * 3 * 8 * 8 * 4)


def flops(target: Any, *args: Any) -> float:
    b = Builder()
    nodes = [b.input(f"x{k}", *a.shape) if isinstance(a, Tensor) else a for k, a in enumerate(args)]
    return FlopCounter().flops(b.call(target, *nodes))


@pytest.mark.parametrize(
    ("target", "args", "want"),
    [
        (aten.relu.default, (r(2, 8),), 16),
        (aten.add.Tensor, (r(2, 8), r(8)), 16),
        (aten.sum.default, (r(2, 8),), 16),
        (aten.mean.dim, (r(2, 8), [1]), 16),
        (aten.softmax.int, (r(2, 8), -1), 80),
        (aten.layer_norm.default, (r(2, 8), [8], r(8), r(8)), 112),
        (aten.layer_norm.default, (r(2, 8), [8]), 80),
        (aten.max_pool2d.default, (r(1, 3, 8, 8), [2, 2], [2, 2]), 3 * 16 * 4),
        (aten.max_pool2d.default, (r(1, 3, 8, 8), [2]), 3 * 16 * 4),
        (aten.avg_pool2d.default, (r(1, 3, 8, 8), [3, 3], [1, 1]), 3 * 36 * 9),
        (aten.adaptive_avg_pool2d.default, (r(1, 3, 8, 8), [1, 1]), 3 * 64),
        (aten.permute.default, (r(2, 8), [1, 0]), 0),
        (aten.reshape.default, (r(2, 8), [16]), 0),
        (aten.clone.default, (r(2, 8),), 0),
        (aten.cat.default, ([], 0), 0),
    ],
)
def test_estimates(target: Any, args: tuple[Any, ...], want: int) -> None:
    if target is not aten.cat.default:
        assert flops(target, *args) == want


def test_experts_count_one_matrix_per_row() -> None:
    """A transformers MoE brings its own op: (rows, in) times one (in, out) matrix per row."""
    graph = from_module(*make("mixtral")).graph
    counter = FlopCounter()
    found = [counter.flops(n) for n in graph.calls if "grouped_mm" in op_name(n)]
    rows = 2 * 12 * 2  # tokens times experts per token
    assert sorted(found) == [2.0 * rows * 32 * 64] * 2 + [2.0 * rows * 32 * 128] * 2


@torch.library.custom_op("costed::product", mutates_args=())
def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


@product.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty(len(x), w.shape[1])


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(product(torch.relu(x), self.w))


def test_the_cost_of_an_op_from_outside_is_a_guess_until_it_has_a_formula() -> None:
    graph, cluster = from_module(Own(), torch.ones(4, 16)).graph, parse_cluster("2xcpu")
    plan = make_plan(graph, cluster, passes=default_passes(microbatches=2))
    assert plan_data(plan)["guessed"] == ["costed.product.default"]
    assert plan.costs is not None
    assert plan.costs.nodes["product"].flops == 256
    assert (
        plan_data(plan.replace(costs=replace(plan.costs, method={"cpu": "measured"})))["guessed"]
        == []
    )
    packet = torch.ops.costed.product

    @register_flop_formula(packet)
    def formula(x: tuple[int, int], w: tuple[int, int], **_: object) -> int:
        return 2 * x[0] * x[1] * w[1]

    try:
        known = make_plan(graph, cluster, passes=default_passes(microbatches=2))
    finally:
        flop_registry.pop(packet)
    assert plan_data(known)["guessed"] == []
    assert known.costs is not None
    assert known.costs.nodes["product"].flops == 2 * 4 * 16 * 16
