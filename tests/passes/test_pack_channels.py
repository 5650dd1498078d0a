"""Channels that cast or pack: eager torch with the same casts, and what `verify` notices."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit
from pipec.compiler.job import run_chain
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.verify import verify_artifacts, verify_stages
from pipec.compiler.verify_training import play
from pipec.errors import GraphError, PassError
from pipec.frontends.base import Loaded
from pipec.frontends.torch_module import from_module
from pipec.graph.copies import find_unpacked, with_packed
from pipec.graph.ir import origin
from pipec.graph.rules import verify
from pipec.passes.pack_channels import PackChannels
from pipec.plan.model import Plan
from tests.toys import Builder, run

aten = torch.ops.aten
V100 = parse_cluster("2xv100").devices[0]
SLOW = Cluster((replace(V100, link_bandwidth=2e6),) * 2)
AFTER = {
    False: "insert-comm,time-stages,schedule,simulate",
    True: "insert-comm,differentiate,time-stages,schedule{generator=1f1b},simulate",
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())


def loss(y: Tensor) -> Tensor:
    return y.square().mean()


def cut(packing: PackChannels | None, *, trains: bool = False) -> tuple[Loaded, Plan]:
    """The model on two stages, cut behind the first tanh."""
    loaded = from_module(model(), torch.randn(8, 16), loss if trains else None)
    start = Plan(loaded.graph, SLOW)
    plan = run_passes(parse_pipeline("simplify,annotate-cost,partition{stages=2}"), start)
    plan = run_passes([*([packing] if packing else []), *parse_pipeline(AFTER[trains])], plan)
    return loaded, plan


class Packed(torch.autograd.Function):
    """What eager torch sends: the value is rounded on its way, and so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, to: str) -> Tensor:
        ctx.to = to
        if to == "int8":
            scale = x.abs().max().clamp(min=1e-30) / 127
            return (x / scale).round().to(torch.int8).float() * scale
        return x.to(getattr(torch, to)).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].to(getattr(torch, ctx.to)).float(), None


def eager(x: Tensor, at: int, to: str, net: nn.Sequential) -> Tensor:
    """The model with a value packed on its way to the second stage."""
    sent: Any = Packed.apply
    y: Tensor = net[at:](sent(net[:at](x), to))
    return y


def modules_before_cut(plan: Plan) -> int:
    return sum(origin(n).op in ("Linear", "Tanh") for n in plan.stages[0].graph.calls)


def trained(net: nn.Sequential) -> dict[str, Tensor]:
    """Gradients by name."""
    return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("to", ["bfloat16", "float16", "int8"])
