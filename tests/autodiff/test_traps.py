"""Ways in which a cut and differentiated model gives wrong gradients without saying so."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipec.autodiff.recompute import everything
from pipec.graph.ir import InputKind, OutputKind, op_name, origin
from tests.autodiff.chain import Case, Chain, build, chained, eager, flat, forward, pipeline, worst
from tests.autodiff.zoo import CASES, chain_of, floats, seeded


def check(case: Case, module: nn.Module) -> Chain:
    """Build, and compare the gradients of three microbatches (never losses after training)."""
    chain = build(case, module)
    got, want = pipeline(chain, case, 3), eager(module, case, 3)
    assert got.grads.keys() == want.grads.keys()
    assert worst(got.grads, want.grads) <= case.tolerance
    return chain


class NoGradGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.no_grad():
            gate = y.exp()
        result: Tensor = self.b(y * gate)
        return result


def test_a_no_grad_region_blocks_the_gradient_also_across_cuts() -> None:
    case = Case(NoGradGate, lambda y, _: y.sum(), floats(4, 16), 4)
    check(case, seeded(case))


class AverageOfAverages(nn.Module):
    """A buffer called like an op: the op's value is received where the same op runs once more."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        middle = x.mean(0)
        y = self.b(torch.tanh(self.a(x)))
        self.mean.mul_(0.9).add_(middle)
        average: Tensor = (y - self.mean).mean(0) * middle
        return average


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_value_called_like_an_op_of_its_reader_is_that_value(stages: int) -> None:
    case = Case(AverageOfAverages, lambda y, _: y.square().mean(), floats(4, 16), stages)
    check(case, seeded(case))


def test_running_the_stages_leaves_the_models_buffers_alone() -> None:
    module, chain = chain_of("cnn")
    before = copy.deepcopy(module.state_dict())
    pipeline(chain, CASES["cnn"], 2)
    after = module.state_dict()
    assert all(torch.equal(after[n], b) for n, b in before.items())


@pytest.mark.parametrize("name", ["cnn", "llama"])
def test_graphs_have_no_views_no_mutation_no_paths_and_every_node_has_an_origin(name: str) -> None:
    for t in chain_of(name)[1].training:
        for graph in (t.F, t.B, t.I, t.W):
            assert not any(op_name(n).startswith("aten.view.") for n in graph.calls)
            assert {k for n in graph.calls for k in n.meta} <= {"val", "origin"}
            assert not any((origin(n).location or "").startswith("/") for n in graph.calls)


def test_backward_nodes_know_their_layer() -> None:
    case = CASES["mlp"]
    (t,) = build(Case(case.model, case.loss, case.batch, 1), seeded(case)).training
    layers = {origin(n).name for n in t.B.calls if op_name(n) == "aten.mm.default"}
    assert layers == {"0", "2", "4"}


class Transposing(nn.Module):
    """Whatever crosses a cut here would be a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)).transpose(-1, -2)
        return x


@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_what_crosses_a_cut_is_contiguous_both_ways(stages: int) -> None:
    case = Case(Transposing, lambda y, _: (y**2).sum(), floats(2, 6, 6), stages)
    for t in check(case, seeded(case)).training:
        for graph, kind in ((t.F, OutputKind.VALUE), (t.B, OutputKind.GRADIENT)):
            nodes = graph.nodes
            values = [nodes[o.node].meta["val"] for o in graph.outputs_of(kind)]
            assert all(v.is_contiguous() for v in values)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
        result: Tensor = self.outer(y.transpose(1, 2).flatten(2))
        return result


@pytest.mark.parametrize("name", ["attention", "bert", "dropout", "cnn", "llama", "gpt-2"])
def test_full_recompute_changes_no_bit_and_saves_less(name: str) -> None:
    mine = Case(Attention, lambda y, _: (y**2).sum(), floats(2, 5, 8), 2)
    case = mine if name == "attention" else CASES[name]
    plain = build(mine, seeded(mine)) if name == "attention" else chain_of(name)[1]
    again = chained(plain.graph, case.stages, everything)
    a, b = pipeline(plain, case, 2), pipeline(again, case, 2)
    assert all(torch.equal(a.grads[n], b.grads[n]) for n in a.grads)
    held = [sum(t.saved_bytes for t in chain.training) for chain in (plain, again)]
    assert held[1] < held[0]


def test_an_lstm_can_be_differentiated_outside_autograd() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.cell(x)[0][:, -1])
            return result

    case = Case(Recurrent, F.cross_entropy, floats(4, 5, 8), 2)
    chain = check(case, seeded(case))
    ops = {op_name(n) for t in chain.training for n in t.F.calls}
    assert not any("rnn" in op for op in ops)
    assert torch.backends.mkldnn.enabled == torch.backends.mkldnn.is_available()


@pytest.mark.parametrize("name", CASES)
def test_saved_values_have_the_recorded_type_and_strides(name: str) -> None:
    case, (_, chain) = CASES[name], chain_of(name)
    args, target = case.batch(1)
    names = [i.name for i in chain.graph.inputs_of(InputKind.INPUT)]
    saved, _, _ = forward(chain, dict(zip(names, flat(args, target), strict=True)))
    for t, found in zip(chain.training, saved, strict=True):
        assert [v.name for v in t.saved] == list(found)
        for v in t.saved:
            x = found[v.name]
            assert (tuple(x.shape), str(x.dtype).removeprefix("torch.")) == (v.shape, v.dtype)
            apart = [k for k, size in enumerate(v.shape) if size > 1]  # others have no distance
            assert [x.stride(k) for k in apart] == [v.stride[k] for k in apart]
            assert v.nbytes == x.numel() * x.element_size()
        assert not {v.name for v in t.saved} & {i.node for i in t.F.inputs_of(InputKind.PARAMETER)}


class Split(nn.Module):
    """Queries, keys and values of one product, as attention has them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.a(x).split(16, dim=-1)
        first, second = (q * k + v.sin()).unbind(0)[:2]
        found: Tensor = self.b(first.tanh() * second)
        return found


class Gated(nn.Module):
    """A GRU, of whose three gates of one product the backward reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.GRU(16, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.gates(x.unsqueeze(0))[0]
        return found


@pytest.mark.parametrize("name", [*CASES, "split", "gated"])
def test_no_two_saved_values_share_memory_so_that_each_frees_its_own(name: str) -> None:
    mine = Gated if name == "gated" else Split
    case = CASES.get(name, Case(mine, lambda y, _: y.square().sum(), floats(4, 16), 1))
    chain = chain_of(name)[1] if name in CASES else build(case, seeded(case))
    args, target = case.batch(0)
    inputs = dict(
        zip(
            (i.name for i in chain.graph.inputs_of(InputKind.INPUT)),
            flat(args, target),
            strict=True,
        )
    )
    saved, values, _ = forward(chain, inputs)
    given = {t.untyped_storage().data_ptr() for t in (*inputs.values(), *values.values())}
    for kept in saved:
        own = [t for t in kept.values() if t.untyped_storage().data_ptr() not in given]
        assert len({t.untyped_storage().data_ptr() for t in own}) == len(own)
        assert [t.untyped_storage().nbytes() for t in own] == [t.nbytes for t in own]
