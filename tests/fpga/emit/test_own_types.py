"""Layers with an element type of their own, bit for bit, on one board and on two."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipec.backends.fpga.cutting.joint import joint_cut
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.lowering.types import parse_types
from pipec.backends.fpga.numbers import decode, encode
from pipec.backends.fpga.search import Board
from pipec.cluster.cluster import Link, parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.errors import BackendError, PipecError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.plan.model import Plan
from tests.sampling import each

SHAPE = (4, 6)


class Net(nn.Module):
    """Two layers, a sum around the second one, a maximum, and a third layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = y + self.second(y)
        return self.head(y.amax(0, keepdim=True))  # type: ignore[no-any-return]


def network(model: nn.Module) -> Graph:
    torch.manual_seed(1)
    return trace(model.eval(), (torch.randn(SHAPE) * 2,), source=Source("memory", ""))


def planned(model: nn.Module, precision: str, devices: str = "1xvcu118") -> Plan:
    options = {"precision": precision}
    return make_plan(network(model), parse_cluster(devices), "fpga", options=options)


def held(x: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """Numbers rounded to a type."""
    return decode(encode(x, dtype), dtype).astype(np.float64)


def dense(layer: nn.Linear, x: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """A layer that computes in a type; sums are exact in float64."""
    weight, bias = (held(p.detach().double().numpy(), dtype) for p in (layer.weight, layer.bias))
    return held(held(x, dtype) @ weight.T + bias, dtype)


def run(plan: Plan, out: Path, x: Tensor) -> NDArray[np.float64]:
    """What the emitted stages make of an input, one after the other."""
    emit(plan, out)
    (name,) = (i.name for i in plan.graph.inputs_of(InputKind.INPUT))
    values = {name: x}
    for stage in load_backend("fpga").load(plan, out).stages:
        values |= stage(values)
    return values[plan.graph.outputs[0].name].double().numpy()


@pytest.mark.parametrize(
    ("types", "devices"),
    each(
        [("ap_fixed<16,6>", "ap_fixed<18,5>"), ("ap_fixed<6,4>", "ap_fixed<24,8>"),
         ("ap_fixed<10,5>", "float32")],
        ["2xvcu118", "1xvcu118"],
    ),
)  # fmt: skip
def test_each_layer_computes_in_its_type(
    types: tuple[str, str], devices: str, tmp_path: Path
) -> None:
    second, head = types
    torch.manual_seed(0)
    model, rest = Net(), "ap_fixed<10,5>"
    x = torch.randn(SHAPE) * 2
    plan = planned(model, f"{rest}; second = {second}; head = {head}", devices)
    found = run(plan, tmp_path / "out", x)
    y = dense(model.first, x.double().numpy(), rest)
    y = held(y + held(dense(model.second, y, second), rest), rest)
    want = dense(model.head, y.max(0, keepdims=True), head)
    tolerance = 0.0 if head != "float32" else 1e-5
    assert np.abs(found - want).max() <= tolerance
    widths = {s.dtype for d in designs_of(plan) for s in d.streams.values()}
    assert widths == {rest, second, head}


def test_a_type_of_its_own_makes_a_difference(tmp_path: Path) -> None:
    """What the test before compares with would not be met by another type."""
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(SHAPE) * 2
    results = [
        run(planned(model, precision), tmp_path / str(k), x)
        for k, precision in enumerate(
            ("ap_fixed<10,5>", "ap_fixed<10,5>; head = ap_fixed<18,5>", "ap_fixed<18,5>")
        )
    ]
    with torch.no_grad():
        want = model(x).double().numpy()
    errors = [np.abs(found - want).max() for found in results]
    assert errors[2] < errors[1] < errors[0]


@pytest.mark.parametrize("narrow", ["ap_fixed<8,4>", "ap_fixed<24,8>"])
def test_a_link_carries_the_type_of_what_writes(narrow: str, tmp_path: Path) -> None:
    """Both boards take the value for numbers of the sender's type; nothing else has it."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(SHAPE)
    kinds = ["ap_fixed<12,6>", narrow, narrow, "ap_fixed<16,6>"]
    own = "; ".join(f"{k} = {kind}" for k, kind in enumerate(kinds))
    found = run(plan := planned(model, f"float32; {own}", "2xvcu118"), tmp_path / "out", x)
    sender, receiver = designs_of(plan)
    (sent,), (read,) = sender.outputs, receiver.inputs
    assert sender.streams[sent.stream].dtype == receiver.streams[read.stream].dtype
    assert sender.streams[sent.stream].dtype in kinds
    want = x.double().numpy()
    for layer, kind in zip(layers, kinds, strict=True):
        want = dense(layer, want, kind)
    assert np.array_equal(found, want)


def test_a_slow_link_is_cut_by_the_types_that_cross_it() -> None:
    """Layers that all have a narrow type of their own cost a link what that precision costs."""
    graph = network(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))))
    seconds = list[float]()
    for precision, own in (
        ("ap_fixed<8,4>", ()),
        ("ap_fixed<24,8>", (("*", "ap_fixed<8,4>"),)),
        ("ap_fixed<24,8>", ()),
    ):
        plan = make_plan(graph, parse_cluster("2xvcu118"), "fpga")
        boards = [Board(d, precision, own=own) for d in plan.cluster.devices]
        cut = joint_cut(plan, boards, [Link(1e5, 0.0)])
        assert cut is not None
        seconds.append(cut.max_load)
    assert seconds[0] == seconds[1] < seconds[2]


def test_values_are_as_wide_as_their_layers_types() -> None:
    graph = network(Net())
    precision, own = parse_types("ap_fixed<16,6>; second = ap_fixed<8,4>; se* = ap_fixed<24,8>")
    found = lower(graph, precision, own=own)
    types = {str(node.meta["origin"].name): found.types[node.name] for node in graph.calls}
    assert types["first"] == "ap_fixed<16,6>"
    assert types["second"] == "ap_fixed<24,8>"  # the last one that fits
    largest = lower(graph, "float32", own=[("*", "ap_fixed<8,4>"), ("amax", "bfloat16")])
    assert largest.types["amax"] == "ap_fixed<8,4>"  # it only moves numbers
    assert found.products(precision) == 4 * (6 * 8 + 8 * 8 * 4) + 8 * 3


@pytest.mark.parametrize(
    ("precision", "what"),
    [
        ("ap_fixed<12,6>; tail = float32", "no layer has this name"),
        ("ap_fixed<12,6>; head", "needs the layer's name and the type"),
        ("ap_fixed<12,6>; = float32", "needs the layer's name and the type"),
        ("int8; head = float32", "calibrated for a whole model"),
        ("float32; head = int8", "calibrated for a whole model"),
        ("float32; head = float64", "no C\\+\\+ type"),
    ],
)
def test_refusals(precision: str, what: str) -> None:
    with pytest.raises(PipecError, match=what):
        designs_of(planned(Net(), precision))


def test_training_has_one_type() -> None:
    loss = Loss(nn.functional.mse_loss, torch.zeros(1, 3))
    graph = trace(Net(), (torch.randn(SHAPE),), loss=loss, source=Source("memory", ""))
    options = {"precision": "float32; head = bfloat16"}
    with pytest.raises(BackendError, match="no type of their own in training"):
        make_plan(graph, parse_cluster("1xvcu118"), "fpga", options=options)
