"""What the copy leaves out, and names that it gives."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_impls import op_implementations_dict

from pipec.frontends import trace as tracing
from pipec.frontends.base import quiet
from pipec.frontends.torch_module import from_module
from pipec.graph import torch_private
from pipec.graph.ir import InputKind, op_name
from tests.frontends.torch.running import run


class Plain(nn.Module):
    def __init__(self, body: object) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> object:
        return self.body(x)  # type: ignore[operator]


def ops(body: object, x: Tensor) -> list[str]:
    loaded = from_module(Plain(body), x)
    got, want = run(loaded.graph, {"x": x}), loaded.original({"x": x})
    assert got.keys() == want.keys()
    assert all(torch.equal(got[k], want[k]) for k in want)
    return [op_name(n).removeprefix("aten.") for n in loaded.graph.calls]


def test_nodes_without_effect_are_left_out() -> None:
    x = torch.randn(2, 3)
    assert ops(lambda x: x.reshape(2, 3)[:, :9].contiguous().to(x.dtype) + 1, x) == ["add.Tensor"]
    assert ops(lambda x: x.permute(0, 1).clone().detach().expand(2, 3) + 1, x) == ["add.Tensor"]
    assert ops(lambda x: (x.sin(), x + 1)[1], x) == ["add.Tensor"]
    x = x[None]  # attention draws only where it drops
    assert ops(lambda x: (F.scaled_dot_product_attention(x, x, x), x + 1)[1], x) == ["add.Tensor"]
    gru = partial(nn.GRU(3, 2).requires_grad_(False), x)
    assert ops(lambda x: (gru(), x + 1)[1], x) == ["add.Tensor"]
    unread = ops(lambda x: (F.dropout(x), x + 1)[1], x)
    assert len(unread) > 1


def test_nodes_with_effect_stay() -> None:
    x = torch.randn(2, 3)
    assert ops(lambda x: x.t().contiguous() + 1, x)[:2] == ["t.default", "clone.default"]
    assert ops(lambda x: x.to(torch.float64) + 1, x) == ["_to_copy.default", "add.Tensor"]
    assert ops(lambda x: x[:, 1:] + 1, x) == ["slice.Tensor", "add.Tensor"]
    assert ops(lambda x: torch.chunk(x, 2, 1)[1] + 1, x)[0] == "split.Tensor"


def test_views_are_reshapes() -> None:
    x = torch.randn(2, 3, 4)
    assert ops(lambda x: x.view(6, 4) + 1, x) == ["reshape.default", "add.Tensor"]
    assert ops(lambda x: x.transpose(0, 1).flatten() + 1, x) == [
        "transpose.int",
        "reshape.default",
        "add.Tensor",
    ]


def test_in_place_code_is_functional() -> None:
    def body(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] = 0
        y.add_(1).relu_()
        return y

    assert not any(name.split(".")[0].endswith("_") for name in ops(body, torch.randn(2, 3)))


def test_graphs_that_nobody_calls_do_not_become_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a tenth of the time of tracing: torch makes a graph after each of its steps."""
    written = Mock(side_effect=fx.graph_module._exec_with_source)
    monkeypatch.setattr(fx.graph_module, "_exec_with_source", written)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), torch.zeros(2, 4)
    from_module(model, x)
    lazily = written.call_count
    monkeypatch.setattr(tracing, "quick_tracing", nullcontext)
    from_module(model, x)
    assert 2 * lazily <= written.call_count - lazily


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "chain": lambda x: (x @ x).add_(1).relu_(),
    "reader_between": lambda x: _with_reader_between(x @ x),
    "view_before": lambda x: _with_view_before(x @ x),
    "view_after": lambda x: _with_view_after(x @ x),
    "item_of_topk": lambda x: x.topk(2).values.div_(3.0),
    "index_put": lambda x: x.reshape(9).clone().index_put_((torch.tensor([1, 2]),), torch.zeros(2)),
    "mask": lambda x: (x @ x).mul_(x > 0),
    "wider_dtype": lambda x: x.view(9).mul(1).add_(x.double().view(9)),
    "aliases_of_dropout": lambda x: F.dropout(x, training=False).add(0).add_(1),
    "alias_of_fresh": lambda x: F.dropout(x * 2, training=False).add_(1),
    "integers": lambda x: (x.long() + 1).mul_(3),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_ops_mean_what_they_mean(name: str) -> None:
    names = ops(IN_PLACE[name], torch.randn(3, 3))
    assert not any(name.split(".")[0].endswith("_") for name in names)


