"""Number formats, unlike stages, and devices; what needs a GPU runs where there is one."""

import itertools
import math
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import BackendError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source, tensor
from pipec.graph.torch_private import (
    ON_CPUS,
    FakeTensorMode,
    TorchDispatchMode,
    is_held_once,
    storage_key,
)
from pipec.graph.written import extract
from pipec.passes.differentiate import Differentiate
from pipec.plan.model import Plan
from pipec.runtime.allocations import Allocations
from pipec.runtime.device import Device, backend_for, device_of, local_device, split_gpu_blocks
from pipec.runtime.draws import drawing, seed_module
from pipec.runtime.executor import Settings
from pipec.runtime.placed import place_on
from pipec.runtime.recording import collect_rows, record
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.tensors import TensorType, pack, parts, places_of, restore
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.lagging import Lagging
from tests.runtime.pipelines import accumulated, batches, scheduled, staged, staged_graph


def deep() -> nn.Module:
    layers = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(16, 5))


def halved(k: int) -> tuple[tuple[Tensor, ...], object]:
    (x,), target = floats(4, 16)(k)
    return (x.bfloat16(),), target


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


class Autocast(nn.Module):
    """Parameters in float32, matrix products in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = deep()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.inner(x)
        return out.float()


CROSS = nn.functional.cross_entropy
PRECISIONS = {
    "parameters": Case(lambda: deep().bfloat16(), CROSS, halved),
    "autocast": Case(Autocast, CROSS, floats(4, 16)),
}


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_bfloat16_is_accumulation_bit_for_bit(name: str, schedule: str) -> None:
    case = PRECISIONS[name]
    module = seeded(case)
    plan = staged(case, module, 3)
    order = scheduled(plan, schedule, 4)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    losses = pipeline.run(3)
    want, weights = accumulated(case, module, momentum, 3, 4)
    assert losses == want
    found = pipeline.state_dict()
    assert worst(found, weights) == 0
    kinds = {t.dtype for t in found.values()}
    assert kinds == {torch.bfloat16 if name == "parameters" else torch.float32}


def uneven(case: Case, module: nn.Module) -> Plan:
    """Stages of one node, two nodes, and all others."""
    args, target = case.batch(0)
    graph = trace(module, args, loss=Loss(case.loss, target), source=Source("memory", "test"))
    names = [n.name for n in graph.calls]
    bounds = [0, 1, 3, len(names)]
    parts = [extract(graph, set(names[a:b]), "S") for a, b in itertools.pairwise(bounds)]
    return staged_graph(graph, parts)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "pipedream-2bw"])
def test_stages_of_unlike_size(schedule: str) -> None:
    case = Case(deep, CROSS, floats(4, 16))
    module = seeded(case)
    plan = uneven(case, module)
    sizes = [len(s.graph.calls) for s in plan.stages]
    assert max(sizes) > 3 * min(sizes)
    order = scheduled(plan, schedule, 4)
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    losses = pipeline.run(2)
    want, weights = accumulated(case, module, momentum, 2, 4)
    if order.rule.name == "flush":
        assert losses == want
        assert worst(pipeline.state_dict(), weights) == 0
    else:
        assert losses[0] == want[0]
        assert worst(pipeline.state_dict(), weights) > 0


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of("cpu").torch == torch.device("cpu")
    with pytest.raises(BackendError, match="no such device"):
        device_of("tpu9")
    with pytest.raises(BackendError, match="of cuda"):
        device_of("cuda:99")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        found.append(local_device("auto"))
    assert found == ["cuda:0", "cuda:1", "cuda:0"]
    assert local_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_blocks_are_split_unless_the_user_has_set_the_allocator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_here: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", set_here)
    split_gpu_blocks()
    assert set_here == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    monkeypatch.setattr(os, "environ", set_before := {name: "max_split_size_mb:64"})
    split_gpu_blocks()
    assert set_before == {name: "max_split_size_mb:64"}


BLOCKS = """
import torch
from pipec.runtime.device import device_of
device_of("cuda")
first = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
del first
second = torch.empty((4 << 20) + (1 << 18), dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_stats()["active_bytes.all.current"] == second.numel())
"""
"""A block of 5 MiB is free, and one of a little less is taken."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_no_block_of_a_gpu_is_larger_than_what_it_is_taken_for() -> None:
    ran = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


