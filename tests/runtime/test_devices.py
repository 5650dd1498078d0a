"""Number formats, unlike stages, and devices; what needs a GPU runs where there is one."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from pipec.errors import BackendError
from pipec.frontends.trace import Loss, trace
from pipec.graph.extract import extract
from pipec.graph.ir import Source
from pipec.passes.differentiate import Differentiate
from pipec.plan.model import Plan
from pipec.runtime.device import Device, backend_for, device_of, local_device
from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.placed import placed
from pipec.runtime.tensors import TensorType
from pipec.schedule.channels import Channel, ChannelKind
from pipec.schedule.offload import insert_offload
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
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
    (there,) = placed(graph.module, torch.device("meta"))(torch.ones(2, 4, device="meta"))
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
            placed(stage.training.F.module, meta)
        placed(other.training.F.module, meta)
        placed(other.training.B.module, meta)
    order = scheduled(plain, "1f1b", 2)
    runs = [
        LocalPipeline(p, batches(case, p.graph), Settings(momentum), schedule=order)
        for p in (plain, math)
    ]
    assert runs[0].run(2) == pytest.approx(runs[1].run(2), rel=1e-5)
    assert worst(runs[0].state_dict(), runs[1].state_dict()) < 1e-4


def test_host_copies_come_back() -> None:
    device, bits = Device(torch.device("cpu")), torch.arange(16, dtype=torch.uint8)
    copy = device.to_host([bits], [TensorType.of(bits)])
    assert copy.ended
    assert (device.host.held, device.host.peak) == (16, 16)
    back = device.wait(device.from_host(copy))
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
