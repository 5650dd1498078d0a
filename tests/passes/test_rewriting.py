"""Rules of patterns: a CNN and a transformer rewritten, and what a wrong rule is told."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pipec
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.rewriting import RewritePass, Rule, rewrite
from pipec.errors import BackendError, GraphError, PassError
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import Graph, origin, tensor
from pipec.graph.rules import verify
from pipec.plan.model import Plan
from tests.toys import Builder, aten, run

SPACE = "rewritten"


@torch.library.custom_op(f"{SPACE}::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).contiguous()


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def conv_norm(x, w, stride, pad, dilation, groups, g, shift, mean, var, momentum, eps, b=None):  # type: ignore[no-untyped-def]
    y = aten.conv2d.default(x, w, b, stride, pad, dilation, groups)
    norm = aten._native_batch_norm_legit_no_training.default
    return norm(y, g, shift, mean, var, momentum, eps)[0]


def conv(x, w, stride, pad, dilation, groups, g, shift, mean, var, eps, b):  # type: ignore[no-untyped-def]
    k = g * (var + eps).rsqrt()
    w, b = w * k.reshape(-1, 1, 1, 1), shift + k * ((0 if b is None else b) - mean)
    return aten.conv2d.default(x, w, b, stride, pad, dilation, groups)


def sdpa(q, k, v, causal):  # type: ignore[no-untyped-def]
    return aten.scaled_dot_product_attention.default(q, k, v, None, 0.0, causal)


def own(q, k, v, causal):  # type: ignore[no-untyped-def]
    return torch.ops.rewritten.attention.default(q, k, v, causal)


FOLD = Rule(conv_norm, conv, weights=("w", "g", "shift", "mean", "var", "b"))


class Fold(RewritePass):
    name, rules = "fold", (FOLD,)


class Own(RewritePass):
    name, rules = "own", (Rule(sdpa, own),)


def relu(x):  # type: ignore[no-untyped-def]
    return aten.relu.default(x)


def twice(x):  # type: ignore[no-untyped-def]
    return aten.relu.default(aten.relu.default(x))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k in range(4):
        norm = nn.BatchNorm2d(8)
        nn.init.normal_(norm.weight)
        for buffer in (norm.running_mean, norm.running_var):
            assert buffer is not None
            nn.init.uniform_(buffer, 0.5, 2)
        layers += [nn.Conv2d(8 if k else 3, 8, 3, padding=k % 2, bias=k > 1), norm, nn.ReLU()]
    return nn.Sequential(*layers).eval()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        z: Tensor = x + self.out(y.transpose(1, 2).reshape(2, 6, 16))
        return z


def names(graph: Graph) -> list[str]:
    return [str(n.target) for n in graph.calls]


CUT = "partition,insert-comm,time-stages,schedule,simulate"


def test_a_cnn_with_folded_norms_computes_the_same_in_stages(tmp_path: Path) -> None:
    model, x = cnn(), torch.randn(2, 3, 12, 12)
    before = parse_pipeline("simplify,annotate-cost")
    plan = pipec.compile(model, x, "2xh100", passes=[*before, Fold(), *parse_pipeline(CUT)])
    assert set(names(plan.graph)) == {"aten.conv2d.default", "aten.relu.default"}
    assert not any("running" in name or "weight" in name for name in plan.graph.weights)
    found = run(plan.graph, input=x)["output"]
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    plan.save(tmp_path / "plan")
    report = pipec.verify(tmp_path / "plan", model, x)
    assert all(c.ok for c in report.boundaries), report.boundaries
    with torch.no_grad():
        next(model[1].buffers()).add_(0.01)
    report = pipec.verify(tmp_path / "plan", model, x)
    assert not all(c.ok for c in report.boundaries), "another model than was folded"


def test_a_transformer_calls_an_op_of_its_own(tmp_path: Path) -> None:
    model, x = nn.Sequential(Block(), Block()), torch.randn(2, 6, 16)
    graph = from_module(model, (x,)).graph
    start = Plan(graph, parse_cluster("2xh100"))
    plan = run_passes([*parse_pipeline("simplify,annotate-cost"), Own()], start)
    assert names(plan.graph).count(f"{SPACE}.attention.default") == 2
    assert plan.graph.namespaces == {SPACE}
    assert plan.graph.weights.keys() == graph.weights.keys()
    new = [n for n in plan.graph.calls if SPACE in str(n.target)]
    old = [n for n in graph.calls if "attention" in str(n.target)]
    assert list(map(origin, new)) == list(map(origin, old))
    torch.testing.assert_close(run(plan.graph, input=x)["output"], model(x))
    again = run_passes([Own()], plan)
    assert again is plan


def test_costs_that_were_measured_are_kept_and_new_nodes_get_theirs() -> None:
    start = Plan(from_module(cnn(), (torch.randn(2, 3, 12, 12),)).graph, parse_cluster("2xh100"))
    counted = run_passes(parse_pipeline("annotate-cost"), start)
    assert counted.costs is not None
    seconds = {k: dict.fromkeys(row, 7.0) for k, row in counted.costs.seconds.items()}
    plan = run_passes([Fold()], counted.replace(costs=replace(counted.costs, seconds=seconds)))
    assert plan.costs is not None
    for row in plan.costs.seconds.values():
        assert {n: s for n, s in row.items() if n.startswith("relu")} == dict.fromkeys(
            ["relu", "relu_1", "relu_2", "relu_3"], 7.0
        )
        assert all(0 < s < 1 for n, s in row.items() if not n.startswith("relu"))


def chain(calls: int, *, also_inner: bool = False) -> Graph:
    b = Builder()
    x = b.input("x", 2, 3)
    made = [x]
    for _ in range(calls):
        made.append(b.call(aten.relu.default, made[-1]))
    return b.graph(*([made[1]] if also_inner else []), made[-1])


@pytest.mark.parametrize("calls", [2, 3, 4, 7])
def test_matches_that_overlap_are_taken_one_by_one_to_the_end(calls: int) -> None:
    graph = rewrite(chain(calls), [Rule(twice, relu)])
    verify(graph)
    assert names(graph) == ["aten.relu.default"]
    x = torch.randn(2, 3)
    assert torch.equal(run(graph, x=x)["y0"], x.relu())


def test_a_match_whose_inner_value_is_read_elsewhere_is_left() -> None:
    graph = chain(2, also_inner=True)
    assert rewrite(graph, [Rule(twice, relu)]) is graph


def test_one_node_may_stand_for_two_parameters() -> None:
    def added(x, y):  # type: ignore[no-untyped-def]
        return aten.add.Tensor(aten.relu.default(x), y)

    def maximum(x, y):  # type: ignore[no-untyped-def]
        return aten.add.Tensor(aten.maximum.default(x, x), y)

    b = Builder()
    x = b.input("x", 2, 3)
    same = b.call(aten.add.Tensor, b.call(aten.relu.default, x), x)
    inner = b.call(aten.relu.default, same)
    graph = rewrite(b.graph(b.call(aten.add.Tensor, inner, inner)), [Rule(added, maximum)])
    verify(graph)
    assert names(graph).count("aten.maximum.default") == 1, "an inner value is no argument"
    assert names(graph).count("aten.relu.default") == 1


def test_a_guard_is_asked() -> None:
    graph = chain(2)
    seen: list[tuple[int, ...]] = []

    def never(match) -> bool:  # type: ignore[no-untyped-def]
        seen.append(tuple(match.value("x").shape))
        return False

    assert rewrite(graph, [Rule(twice, relu, where=never)]) is graph
    assert seen == [(2, 3)]


def two_linears(x, a, b):  # type: ignore[no-untyped-def]
    return aten.linear.default(x, a), aten.linear.default(x, b)


def one_linear(x, a, b):  # type: ignore[no-untyped-def]
    y = aten.linear.default(x, torch.cat([a, b]))
    ends = (0, len(a)), (len(a), len(a) + len(b))
    return tuple(aten.slice.Tensor(y, -1, *e) for e in ends)


class Branches(nn.Module):
    """Three branches of one value, which are read in between, and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.w = (nn.Linear(8, n, bias=False) for n in (4, 6, 10, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q = self.q(x).relu()
        k = self.k(x) + 1
        return q, k, self.v(x), self.w(x.relu())


def test_a_pattern_of_several_results_joins_branches() -> None:
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(5, 8)
    joined = Rule(two_linears, one_linear, weights=("a", "b"))
    graph = rewrite(from_module(model, (x,)).graph, [joined])
    verify(graph)
    assert names(graph).count("aten.linear.default") == 2
    assert {tuple(w.shape) for w in graph.weights.values()} == {(20, 8), (3, 8)}
    for found, want in zip(run(graph, x=x).values(), model(x), strict=True):
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("late", [False, True])
def test_results_are_written_where_all_arguments_are_there_and_no_reader_is_yet(late: bool) -> None:
    b = Builder()
    x, y = b.input("x", 2, 3), b.input("y", 2, 3)
    first = b.call(aten.add.Tensor, x, y)
    reader = b.call(aten.relu.default, first)
    second = b.call(aten.mul.Tensor, x, reader if late else y)
    graph = b.graph(reader, second)

    def over(x, y, z):  # type: ignore[no-untyped-def]
        return aten.add.Tensor(x, y), aten.mul.Tensor(x, z)

    def other(x, y, z):  # type: ignore[no-untyped-def]
        return aten.sub.Tensor(x, y), aten.div.Tensor(x, z)

    after = rewrite(graph, [Rule(over, other)])
    verify(after)
    assert (after is graph) == late, "its second result reads what is made of the first"
    if not late:
        found = run(after, x=torch.ones(2, 3), y=torch.full((2, 3), 4.0))
        assert found["y0"][0, 0] == 0
        assert found["y1"][0, 0] == 0.25


def test_a_result_may_be_made_of_another() -> None:
    def made(x):  # type: ignore[no-untyped-def]
        y = aten.relu.default(x)
        return y, aten.neg.default(y)

    def other(x):  # type: ignore[no-untyped-def]
        y = aten.clamp_min.default(x, 0)
        return y, aten.mul.Scalar(y, -1)

    b = Builder()
    y = b.call(aten.relu.default, b.input("x", 2, 3))
    graph = b.graph(b.call(aten.abs.default, y), b.call(aten.neg.default, y))
    after = rewrite(graph, [Rule(made, other)])
    verify(after)
    assert sorted(names(after)) == ["aten.abs.default", "aten.clamp_min.default", "aten.mul.Scalar"]
    x = torch.randn(2, 3)
    assert torch.equal(run(after, x=x)["y1"], -x.relu())


def test_strides_are_inferred_again_to_the_end() -> None:
    def dense(x):  # type: ignore[no-untyped-def]
        y = aten.clamp_min.default(x, 0)
        return aten.clone.default(y, memory_format=torch.contiguous_format)

    b = Builder()
    y = b.call(aten.relu.default, b.call(aten.transpose.int, b.input("x", 2, 3), 0, 1))
    graph = b.graph(b.call(aten.abs.default, b.call(aten.neg.default, y)))
    after = rewrite(graph, [Rule(relu, dense)])
    verify(after)
    assert [tensor(n).stride() for n in after.calls] == [(1, 3), (1, 3), (2, 1), (2, 1), (2, 1)]


def test_as_many_values_as_the_pattern_has() -> None:
    def one(x):  # type: ignore[no-untyped-def]
        return aten.relu.default(x), aten.relu.default(x)

    with pytest.raises(GraphError, match="another type"):
        rewrite(chain(2), [Rule(twice, one)])


def test_an_op_is_a_pattern_of_any_arguments() -> None:
    b = Builder()
    y = b.call(aten.sum.dim_IntList, b.input("x", 2, 3), [1], True)

    def mean(self, dim, keepdim):  # type: ignore[no-untyped-def]
        return aten.mean.dim(self, dim, keepdim)

    graph = rewrite(b.graph(y), [Rule(aten.sum.dim_IntList, mean)])
    verify(graph)
    assert names(graph) == ["aten.mean.dim"]
    assert tuple(tensor(graph.calls[0]).shape) == (2, 1)


def flat(x):  # type: ignore[no-untyped-def]
    return aten.reshape.default(aten.relu.default(x), [6])


def half(x):  # type: ignore[no-untyped-def]
    return aten._to_copy.default(aten.relu.default(x), dtype=torch.bfloat16)


def no_op(x):  # type: ignore[no-untyped-def]
    return x.relu()


def impossible(x):  # type: ignore[no-untyped-def]
    return aten.mm.default(x, x)


@pytest.mark.parametrize(
    ("replacement", "words"),
    [
        (flat, ["flat, at relu_default_1", "float32[6]", "float32[2,3]"]),
        (half, ["half, at relu_default_1", "bfloat16[2,3]", "float32[2,3]"]),
        (no_op, ["no_op, at relu_default_1", "call_method"]),
        (impossible, ["impossible, at relu_default_1, aten.mm.default", "take its arguments"]),
    ],
)
def test_a_wrong_replacement_is_named(replacement, words: list[str]) -> None:  # type: ignore[no-untyped-def]
    class Wrong(RewritePass):
        name, rules = "wrong", (Rule(twice, replacement),)

    with pytest.raises(GraphError) as caught:
        run_passes([Wrong()], Plan(chain(2), parse_cluster("1xh100")))
    told = f"{caught.value} {caught.value.__notes__}"
    assert not [w for w in [*words, "in pass wrong"] if w not in told], told


def test_python_operators_on_values_are_named_by_the_verifier() -> None:
    class Wrong(RewritePass):
        name, rules = "wrong", (Rule(twice, lambda x: x + 0),)

    with pytest.raises(GraphError, match="not an op overload"):
        run_passes([Wrong()], Plan(chain(2), parse_cluster("1xh100")))


def test_rules_without_end_are_refused() -> None:
    def more(x):  # type: ignore[no-untyped-def]
        return aten.relu.default(aten.relu.default(x))

    with pytest.raises(PassError, match="come to no end"):
        rewrite(chain(2), [Rule(relu, more)])


@pytest.mark.parametrize("use", ["fixed", "updated", "trained"])
def test_weights_that_change_are_not_folded(use: str) -> None:
    graph = scaling(use)
    after = rewrite(graph, [Rule(scaled, plain, weights=("w",))])
    verify(after)
    assert ("aten.exp.default" in names(after)) == (use != "fixed")
    assert (after is graph) == (use != "fixed")


def scaled(x, w):  # type: ignore[no-untyped-def]
    return aten.mul.Tensor(aten.relu.default(x), aten.exp.default(w))


def plain(x, w):  # type: ignore[no-untyped-def]
    return aten.mul.Tensor(aten.relu.default(x), w.exp())


def scaling(use: str) -> Graph:
    class Model(nn.Module):
        w: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randn(2, 3))
            self.v = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(x + self.v) * self.w.exp()
            if use == "updated":
                self.w.add_(1)
            return y

    loss = (lambda y: y.sum()) if use == "trained" else None
    return from_module(Model(), (torch.randn(2, 3),), loss=loss).graph


def test_a_plan_that_is_cut_is_refused() -> None:
    start = Plan(from_module(cnn(), (torch.randn(2, 3, 12, 12),)).graph, parse_cluster("2xh100"))
    cut = run_passes(parse_pipeline("annotate-cost,partition"), start)
    with pytest.raises(PassError, match="before partition"):
        run_passes([Fold()], cut)


def test_a_rewritten_onnx_file_is_not_emitted_as_it_was(tmp_path: Path) -> None:
    graph = from_module(cnn(), (torch.randn(2, 3, 12, 12),)).graph
    graph = graph.replace(source=replace(graph.source, kind="onnx"))
    plan = run_passes([Fold()], Plan(graph, parse_cluster("2xh100"), target="onnx"))
    with pytest.raises(BackendError, match="rewritten ONNX nodes"):
        load_backend("onnx").emit(plan, tmp_path)
