"""The table of ops: what torch's kernels do not look at is looked at before they run."""

import logging
import random

import pytest
import torch
from torch import nn

import pipec
from benchmarks.fuzz_ops import admits, again_guarded, build
from pipec.errors import GraphError
from pipec.graph.arguments import table
from pipec.graph.infer import result_type
from pipec.graph.rules import verify
from pipec.graph.torch_private import OpOverload
from pipec.graph.whitelist import resolve
from tests.toys import Builder, aten

T = torch.zeros


def lstm(*, hidden: int = 8, rows: int = 32, samples: int = 2) -> tuple[object, ...]:
    states = [T(1, samples, 8), T(1, samples, 8)]
    weights = [T(rows, 16), T(32, hidden), T(32), T(32)]
    return T(4, 2, 16), states, weights, True, 1, 0.0, False, False, False


def projected(*, read: int = 3, made: int = 3, samples: int = 2) -> tuple[object, ...]:
    states = [T(1, samples, 3), T(1, 2, 8)]
    weights = [T(32, 16), T(32, read), T(32), T(32), T(made, 8)]
    return T(4, 2, 16), states, weights, True, 1, 0.0, False, False, False


def attention(heads: int = 2, mask: int = 1) -> tuple[object, ...]:
    return T(2, 2, 8, 8), T(2, heads, 8, 8), T(2, 2, 8, 8), 0.0, False, T(2, mask, 8, 8)


SOUND_AND_HOSTILE = {
    "_log_softmax_backward_data.default": (
        (T(2, 3), T(2, 3), 1, torch.float32),
        (T(2, 3), T(3), 1, torch.float32),
    ),
    "gelu_backward.default": ((T(10), T(10)), (T(10, 10).t(), T(10))),
    "_native_batch_norm_legit_no_training.default": (
        (T(2, 16, 4), T(16), None, T(16), T(16), 0.1, 1e-5),
        (T(2, 16, 4), T(16), None, T(1), T(16), 0.1, 1e-5),
    ),
    "_adaptive_avg_pool2d_backward.default": (
        (T(1, 8, 5, 7), T(1, 8, 8, 8)),
        (T(1, 8, 5, 7), T(1, 7, 8, 8)),
        (T(1, 8, 3, 3), T(1, 8, 0, 0)),  # without a rule it ends the process
    ),
    "adaptive_max_pool2d_backward.default": (
        (T(3, 4, 1, 3), T(3, 4, 1, 4), T(3, 4, 1, 3, dtype=torch.int64)),
        (T(3, 4, 1, 3), T(3, 4, 1, 4), T(3, 4, 1, 1, dtype=torch.int64)),
    ),
    "grid_sampler_3d_backward.default": (
        (T(2, 3, 4, 4, 4), T(2, 3, 5, 6, 7), T(2, 4, 4, 4, 3), 0, 0, False, [True, True]),
        (T(2, 3, 5, 6, 7), T(2, 3, 5, 6, 7), T(2, 4, 4, 4, 3), 0, 0, False, [True, True]),
    ),
    "lstm.input": (lstm(), lstm(hidden=2), lstm(rows=31), lstm(samples=1)),
    "_scaled_dot_product_flash_attention_for_cpu.default": (
        attention(),
        attention(heads=3),
        attention(heads=1),  # of the keys alone
        attention(mask=3),
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": (
        (*[T(2, 2, 4, 8)] * 5, T(2, 2, 4), 0.0, False),
        (T(2, 2, 4, 8), *[T(2, 2, 4, 8)] * 4, T(2, 2, 1), 0.0, False),
    ),
}
"""Op to arguments that it takes, and to some that it would read or write out of bounds with."""


