"""Lowered designs compute what the model computes, whatever the factors; and views are permutes."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipec.backends.fpga.engines.base import run_table
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.engines.network import MemoryPorts, Network
from pipec.backends.fpga.engines.norm import Norm
from pipec.backends.fpga.engines.route import Concat
from pipec.backends.fpga.engines.view import View, indices, permutation
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.runs import tokens
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.design.numeric import execute


@lru_cache
def lowered(name: str) -> tuple[Network, Tensor, tuple[Tensor, ...]]:
    model, x = made(name)
    with torch.no_grad():
        want = model(x)
    return lower(graph_of(model, x)), x, want if isinstance(want, tuple) else (want,)


@pytest.mark.parametrize("target", [1, 150, 700, 3000, 10**6])
@pytest.mark.parametrize("name", MODELS)
def test_design_computes_what_the_model_computes(name: str, target: int) -> None:
    network, x, want = lowered(name)
    design = design_at(network, target)
    got = execute(design, {design.inputs[0].value: x})
    for port, tensor in zip(design.outputs, want, strict=True):
        assert torch.allclose(got[port.value].float(), tensor, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_streams_balance(name: str, dtype: str) -> None:
    """Every stream has one writer and one reader, which agree on its tokens per frame."""
    network, _, _ = lowered(name)
    for target in (1, 400, 10**5):
        design = design_at(network, target, dtype=dtype)
        for engine in design.engines:
            table = run_table(engine)
            for k, s in enumerate(engine.inputs):
                assert tokens(table, k, written=False) == design.streams[s].tokens, s
                assert design.streams[s].consumer == engine.name
            for k, s in enumerate(engine.outputs):
                assert tokens(table, k, written=True) == design.streams[s].tokens, s
                assert design.streams[s].producer == engine.name


def test_streamed_weights_compute_the_same() -> None:
    network, x, want = lowered("vgg")
    layers = [layer.name for layer in network.layers if layer.name.startswith("linear")]
    convs = [layer.name for layer in network.layers if layer.name == "conv2d"]
    for block in (1, 2, 4):
        streamed = dict.fromkeys(layers, 1) | dict.fromkeys(convs, block)
        design = design_at(network, 500, streamed=streamed)
        assert sum(e.kind == "load" for e in design.engines) == 3
        got = execute(design, {design.inputs[0].value: x})
        assert torch.allclose(got[design.outputs[0].value].float(), want[0], atol=2e-5)


def test_inputs_may_be_passed_on() -> None:
    class Relay(nn.Module):
        def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            return x.reshape(3, 4), i, torch.relu(x), x

    x, i = torch.randn(2, 6), torch.arange(5)
    design = design_at(lower(graph_of(Relay(), x, i)), 3)
    got = execute(design, dict(zip([p.value for p in design.inputs], (x, i), strict=True)))
    for port, want in zip(design.outputs, (x.reshape(3, 4), i, torch.relu(x), x), strict=True):
        assert torch.equal(got[port.value], want.double())
    assert design.streams[design.inputs[1].stream].dtype == "int32"


def test_affine_steps_vanish_into_weights() -> None:
    network, _, _ = lowered("resnet")
    assert not [e for e in design_at(network, 100).engines if "batch_norm" in e.name]


def test_channel_shuffle_costs_nothing_before_a_depthwise_convolution() -> None:
    network, _, _ = lowered("shuffle")
    perms = [e for e in design_at(network, 100).engines if e.kind == "perm"]
    assert len(perms) == 1  # in front of the grouped convolution behind it


def test_all_unsupported_nodes_are_listed() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cumsum(x, 1) + torch.sort(x)[0]

    with pytest.raises(BackendError) as caught:
        lower(graph_of(Odd(), torch.randn(2, 3)))
    text = str(caught.value)
    for part in ("2 node(s)", "aten.cumsum.default cumsum", "aten.sort.default sort", "hint"):
        assert part in text


def test_dropout_in_training_names_the_remedy() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), torch.randn(2, 4))
    with pytest.raises(BackendError, match="eval mode"):
        lower(graph)


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.data(), shapes)
def test_views_follow_numpy(data: st.DataObject, shape: list[int]) -> None:
    """A view's indices pick the logical elements in the order of the stream."""
    order = data.draw(st.permutations(range(len(shape))))
    view = View.of(shape, order)
    logical = np.arange(int(np.prod(shape))).reshape(shape)
    stream = logical.transpose(order).reshape(-1)
    for _ in range(3):
        if data.draw(st.booleans()):
            axes = data.draw(st.permutations(range(len(view.shape))))
            moved = view.permute(axes)
            if moved is None:
                continue
            view, logical = moved, logical.transpose(axes)
        else:
            sizes = data.draw(st.permutations([*view.shape, 1]))
            view, logical = view.reshape(sizes), logical.reshape(sizes)
        assert (logical.reshape(-1)[indices(view.atoms)] == stream).all()
        assert view.shape == logical.shape