@pytest.mark.parametrize(
    ("ranks", "device", "backend"),
    [(2, "cuda:0", "cpu:gloo,cuda:nccl"), (3, "cuda:0", "gloo"), (2, "cpu", "gloo")],
)
def test_nccl_only_where_every_rank_has_a_gpu(
    ranks: int, device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert backend_for(device) == backend


def test_graphs_make_their_tensors_where_they_run() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.arange(4, device=x.device) + torch.zeros(2, 4)

    graph = trace(Masked(), (torch.ones(2, 4),), source=Source("memory", "test"))
    (there,) = place_on(graph.module, torch.device("meta"))(torch.ones(2, 4, device="meta"))
    assert there.device.type == "meta"
    (here,) = graph.module(torch.ones(2, 4))
    assert here.device.type == "cpu"


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.three, self.head = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.three(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.head(found.transpose(1, 2).flatten(2).mean(1))
        return out


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_gpu_attends_for_a_cpu_only_without_dropout(dropout: float) -> None:
    """A GPU draws other numbers, and its backward would have to know which."""

    class Attends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = ON_CPUS(x, x, x, dropout)[0]
            return found

    x = torch.randn(1, 2, 8, 16)
    module = trace(Attends(), (x,), source=Source("memory", "")).module
    refused: AbstractContextManager[object] = nullcontext()
    if dropout:
        refused = pytest.raises(BackendError, match="only CPUs have")
    with refused:
        place_on(module, torch.device("cuda"))


def test_attention_in_products_runs_where_the_cpus_kernel_does_not() -> None:
    case = Case(Attend, CROSS, floats(4, 6, 8))
    module = seeded(case)
    plain = staged(case, module, 1)
    bare = plain.replace(
        stages=tuple(type(s)(s.index, s.graph) for s in plain.stages),
    )
    math = Differentiate(attention="math").run(bare)
    meta = torch.device("meta")
    for stage, other in zip(plain.stages, math.stages, strict=True):
        assert stage.training
        assert other.training
        with pytest.raises(BackendError, match=r"only CPUs have(.|\n)*attention=math"):
            place_on(stage.training.F.module, meta)
        place_on(other.training.F.module, meta)
        place_on(other.training.B.module, meta)
    order = scheduled(plain, "1f1b", 2)
    runs = [
        LocalPipeline(p, batches(case, p.graph), Settings(momentum), schedule=order)
        for p in (plain, math)
    ]
    assert runs[0].run(2) == pytest.approx(runs[1].run(2), rel=1e-5)
    assert worst(runs[0].state_dict(), runs[1].state_dict()) < 1e-4


def test_a_tensor_of_other_strides_is_of_another_type() -> None:
    """But for a dimension of size 1, which is never stepped over."""
    t = torch.zeros(4, 3, 2)
    assert TensorType.of(t).is_of(t.clone())
    for other in (t.transpose(0, 1).contiguous().transpose(0, 1), t[:2], t.double(), t[..., :1]):
        assert not TensorType.of(t).is_of(other)
    row = torch.zeros(1, 3)
    assert TensorType.of(row).is_of(row.as_strided((1, 3), (7, 1)))


def test_what_comes_back_is_let_go_tensor_by_tensor() -> None:
    """Under split backward, I lets go what W does not read."""
    device, values = Device(torch.device("cpu")), [torch.ones(100), torch.ones(50)]
    types = [TensorType.of(v) for v in values]
    copy = device.to_host(values, types)
    with Allocations() as memory:
        back = device.from_host(copy, types).parts
        assert memory.live == 600
        back.pop()
        assert memory.live == 400


def test_values_of_any_layout_come_back_to_places_of_their_own() -> None:
    """As a GPU fetches them where no set of the same values has left."""
    values = [
        torch.randn(3, 4).t(),
        torch.randn(2, 1).expand(2, 5),
        torch.randn(4, 8)[:, ::2],
        torch.randn(0, 3),
        torch.tensor(2.5),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ]
    types = [TensorType.of(v) for v in values]
    places = places_of([], types, torch.device("cpu"))
    for place, part in zip(places, parts(pack(values, types), types), strict=True):
        place.copy_(part)
    back = restore(places, types)
    assert [b.stride() for b in back] == [v.stride() for v in values]
    assert all(torch.equal(b, v) for b, v in zip(back, values, strict=True))
    assert len({storage_key(p) for p in places}) == len(values)


def test_host_copies_come_back() -> None:
    device, bits = Device(torch.device("cpu")), torch.arange(16, dtype=torch.uint8)
    copy = device.to_host([bits], [TensorType.of(bits)])
    assert copy.ended
    assert (device.host.held, device.host.peak) == (16, 16)
    (back,) = device.from_host(copy, [TensorType.of(bits)]).parts
    assert torch.equal(back, bits)
    assert back.data_ptr() not in (bits.data_ptr(), copy.buffer.data_ptr())
    assert (device.host.held, device.host.peak) == (0, 16)
    assert device.host.take(16).data_ptr() == copy.buffer.data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("schedule", ["1f1b", "pipedream", "pipefb"])
def test_several_stages_on_one_gpu_give_what_the_cpu_gives(schedule: str) -> None:
    case = CASES["cnn"]
    plan = staged(case, seeded(case), 3)
    order = scheduled(plan, schedule, 6)
    if schedule == "1f1b":
        sizes = [s.training.saved_bytes for s in plan.stages if s.training]
        slots = [Channel(ChannelKind.H, s, s, f"slot{s}", n, 1) for s, n in enumerate(sizes)]
        order = insert_offload(order, slots)
    runs = [
        LocalPipeline(
            plan, batches(case, plan.graph), Settings(momentum), schedule=order, device=name
        )
        for name in ("cpu", "cuda")
    ]
    assert runs[0].run(2) == pytest.approx(runs[1].run(2), rel=1e-3)
    there = {n: w.cpu() for n, w in runs[1].state_dict().items()}
    assert worst(there, runs[0].state_dict()) < 1e-2
    assert torch.cuda.max_memory_allocated() > 0


class Normed(nn.Module):
    """Norms of both kinds, attention that is masked, and attention that is not."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.BatchNorm1d(6), nn.LayerNorm(16)
        self.three, self.head = nn.Linear(16, 48), nn.Linear(16, 5)
        self.register_buffer("mask", torch.zeros(6, 6).masked_fill(torch.eye(6).bool(), -1e4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.three(self.before(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        attend = nn.functional.scaled_dot_product_attention
        found = attend(q, k, v, attn_mask=self.mask.to(q.dtype)) + attend(k, q, v, is_causal=True)
        out: Tensor = self.head(self.after(found.transpose(1, 2).flatten(2)).mean(1))
        return out


def plainly(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def normed(dtype: torch.dtype) -> Case:
    def batch(k: int) -> tuple[tuple[Tensor, ...], object]:
        (x,), target = floats(4, 6, 16)(k)
        return (x.to(dtype),), target

    return Case(lambda: Normed().to(dtype), CROSS, batch)


class Statistics(TorchDispatchMode):
    """Dtypes of what the backwards of norms are given; kernels of GPUs take float32 alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten, first = torch.ops.aten, None
        first = 3 if func is aten.native_layer_norm_backward.default else first
        first = 5 if func is aten.native_batch_norm_backward.default else first
        self.dtypes += [] if first is None else [t.dtype for t in args[first : first + 2]]
        return func(*args, **(kwargs or {}))


class Mixed(nn.Module):
    """Norms in float32 of what autocast has made in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 5)
        batches = nn.BatchNorm1d(16), nn.BatchNorm1d(16, track_running_stats=False)
        self.norms = nn.Sequential(*batches, nn.LayerNorm(16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.last(self.norms(self.first(x)))
        return out.float()


NORMS = {
    "float32": CASES["cnn"],
    "bfloat16": normed(torch.bfloat16),
    "float16": normed(torch.float16),
    "autocast": Case(Mixed, CROSS, floats(8, 16)),
}


@pytest.mark.parametrize("name", NORMS)
def test_what_norms_save_is_offloaded_bit_for_bit(name: str) -> None:
    case = NORMS[name]
    module = seeded(case)
    plan = staged(case, module, 1)
    order = scheduled(plan, "1f1b", 4)
    (stage,) = plan.stages
    assert stage.training
    slot = Channel(ChannelKind.H, 0, 0, "slot", stage.training.saved_bytes, 1)
    runs = [
        LocalPipeline(plan, batches(case, plan.graph), Settings(plainly), schedule=each)
        for each in (order, insert_offload(order, [slot]))
    ]
    losses = runs[0].run(2)
    assert losses == runs[1].run(2)
    assert all(math.isfinite(loss) for loss in losses)
    assert worst(runs[0].state_dict(), runs[1].state_dict()) == 0


@pytest.mark.parametrize("name", NORMS)
def test_what_is_saved_on_a_gpu_has_the_types_of_the_plan(name: str) -> None:
    """GPUs make statistics of norms in float32; a copy to the host would cast them, unseen."""
    case = NORMS[name]
    plan = staged(case, seeded(case), 1)
    bare = plan.replace(stages=tuple(type(s)(s.index, s.graph) for s in plan.stages))
    (stage,) = Differentiate(attention="math").run(bare).stages
    assert stage.training
    gpu = torch.device("cuda", 0)
    for graph in (stage.training.F, stage.training.B):
        function, nodes = place_on(graph.module, gpu), graph.nodes
        with FakeTensorMode():
            given = [TensorType.of(tensor(nodes[i.node])).empty(gpu) for i in graph.inputs]
            with Statistics() as seen:
                found = function(*given)
        assert set(seen.dtypes) == ({torch.float32} if graph is stage.training.B else set())
        for output, value in zip(graph.outputs, found, strict=True):
            want = tensor(nodes[output.node])
            assert (value.dtype, value.shape) == (want.dtype, want.shape), output
            assert value.device == gpu


def test_draws_are_seeded_on_the_gpu_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one."""
    two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    monkeypatch.setattr(torch.cuda, "default_generators", two)
    graph = trace(nn.Dropout(0.5), (torch.ones(4),), source=Source("memory", "test"))
    module = seed_module(graph.module, (3,), torch.device("cuda", 1))
    with drawing(lambda draw: 10 + draw):
        module(torch.ones(4))
    assert [g.initial_seed() for g in two] == [1, 13]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_a_gpu_attends_as_a_cpu_does(dtype: torch.dtype, depth: int | None) -> None:
    """With the CPU's strides too, which is how saved values come back from host memory."""
    case = normed(dtype)
    plan = staged(case, seeded(case), 1)
    order = scheduled(plan, "1f1b", 4)
    (stage,) = plan.stages
    assert stage.training
    if depth is not None:
        size = stage.training.saved_bytes
        order = insert_offload(order, [Channel(ChannelKind.H, 0, 0, "slot", size, depth)])
    runs = [
        LocalPipeline(
            plan, batches(case, plan.graph), Settings(momentum), schedule=order, device=name
        )
        for name in ("cpu", "cuda")
    ]
    rel = 1e-5 if dtype == torch.float32 else 0.05
    assert runs[0].run(2) == pytest.approx(runs[1].run(2), rel=rel)
    there = {n: w.cpu() for n, w in runs[1].state_dict().items()}
    assert worst(there, runs[0].state_dict()) < rel


def test_copies_are_recorded_when_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when they are issued, as what computes is."""
    case = Case(deep, CROSS, floats(4, 16))
    plan = staged(case, seeded(case), 1)
    slot = Channel(ChannelKind.H, 0, 0, "slot", 1, 1)
    order = insert_offload(scheduled(plan, "gpipe", 6), [slot])
    monkeypatch.setattr("pipec.runtime.runner.device_of", lambda _: Lagging())
    pipeline = LocalPipeline(plan, batches(case, plan.graph), Settings(momentum), schedule=order)
    record(pipeline)
    assert pipeline.run(1) == accumulated(case, seeded(case), momentum, 1, 6)[0]
    (rows,) = (collect_rows(pipeline) or {}).values()
    own = {ActionKind.OFFLOAD: (-2.0, -1.0), ActionKind.FETCH: (-4.0, -3.0)}
    for place, begin, end, _ in rows.tolist():
        kind = order[int(place)].kind
        assert (begin, end) == own[kind] if kind in own else 0 <= begin < end


def test_a_tensor_is_held_once_if_nothing_else_can_read_its_memory() -> None:
    one = torch.ones(4)
    tensors = [torch.ones(4), torch.ones(4), torch.ones(4)[1:], one, torch.ones(4), torch.ones(4)]
    view, array = tensors[1][2:], tensors[4].numpy()
    parameter = nn.Parameter(tensors[5])
    held = [is_held_once(tensors, k) for k in range(6)]
    assert held == [True, False, False, False, False, False]
    del view, array, parameter, one
    assert [is_held_once(tensors, k) for k in range(6)] == [True, True, False, True, True, True]
    tensors[2] = tensors[2].clone()
    assert is_held_once(tensors, 2)