@pytest.mark.parametrize("name", SOUND_AND_HOSTILE)
def test_sizes_that_a_kernel_does_not_compare(name: str) -> None:
    op = resolve(f"aten.{name}")
    assert isinstance(op, OpOverload)
    sound, *hostile = SOUND_AND_HOSTILE[name]

    def takes(args: tuple[object, ...]) -> bool:
        mask = name.startswith("_scaled") and len(args) == 6
        kwargs = {"attn_mask": args[-1]} if mask else {}
        return admits(op, list(args[: len(args) - mask]), kwargs)

    assert takes(sound)
    assert not any(map(takes, hostile))


def test_sizes_of_an_lstm_that_projects_its_output() -> None:
    op = resolve("aten.lstm.input")
    assert isinstance(op, OpOverload)
    hostile = projected(read=8), projected(made=2), projected(samples=1)
    assert [admits(op, list(args), {}) for args in (projected(), *hostile)] == [
        True,
        *[False] * 3,
    ]


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(3)])
def test_a_batch_of_no_samples_is_pooled_as_eager_torch_does(pool: nn.Module) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), pool), torch.zeros(0, 3, 8, 8)
    loss = torch.Tensor.sum
    loss(model(x)).backward()
    plan = pipec.compile(model, x, "1xcpu", loss=loss)
    report = pipec.verify(plan, model, x, loss=loss)
    assert report.ok
    assert {b.name for b in report.boundaries if b.kind == "gradient"} == {"0.weight", "0.bias"}


class Grouped(nn.Module):
    """Attention of four heads, of which two share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.parts(x).unflatten(-1, (8, 2)).transpose(1, 2)
        q, k, v = heads.split([4, 2, 2], 1)
        found: torch.Tensor = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return found


def test_heads_that_share_keys_are_trained() -> None:
    torch.manual_seed(0)
    model, x = Grouped(), torch.randn(2, 5, 8)
    plan = pipec.compile(model, x, "1xcpu", loss=lambda y: y.square().mean())
    report = pipec.verify(plan, model, x, loss=lambda y: y.square().mean())
    assert report.ok
    assert {b.name for b in report.boundaries if b.kind == "gradient"} == {
        "parts.weight",
        "parts.bias",
    }


def test_the_error_names_node_argument_and_want() -> None:
    b = Builder()
    x, g = b.input("x", 10), b.input("g", 10)
    node = b.call(aten.gelu_backward.default, g, x)
    graph = b.graph(node)
    with b.mode:
        graph.node("g").meta["val"] = torch.empty(10, 10)
    with pytest.raises(GraphError, match=r"\[arguments-agree\] gelu_backward") as caught:
        verify(graph)
    assert "grad_output of (10, 10); want (10,)" in str(caught.value)


def test_what_fake_tensors_refuse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    told = result_type(aten.gather.default, (T(2, 3), -(1 << 63), T(2, 3, dtype=torch.int64)), {})
    logger.removeHandler(caplog.handler)
    assert "Dimension out of range" in str(told)
    assert not caplog.records


def test_hostile_arguments_never_end_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    """`make fuzz-ops` tries every op of the table; here those that need rules."""
    code = again_guarded(["ruled", "--trials", "6", "--seconds", "2"])
    told = "".join(capfd.readouterr())
    assert code == 0, told
    assert "0 faults" in told


def test_all_ops_of_the_table_are_functional_ops_of_torch() -> None:
    for name in table():
        assert str(resolve(name)) == name
    assert len(table()) > 700


def test_a_call_is_built_from_its_text() -> None:
    told = {"tensor": "int64[5]", "low": 3, "high": 3, "one": 2**40}
    made = build([told, 2, {"dtype": "bool"}], random.Random(0))
    assert sorted(made[0].tolist()) == [3, 3, 3, 3, 2**40]
    assert made[1:] == [2, torch.bool]


def test_a_target_that_is_cut_out_of_a_batch_is_taken() -> None:
    """The loss flattens a copy of it, which B reads through a view of its own."""
    ids = torch.zeros(2, 5, dtype=torch.long)
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())

    plan = pipec.compile(model, ids[:, :-1], "2xcpu", loss=(loss, ids[:, 1:]), schedule="1f1b")
    assert len(plan.stages) == 2