@settings(max_examples=100, deadline=None)
@given(st.data(), shapes)
def test_permutation_turns_one_order_into_another(data: st.DataObject, shape: list[int]) -> None:
    logical = np.arange(int(np.prod(shape))).reshape(shape)
    orders = [data.draw(st.permutations(range(len(shape)))) for _ in range(2)]
    have, want = (View.of(shape, o) for o in orders)
    found = permutation(have, want)
    assert found is not None
    sizes, axes = found
    stream = logical.transpose(orders[0]).reshape(sizes)
    assert (stream.transpose(axes).reshape(-1) == logical.transpose(orders[1]).reshape(-1)).all()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 7), st.integers(1, 7), st.integers(0, 3), st.sampled_from([4, 6, 10]),
    st.sampled_from([1, 40, 10**6]),
)  # fmt: skip
def test_inputs_that_are_too_slow_pixel_by_pixel_are_read_in_pairs(
    kh: int, kw: int, pad: int, width: int, target: int
) -> None:
    """A first convolution of stride 2 computes the same over pairs, in half as many tokens."""
    torch.manual_seed(kh)
    pad = min(pad, kh // 2, kw // 2)
    model = nn.Sequential(nn.Conv2d(3, 5, (kh, kw), 2, pad), nn.ReLU())
    x = torch.randn(2, 3, 9, width + 8)
    graph = graph_of(model, x)
    one, two = lower(graph), lower(graph, pace=10)
    assert two.inputs[0].use.channels == 2 * one.inputs[0].use.channels
    assert two.macs == one.macs
    design = design_at(two, target)
    assert design.streams[design.inputs[0].stream].rows == x.numel() // 6
    got = execute(design, {design.inputs[0].value: x})[design.outputs[0].value]
    assert torch.allclose(got.float(), model(x), atol=2e-5)


def test_inputs_with_two_readers_or_odd_rows_stay_as_they_are() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 4, 3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), torch.relu(x)

    x = torch.randn(1, 3, 8, 8)
    network = lower(graph_of(Two(), x), pace=10)
    assert network.inputs[0].use.channels == 3
    design = design_at(network, 500)
    got = execute(design, {design.inputs[0].value: x})
    want = Two()(x)[1]
    assert torch.allclose(got[design.outputs[1].value].float(), want)
    odd = lower(graph_of(nn.Conv2d(3, 4, 3, 2), torch.randn(1, 3, 8, 9)), pace=10)
    assert odd.inputs[0].use.channels == 3


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 60), st.integers(1, 5), st.sampled_from([1, 3, 10, 10**6]),
    st.sampled_from([1, 60, 10**6]), st.sampled_from([40, 400, 10**6]),
)  # fmt: skip
def test_matrices_that_are_too_large_for_a_memory_port_are_parted(
    rows: int, out: int, ports: int, pace: int, target: int, room: int
) -> None:
    """The parts compute the same, no more of them than ports, nor than pace and room want."""
    torch.manual_seed(out)
    model, x = nn.Linear(12, out), torch.randn(rows, 12)
    network = lower(graph_of(model, x), pace=pace, memory=MemoryPorts(ports, room))
    parts = [layer for layer in network.layers if isinstance(layer.nest, Mvu)]
    beats = 12 * out * 32 / 512
    wanted = math.ceil(beats / pace)
    counts = [d for d in range(1, ports + 1) if out % d == 0]
    least = math.ceil(12 * out * 4 / room)
    fewest = max(d for d in counts if d <= wanted)
    enough = [d for d in counts if d >= max(fewest, least)]
    assert len(parts) == (enough[0] if enough else fewest)
    assert len({layer.name for layer in network.layers}) == len(network.layers)
    assert network.macs == rows * 12 * out
    design = design_at(network, target, streamed={parts[0].name: 1})
    got = execute(design, {design.inputs[0].value: x})[design.outputs[0].value]
    assert torch.allclose(got.float(), model(x), atol=2e-5)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data(), st.booleans(),
    st.sampled_from(["mean", "sum", "amax"]),
)  # fmt: skip
def test_any_axes_are_reduced(shape: list[int], data: st.DataObject, keep: bool, op: str) -> None:
    """A network that reads an input of this shape, doubles it and reduces some of its axes."""
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))

    class Reduced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = getattr(x * 2, op)(tuple(axes), keepdim=keep)
            return found

    torch.manual_seed(len(axes))
    x = torch.randn(shape)
    network = lower(graph_of(Reduced(), x))
    design = design_at(network, data.draw(st.sampled_from([1, 20, 1_000])))
    got = execute(design, {design.inputs[0].value: x})[design.outputs[0].value]
    want = Reduced()(x)
    assert torch.allclose(got.float().reshape(want.shape), want, atol=1e-5)


