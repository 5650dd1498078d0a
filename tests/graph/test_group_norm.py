"""Group normalisations of half precision by weights in float32: the types of a CPU's results."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import pipec
import pipec.graph.norms  # registers rules for fake tensors
from pipec.graph.torch_private import FakeTensorMode

aten = torch.ops.aten
FORMATS = [torch.contiguous_format, torch.channels_last]


def described(tensors: Sequence[Tensor | None]) -> list[object]:
    return [None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors]


@pytest.mark.parametrize("memory", FORMATS, ids=str)
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False)], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_fake_results_have_the_types_of_real_ones(
    memory: torch.memory_format, wanted: tuple[bool, ...], kind: torch.dtype
) -> None:
    def results() -> list[object]:
        x = torch.ones(2, 4, 2, 3, dtype=torch.bfloat16).contiguous(memory_format=memory)
        w = torch.ones(4, dtype=kind)
        found = aten.native_group_norm(x, w, w, 2, 4, 6, 2, 1e-5)
        _, mean, scale = found
        back = aten.native_group_norm_backward(x, x, mean, scale, w, 2, 4, 6, 2, list(wanted))
        return described([*found, *back])

    with FakeTensorMode():
        fake = results()
    assert fake == results()


def test_an_instance_normalisation_saves_what_a_cpu_saves() -> None:
    def results() -> list[object]:
        x, w = torch.ones(1, 8, 6, dtype=torch.bfloat16), torch.ones(8)
        return described(aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5))

    with FakeTensorMode():
        fake = results()
    assert fake == results()


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)], ids=str)
@pytest.mark.parametrize("offload", ["1", "*"])
def test_statistics_under_autocast_wait_in_host_memory(norm: nn.Module, offload: str) -> None:
    layers = [nn.Linear(6, 6), norm, nn.Linear(6, 6), norm]
    model, x = nn.Sequential(*layers), torch.randn(3, 4, 6)

    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    plan = pipec.compile(
        model, x, "2xcpu", loss=loss, autocast="bfloat16", schedule="1f1b", microbatches=2,
        offload=offload,
    )  # fmt: skip
    with pipec.Pipeline(plan, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)) as pipeline:
        pipeline.step({"input": torch.cat([x, x])})
        found = pipeline.state_dict() or {}
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss(model(x)).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        want = weight.detach() - 0.1 * weight.grad
        torch.testing.assert_close(found[name], want, rtol=0.02, atol=0.002)
    model.zero_grad()
