"""Whole models: the traced graph is the model, bit for bit, and its rules hold."""

from collections import Counter
from functools import cache
from itertools import product

import pytest
import torch
from torch import fx, nn

from pipec.frontends import trace as tracing
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import InputKind, OutputKind, op_name, origin, tensors
from pipec.graph.rules import verify
from pipec.graph.torch_private import FakeTensorMode
from tests.frontends.torch.running import run
from tests.frontends.torch.zoo import ZOO, make
from tests.sampling import without


@cache
def read(name: str) -> Loaded:
    """A model of the zoo, traced once for all tests."""
    return from_module(*make(name))


@pytest.mark.parametrize("name", ZOO)
def test_graph_equals_the_model(name: str) -> None:
    loaded = read(name)
    inputs = loaded.example_inputs
    verify(loaded.graph)
    got, want = run(loaded.graph, inputs), loaded.original(inputs)
    assert got.keys() == want.keys()
    for key in want:
        torch.testing.assert_close(got[key], want[key], rtol=1e-5, atol=1e-5)


def test_the_module_is_left_in_its_mode() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    module[1].eval()
    from_module(module, torch.ones(1, 2))
    assert [m.training for m in module.modules()] == [True, True, False]


@pytest.mark.parametrize("name", ["resnet", "bert", "t5", "mixtral"])
def test_training_graph_equals_the_model(name: str) -> None:
    """With batch norm updates, dropout (same seed, same masks) and the loss in the graph."""
    module, inputs = make(name)
    loaded = from_module(module, inputs, loss=lambda out: out[0].square().mean())
    torch.manual_seed(1)
    got = run(loaded.graph, inputs)
    torch.manual_seed(1)
    want = loaded.original(inputs)
    assert torch.equal(got["loss"], want["loss"])
    assert [o.kind for o in loaded.graph.outputs_of(OutputKind.LOSS, OutputKind.OUTPUT)] == ["loss"]


def test_buffer_updates_are_outputs() -> None:
    module, inputs = make("resnet")
    loaded = from_module(module, inputs, loss=lambda out: out.logits.sum())
    updates = loaded.graph.outputs_of(OutputKind.BUFFER_UPDATE)
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(updates) == 3 * len(norms)
    got = run(loaded.graph, inputs)
    before = {k: b.clone() for k, b in module.named_buffers()}
    loaded.original(inputs)
    assert all(torch.equal(b, before[k]) for k, b in module.named_buffers()), "left as it was"
    module(**inputs)
    for k, b in module.named_buffers():
        torch.testing.assert_close(got[k], b)


@pytest.mark.parametrize(
    ("name", "aliases"),
    [
        ("gpt2", {"transformer.wte.weight": ("lm_head.weight",)}),
        (
            "t5",
            {
                "shared.weight": (
                    "encoder.embed_tokens.weight",
                    "decoder.embed_tokens.weight",
                    "lm_head.weight",
                )
            },
        ),
    ],
)
def test_tied_weights_are_one_input(name: str, aliases: dict[str, tuple[str, ...]]) -> None:
    graph = read(name).graph
    assert graph.tied == aliases
    names = [i.name for i in graph.inputs]
    assert set(aliases) <= set(names)
    assert not {a for other in aliases.values() for a in other} & set(names)


def test_origins_name_modules_and_relative_lines() -> None:
    graph = read("llama").graph
    found = {n.name: origin(n) for n in graph.calls}
    queries = [o for o in found.values() if o.name == "model.layers.1.self_attn.q_proj"]
    assert [o.op for o in queries] == ["Linear"]
    assert all(o.location is None or not o.location.startswith("/") for o in found.values())
    location = queries[0].location
    assert location is not None
    assert location.startswith("transformers/models/llama/modeling_llama.py:")
    assert {k for n in graph.module.graph.nodes for k in n.meta} == {"val", "origin"}


def test_foreign_ops_are_declared() -> None:
    assert read("mixtral").graph.namespaces == {"transformers"}


def typed(node: fx.Node) -> tuple[object, ...]:
    """Op, shapes, dtypes and strides."""
    return (op_name(node), *((t.shape, t.dtype, t.stride()) for t in tensors(node)))


KINDS = ("bert", "llama", "vit", "mixtral")


@pytest.mark.parametrize(
    ("name", "training"),
    without(product(KINDS, [False, True]), product(KINDS[1:], [False])),
)
def test_skipping_decomposition_changes_nothing(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = make(name)
    loss = (lambda out: out[0].sum()) if training else None
    quick = from_module(module, inputs, loss).graph
    monkeypatch.setattr(tracing, "is_functional", lambda _: False)
    slow = from_module(module, inputs, loss).graph
    assert Counter(map(typed, quick.calls)) == Counter(map(typed, slow.calls))


def test_meta_parameters_trace_as_cpu() -> None:
    with torch.device("meta"):
        module, inputs = make("llama")
    ids = torch.zeros(inputs["input_ids"].shape, dtype=torch.int64)
    loaded = from_module(module, {"input_ids": ids})
    assert list(map(op_name, loaded.graph.calls)) == list(map(op_name, read("llama").graph.calls))
    devices = {
        n.meta["val"].device.type
        for n in loaded.graph.module.graph.nodes
        if isinstance(n.meta.get("val"), torch.Tensor)
    }
    assert devices == {"cpu"}
    assert all(p.device.type == "meta" for p in module.parameters()), "left as it was"


def test_fake_parameters() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.empty(2, 8)
    graph = from_module(module, x).graph
    assert [op_name(n) for n in graph.calls] == ["aten.linear.default", "aten.tanh.default"]


def test_seed_makes_weights_reproducible() -> None:
    spec = "tests.frontends.torch.factories:seeded"
    from pipec.frontends.load import load

    a, b, c = (load(spec, LoadOptions(seed=s)).graph for s in (1, 1, 2))
    assert a.source.sha256 == b.source.sha256 != c.source.sha256
    assert torch.equal(a.weights["weight"], b.weights["weight"])


def test_one_tensor_for_two_inputs_stays_two_inputs() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + 10 * y

    one = torch.ones(2)
    graph = from_module(Two(), (one, one)).graph
    assert torch.equal(run(graph, {"x": one, "y": 2 * one})["output"], 21 * one)


def test_unused_parameters_stay() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.used(x)
            return result

    graph = from_module(Unused(), torch.ones(1, 2)).graph
    names = [i.name for i in graph.inputs_of(InputKind.PARAMETER)]
    assert {"idle.weight", "idle.bias"} < set(names)