def test_stages_compute_what_eager_torch_does_with_the_same_casts(to: Any, tmp_path: Path) -> None:
    loaded, plan = cut(PackChannels(to=to))
    (whole,) = cut(None)[1].channels
    size = {"bfloat16": 2, "float16": 2, "int8": 1}[to]
    assert max(c.nbytes for c in plan.channels) == whole.nbytes * size // 4
    emit(plan, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok
    x = torch.randn(8, 16)
    emitted = load_backend("torch").load(plan, tmp_path / "out")
    found = {name: t for name, _, _, t in run_chain(plan, emitted.stages, {"input": x})}
    with torch.no_grad():
        want = eager(x, modules_before_cut(plan), to, model())
        off = (model()(x) - want).abs().max()
    torch.testing.assert_close(found["output"], want, rtol=1e-6, atol=1e-6)
    assert off > 1e-5, "the casts are there"


@pytest.mark.parametrize("to", ["bfloat16", "float16"])
def test_gradients_go_back_in_the_same_casts(to: Any, tmp_path: Path) -> None:
    loaded, plan = cut(PackChannels(to=to), trains=True)
    emit(plan, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok
    net, x = model(), torch.randn(8, 16)
    found, *_ = play(plan, [{"input": x}], seed=0)
    loss(eager(x, modules_before_cut(plan), to, net)).backward()
    want = trained(net)
    for name, gradient in want.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)
    plain = model()
    loss(plain(x)).backward()
    assert not torch.allclose(trained(plain)["0.weight"], want["0.weight"], rtol=1e-5, atol=1e-7)


def test_a_forward_is_predicted_faster_where_links_are_slow() -> None:
    slow, half, quarter = (
        cut(packing)[1].timeline for packing in (None, PackChannels(), PackChannels(to="int8"))
    )
    assert slow is not None
    assert half is not None
    assert quarter is not None
    assert slow.seconds > 1.5 * half.seconds > 2 * quarter.seconds


@dataclass(frozen=True)
class Halves(PackChannels):
    """A transform of one's own: a value is sent in two messages; times too much in the end."""

    name = "halves"
    times: float = 1.0

    def pack(self, x: Any) -> Any:
        return aten.slice.Tensor(x, 1, 0, 24), aten.slice.Tensor(x, 1, 24, 48)

    def unpack(self, sent: Any, scale: Any = None) -> Any:
        return aten.mul.Scalar(aten.cat.default([sent, scale], 1), self.times)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(("times", "ok"), [(1.0, True), (1.001, False)])
def test_a_transform_of_ones_own_is_held_to_what_it_sends(
    times: float, ok: bool, trains: bool, tmp_path: Path
) -> None:
    loaded, plan = cut(Halves(times=times), trains=trains)
    assert [c.shape for c in plan.channels] == [(8, 24), (8, 24)]
    emit(plan, tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded).ok == ok


@pytest.mark.parametrize("to", ["bfloat16", "int8"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_packs_or_reads_it_wrong_is_noticed(
    to: Any, stage: int, tmp_path: Path
) -> None:
    loaded, plan = cut(PackChannels(to=to))
    emit(plan, tmp_path / "out")
    emitted = load_backend("torch").load(plan, tmp_path / "out")
    runners = list(emitted.stages)

    def wrong(given: Any) -> Any:
        if stage == 1:
            given = {n: (t.float() * 1.03).to(t.dtype) for n, t in given.items()}
        found = runners[stage](given)
        return found if stage else {n: (t.float() * 1.03).to(t.dtype) for n, t in found.items()}

    stages = [wrong if k == stage else run for k, run in enumerate(runners)]
    assert not verify_stages(plan, replace(emitted, stages=stages), loaded).ok
    assert verify_stages(plan, emitted, loaded).ok


def test_what_has_no_gradient_is_for_inference() -> None:
    with pytest.raises(PassError, match="what is sent has no gradient") as caught:
        cut(PackChannels(to="int8"), trains=True)
    assert "int8" in str(caught.value)


def test_behind_insert_comm_and_of_another_type_it_is_refused() -> None:
    class Shorter(PackChannels):
        name = "shorter"

        def unpack(self, sent: Any, scale: Any = None) -> Any:
            return sent

    with pytest.raises(PassError, match="pack-channels would change what is sent"):
        run_passes([PackChannels()], cut(None)[1])
    with pytest.raises(GraphError, match="a replacement of another type"):
        cut(Shorter())


def test_every_reader_unpacks_for_itself_and_the_own_stage_reads_the_value() -> None:
    b = Builder()
    x = b.input("x", 4, 8)
    y = b.call(aten.relu.default, x)
    near, far = b.call(aten.neg.default, y), b.call(aten.exp.default, y)
    last = b.call(aten.add.Tensor, far, y)
    graph = b.graph(near, b.call(aten.mul.Tensor, last, far))
    packing, names = PackChannels(), [n.name for n in graph.calls]
    group = dict(zip(names, (0, 0, 1, 2, 2), strict=True))
    packed, home = with_packed(graph, group, packing.wanted, packing.pack, packing.unpack)
    verify(packed)
    pairs = find_unpacked(packed)
    assert sorted(pairs.values()) == sorted([names[0], names[0], names[2]])
    assert sorted(home[n] for n in pairs) == [1, 2, 2]
    assert packed.node(names[1]).all_input_nodes[0].name == names[0]
    t = torch.randn(4, 8)
    half = t.relu().bfloat16().float()
    e = half.exp().bfloat16().float()
    found = run(packed, x=t)
    assert torch.equal(found["y0"], -t.relu())
    torch.testing.assert_close(found["y1"], (e + half) * e, rtol=0, atol=0)