def _with_reader_between(y: Tensor) -> Tensor:
    before = y * 2
    y += 1
    return before + y * 3


def _with_view_before(y: Tensor) -> Tensor:
    row = y[0]
    y += 1
    return row + y


def _with_view_after(y: Tensor) -> Tensor:
    y += 1
    row = y[0]
    y *= 2
    return row + y


def test_an_output_may_be_an_input() -> None:
    loaded = from_module(Plain(lambda x: {"same": x, "more": x + 1}), torch.randn(2))
    assert [(o.node, o.name) for o in loaded.graph.outputs] == [("x_out", "same"), ("add", "more")]


def test_nested_inputs_and_outputs_have_names() -> None:
    class Nested(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], *, scale: float, extra: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            return {"sum": (pair[0] + pair[1]) * scale, "parts": [extra["bias"] * 2, None]}

    one = torch.ones(2)
    loaded = from_module(Nested(), {"pair": (one, one), "scale": 2.0, "extra": {"bias": one}})
    assert [i.name for i in loaded.graph.inputs] == ["pair.0", "pair.1", "extra.bias"]
    assert [o.name for o in loaded.graph.outputs] == ["sum", "parts.0"]
    inputs = {"pair.0": one, "pair.1": 3 * one, "extra.bias": one}
    assert torch.equal(run(loaded.graph, inputs)["sum"], 8 * one)


def test_names_that_python_reserves() -> None:
    class Odd(nn.Module):
        def forward(self, input: Tensor, lambda_: Tensor) -> Tensor:  # noqa: A002
            return input + lambda_

    graph = from_module(Odd(), (torch.ones(2), torch.ones(2))).graph
    assert [i.name for i in graph.inputs] == ["input", "lambda_"]
    assert all(i.node.isidentifier() for i in graph.inputs)


def test_constants_of_the_code_are_inputs() -> None:
    table = torch.arange(3.0)
    graph = from_module(Plain(lambda x: x + table), torch.ones(3)).graph
    constants = graph.inputs_of(InputKind.CONSTANT, InputKind.BUFFER)
    assert [torch.equal(graph.weights[c.name], table) for c in constants] == [True]


def test_a_node_gives_way_to_an_output_of_its_name() -> None:
    """Stages tell what they yield by name: a value and another node's output may not share one."""
    x = torch.randn(2, 3)

    def body(x: Tensor) -> dict[str, Tensor]:
        relu = x.sin().relu()
        return {"relu": relu.cos(), "sin": relu + 1}

    graph = from_module(Plain(body), x).graph
    assert [n.name for n in graph.calls] == ["sin_inner", "relu_inner", "cos", "add"]
    assert [(o.name, o.node) for o in graph.outputs] == [("relu", "cos"), ("sin", "add")]
    kept = from_module(Plain(lambda x: {"relu": x.relu()}), x).graph
    assert [n.name for n in kept.calls] == ["relu"]


class Outer(nn.Module):
    """Two lines of code that a node may come from, in modules inside of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = Plain(torch.sin), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> object:
        y = self.norm(x)
        return self.inner(y) + told(y)


def told(x: Tensor) -> Tensor:
    return x.cos()


def test_quick_tracing_notes_what_torch_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.fx.proxy, "_STACK_TRACE_ANCHORS", anchors := set[object]())
    monkeypatch.setattr(torch_private, "_STACK_TRACE_ANCHORS", anchors)

    def noted() -> list[tuple[str, object]]:
        loaded = from_module(Outer(), torch.zeros(2, 4))
        return [(n.name, n.meta["origin"]) for n in loaded.graph.calls]

    both = [noted()]
    anchors.add((told.__code__.co_filename, told.__name__))
    both.append(noted())
    assert both[0] != both[1]
    monkeypatch.setattr(tracing, "quick_tracing", nullcontext)
    assert noted() == both[1]
    anchors.clear()
    assert noted() == both[0]


def test_ops_are_what_they_were_behind_a_model_that_is_decomposed() -> None:
    """Torch drops the rules on fake tensors that some composite ops have of their own."""
    item, norm = torch.ops.aten.item.default, torch.ops.aten.batch_norm.default
    before = [dict(op.py_kernels) for op in (item, norm)]
    with torch_private.quick_tracing(), quiet():
        program = torch.export.export(nn.BatchNorm1d(4), (torch.zeros(2, 4),), strict=False)
        for _ in range(2):
            rule = op_implementations_dict.setdefault(item, before)
            program.run_decompositions({})
            assert op_implementations_dict.get(item) is rule
            assert norm not in op_implementations_dict
            assert [op.py_kernels for op in (item, norm)] == before