def test_an_empty_part_of_a_concatenation_is_nothing() -> None:
    """As exporters pad shapes: the layers are those of the parts that hold something."""

    class Empty(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, torch.zeros(2, 0), y], 1)

    network = lower(graph_of(Empty(), torch.randn(2, 3), torch.randn(2, 4)))
    assert [type(y.nest) for y in network.layers] == [Concat]
    assert [use.edge for use in network.layers[0].inputs] == ["in_x", "in_y"]


def test_parts_of_an_op_do_not_take_the_name_of_another_op() -> None:
    class Rolls(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(x.roll(k, 1) for k in range(1, 6))  # nodes roll, roll_1, roll_2 ...

    x = torch.arange(14.0).reshape(2, 7)
    design = design_at(lower(graph_of(Rolls(), x)), 100)
    got = execute(design, {design.inputs[0].value: x})
    want = Rolls()(x)
    assert [torch.equal(got[p.value], y) for p, y in zip(design.outputs, want, strict=True)] == [
        True
    ] * 5


class Response(nn.Module):
    """A local response normalisation, as torch writes it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.local_response_norm(x, self.size, 0.1, 0.75, 2.0)


@pytest.mark.parametrize("shape", [(2, 7, 5), (2, 7, 5, 6), (2, 7, 3, 2, 3)])
def test_a_local_response_normalisation_is_one_engine(shape: tuple[int, ...]) -> None:
    network = lower(graph_of(Response(5), torch.randn(shape)))
    (norm,) = (y.nest for y in network.layers if isinstance(y.nest, Norm))
    assert (norm.op, norm.size, norm.alpha, norm.beta, norm.k) == ("lrn", 5, 0.1, 0.75, 2.0)


def test_a_response_to_other_neighbours_is_another_function() -> None:
    """Torch pads windows of even size on the other side than the engine."""
    with pytest.raises(BackendError, match="padding of other axes"):
        lower(graph_of(Response(4), torch.randn(2, 7, 5, 6)))
