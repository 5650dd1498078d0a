"""Verification finds what is wrong, and only that."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from torch import Tensor, nn

import pipec
from pipec.backends.torch.backend import TorchBackend
from pipec.compiler.backend import Emitted
from pipec.compiler.comparison import INCOMPARABLE, Allowed, compare, rounding_tolerance
from pipec.compiler.driver import emit
from pipec.compiler.inputs import KINDS, choose_inputs, draw, table_sizes
from pipec.compiler.verify import verify_artifacts, verify_stages
from pipec.errors import FrontendError, PlanError
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import Graph, InputKind, Source
from pipec.plan import store
from pipec.plan.store import load_plan
from tests.frontends.onnx import models as onnx_models
from tests.plans import chain, cut, loaded, tied
from tests.toys import mlp


@pytest.mark.parametrize("route", ["direct", "relay"])
def test_a_faithful_chain_is_exact(tmp_path: Path, route: str) -> None:
    emit(cut(mlp(8), 4, 8, 12, route=route), tmp_path / "out")
    said: list[str] = []
    report = verify_artifacts(tmp_path / "out", loaded(mlp(8)), progress=said.append)
    assert report.ok
    assert report.max_abs_error == 0
    assert [(b.name, b.kind, b.stage) for b in report.boundaries] == [
        ("relu0", "value", 0),
        ("relu1", "value", 0),
        ("relu3", "value", 1),
        ("relu5", "value", 2),
        ("y0", "output", 3),
    ]
    assert said[-1] == "running stage 3 of 4"
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_tied_weights_and_integer_inputs(tmp_path: Path) -> None:
    emit(cut(tied(), 1, 2), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded(tied()), seed=3).ok


def test_another_weight_is_found_where_it_is(tmp_path: Path) -> None:
    graph = chain()
    emit(cut(graph, 4, 8), tmp_path / "out")
    off = {**graph.weights, "blocks.2.weight": graph.weights["blocks.2.weight"] * 1.01}
    report = verify_artifacts(tmp_path / "out", loaded(graph.replace(weights=off)))
    assert [b.ok for b in report.boundaries] == [True, False, False]
    assert not report.ok
    assert 0 < report.max_abs_error < 1


def test_a_wrong_stage_is_found(tmp_path: Path) -> None:
    graph = chain()
    emit(cut(graph, 4, 8), tmp_path / "out")
    plan = load_plan(tmp_path / "out")
    runners = list(TorchBackend().load(plan, tmp_path / "out").stages)
    good = runners[1]

    def spoiled(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value + 1e-3 for name, value in good(inputs).items()}

    runners[1] = spoiled
    report = verify_stages(plan, Emitted(runners, 1e-5), loaded(graph))
    assert [b.ok for b in report.boundaries] == [True, False, False]


@pytest.mark.parametrize("off", [1.0, 1.01])
def test_stages_that_are_what_was_traced_are_held_to_the_file_too(
    tmp_path: Path, off: float
) -> None:
    """Those of a quantised file: the traced graph, whose outputs are the file's."""
    graph = chain()
    emit(cut(graph, 4, 8), tmp_path / "out")
    plan = load_plan(tmp_path / "out")
    emitted = replace(TorchBackend().load(plan, tmp_path / "out"), tolerance=1e-5, traced=True)
    model = loaded(graph)
    file = replace(
        model,
        original=lambda inputs: {n: t * off for n, t in model.original(inputs).items()},
        inner=lambda _: {},
    )
    assert verify_stages(plan, emitted, file).ok is (off == 1.0)


def test_what_is_verified_are_the_weights_that_a_run_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, with_weights = chain(), store._with_weights
    emit(cut(graph, 2), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", loaded(graph)).ok

    def halved(*args: Any) -> Graph:
        read = with_weights(*args)
        return read.replace(weights={n: w / 2 for n, w in read.weights.items()})

    monkeypatch.setattr(store, "_with_weights", halved)
    assert not verify_artifacts(tmp_path / "out", loaded(graph)).ok


def test_the_reference_must_be_the_same_model(tmp_path: Path) -> None:
    emit(cut(chain(), 4), tmp_path / "out")
    with pytest.raises(PlanError, match="another model") as told:
        verify_artifacts(tmp_path / "out", loaded(tied()))
    for each, shape in ((tied(), told.value.got), (chain(), told.value.want)):
        value = each.nodes[each.inputs_of(InputKind.INPUT)[0].node].meta["val"]
        assert f"{list(value.shape)}" in str(shape)


def check(found: Tensor, want: Tensor, tolerance: float = 1e-3) -> tuple[float, float, bool]:
    c = compare(found, want, tolerance, name="y", kind="output", stage=0)
    return c.max_abs_error, c.relative_error, c.ok


def test_comparisons() -> None:
    one = torch.tensor([1.0, 2.0])
    assert check(one, one) == (0, 0, True)
    assert check(one + 0.001, one)[2]
    assert not check(one + 0.003, one)[2]
    assert check(torch.zeros(2), torch.zeros(2)) == (0, 0, True)
    assert check(torch.ones(2), torch.zeros(2)) == (1, INCOMPARABLE, False)
    assert check(one.double(), one) == (INCOMPARABLE, INCOMPARABLE, False)
    assert check(one[:1], one) == (INCOMPARABLE, INCOMPARABLE, False)
    assert check(torch.tensor([1, 2]), torch.tensor([1, 3]), 10.0) == (1, 1 / 3, False)
    nan, inf = torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf"), 1.0])
    assert check(nan, nan) == (0, 0, True)
    assert check(inf, inf) == (0, 0, True)
    assert check(nan, inf)[2] is False
    assert check(one, nan)[0] == INCOMPARABLE
    assert check(torch.empty(0), torch.empty(0)) == (0, 0, True)


def test_a_mask_value_does_not_hide_an_error() -> None:
    low = torch.finfo(torch.float32).min
    want = torch.tensor([low, 1.0])
    assert not check(torch.tensor([low, 1.1]), want)[2]
    assert check(torch.tensor([low * (1 - 1e-6), 1.0]), want)[2]
    assert not check(torch.tensor([low * 0.9, 1.0]), want)[2]


@given(seed=st.integers(0, 99), low=st.integers(-5, 5), span=st.integers(0, 9))
def test_random_inputs_stay_in_their_range(seed: int, low: int, span: int) -> None:
    examples = {
        "ids": torch.tensor([low, low + span]),
        "mask": torch.ones(64, dtype=torch.bool),
        "bytes": torch.ones(64, dtype=torch.uint8),
        "unit": torch.tensor([0.0, 1.0, 0.5], dtype=torch.float16),
        "constant": torch.zeros(4),
        "bias": torch.tensor([0.0, float("-inf")]),
        "none": torch.empty(0),
        "wave": torch.ones(2, dtype=torch.complex64),
    }
    found = draw(chain(), examples, seed)
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in examples.items()
    }
    least, most = (low, low + span) if span else (min(0, low), max(1, low))
    assert least <= int(found["ids"].min()) <= int(found["ids"].max()) <= most
    assert 0 < int(found["mask"].sum()) < 64
    assert int(found["bytes"].max()) > 9
    assert 0 <= float(found["unit"].min()) <= float(found["unit"].max()) <= 1
    assert float(found["constant"].abs().max()) > 0
    assert torch.equal(found["bias"], examples["bias"])
    again = draw(chain(), examples, seed)
    assert all(torch.equal(found[k], again[k]) for k in found)


class Picks(nn.Module):
    """Rows by number in three ways: of 50, shifted by 2; of 7; and of as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(50, 4), nn.Embedding(7, 4)

    def forward(self, ids: Tensor, kinds: Tensor, at: Tensor) -> Tensor:
        """Their sum, picked from again."""
        picked: Tensor = (self.table(ids + 2) + self.other(kinds.view(3)))[at]
        return picked


def test_numbers_of_rows_span_their_table() -> None:
    ones = torch.ones(3, dtype=torch.int64)
    found = from_module(Picks(), (ones, ones, ones))
    assert table_sizes(found.graph) == {"ids": 48, "kinds": 7, "at": 3}


def test_targets_that_a_loss_ignores_stay_where_they_are() -> None:
    """Shifted and filled up as language models do."""

    def loss(y: Tensor, target: Tensor) -> Tensor:
        shifted = nn.functional.pad(target, (0, 1), value=-100)[..., 1:]
        return nn.functional.cross_entropy(y.flatten(0, 1), shifted.flatten())

    target = torch.tensor([[3, 4, 5, -100, -100, -100]])
    found = from_module(nn.Linear(4, 9), torch.randn(1, 6, 4), (loss, target))
    drawn = [draw(found.graph, found.example_inputs, seed)["target"] for seed in range(40)]
    assert all(t[0, 3:].tolist() == [-100] * 3 for t in drawn)
    assert {int(n) for t in drawn for n in t[0, :3]} == set(range(9))


def test_a_model_that_takes_one_number_alone_gets_it() -> None:
    def of_seven(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if bool((inputs["n"] != 7).any()):
            raise FrontendError("the model raised")
        return {"y": inputs["n"]}

    for seed in range(4):
        inputs, found = choose_inputs(chain(), {"n": torch.tensor([7, 7])}, of_seven, seed, 1e-3)
        assert inputs["n"].tolist() == found["y"].tolist() == [7, 7]


def test_floats_come_in_three_kinds_that_the_model_takes() -> None:
    examples, seen = {"x": torch.zeros(100)}, []

    def told(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        seen.append(inputs["x"])
        return {"y": inputs["x"]}

    large = [float(choose_inputs(chain(), examples, told, s, 1e-3)[0]["x"].max()) for s in range(3)]
    assert 1 < large[0] < 9
    assert 0 <= float(seen[2].min()) <= large[1] <= 1
    assert large[2] > 32

    def root(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"y": inputs["x"].sqrt()}

    def steep(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"y": torch.sin(1e6 * inputs["x"]) if inputs["x"].max() > 9 else inputs["x"]}

    for model, kept in ((root, 1), (steep, 0)):
        inputs, _ = choose_inputs(chain(), examples, model, 2, 1e-3)
        want = draw(chain(), examples, 2, KINDS[kept])
        assert torch.equal(inputs["x"], want["x"])


def test_sums_that_cancel_are_no_false_alarm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    held = {n: rng.normal(size=(8, 8)).astype(np.float32) for n in ("a", "b")}
    nodes = [
        helper.make_node(op, names, [y])
        for op, names, y in (
            ("MatMul", ["x", "a"], "p"), ("Relu", ["p"], "q"), ("MatMul", ["q", "b"], "r"),
            ("Tanh", ["r"], "y"),
        )
    ]  # fmt: skip
    proto = onnx_models.model(nodes, {"x": (1, [2, 8])}, ["y"], held)
    read = onnx_models.load(proto, tmp_path)
    emit(cut(read.graph, 2), tmp_path / "out")
    for seed in (2, 3, 5):  # of sums of hundreds, seed 3 leaves one near zero
        assert verify_artifacts(tmp_path / "out", read, seed=seed).ok
    assert not verify_artifacts(tmp_path / "out", read, seed=3, tolerance=1e-9).ok


def test_ties_between_two_integers_are_no_false_alarm(tmp_path: Path) -> None:
    """Every fourth mean of four integers lies in the middle of two."""
    steps = [
        ("QuantizeLinear", ["x", "s", "z"], "xq"), ("DequantizeLinear", ["xq", "s", "z"], "r"),
        ("AveragePool", ["r"], "m"),
        ("QuantizeLinear", ["m", "s", "z"], "mq"), ("DequantizeLinear", ["mq", "s", "z"], "y"),
    ]  # fmt: skip
    nodes = [helper.make_node(op, names, [y]) for op, names, y in steps]
    nodes[2] = helper.make_node("AveragePool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2])
    held: dict[str, Any] = {
        "s": np.array(0.0237, dtype=np.float32),
        "z": np.array(113, dtype=np.uint8),
    }
    proto = onnx_models.model(nodes, {"x": (1, [1, 7, 16, 16])}, ["y"], held)
    read = onnx_models.load(proto, tmp_path)
    emit(cut(read.graph, 1), tmp_path / "out")
    assert verify_artifacts(tmp_path / "out", read).ok
    engine = read.inner
    assert engine is not None

    def off(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: t + 1 if t.dtype is torch.uint8 else t for name, t in engine(inputs).items()}

    report = verify_artifacts(tmp_path / "out", replace(read, inner=off))
    assert {b.kind for b in report.boundaries if not b.ok} == {"node"}


def test_tolerance_follows_dtype_and_depth(tmp_path: Path) -> None:
    assert rounding_tolerance(chain(2), 1) == pytest.approx(2 * 2**-23)
    assert rounding_tolerance(chain(8), 3) == pytest.approx(12 * 2**-23)
    plan = cut(chain(), 4)
    other = plan.replace(graph=plan.graph.replace(source=Source("onnx", "net.onnx")))
    emit(plan, tmp_path / "out")
    same, others = (TorchBackend().load(p, tmp_path / "out").tolerance for p in (plan, other))
    assert others == pytest.approx(64 * same)


@pytest.mark.parametrize(
    ("size", "places", "steps", "share", "ok"),
    [
        (30, 1, 1, 0.02, True),  # less than one place is one
        (30, 2, 1, 0.02, False),
        (30, 1, 2, 0.02, False),
        (30, 1, 1, 0.0, False),
        (1000, 20, 1, 0.02, True),
        (1000, 21, 1, 0.02, False),
    ],
)
def test_integers_may_be_one_step_off_at_few_places(
    size: int, places: int, steps: int, share: float, ok: bool
) -> None:
    want = torch.full((size,), 7, dtype=torch.uint8)
    found = want.clone()
    found[:places] += steps
    compared = compare(found, want, Allowed(1e-6, share=share), name="q", kind="value", stage=0)
    assert compared.ok is ok


def test_random_numbers_are_the_same_in_both_and_the_callers_go_on(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(self.a(x) + torch.rand(2, 8))
            return y

    model, x = Noisy(), torch.randn(2, 8)
    plan = pipec.compile(model, x, "2xcpu")
    drawn = set()
    for seed in range(3):
        torch.manual_seed(seed)
        assert pipec.verify(plan, model, x, seed=seed).ok
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("apart", "ok"),
    [([1] * 60, True), ([4, 4, 4], True), ([4] * 4, False), ([5], False), ([], True)],
)
def test_steps_of_quantised_values(apart: list[int], ok: bool) -> None:
    """Of sixty places, three may be four steps apart, the others one."""
    want = torch.linspace(-4, 4, 60)
    found = want.clone()
    found[: len(apart)] += torch.tensor(apart) * 0.25
    by = Allowed(1e-6, step=0.25)
    assert compare(found, want, by, name="q", kind="value", stage=0).ok is ok


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_what_a_mask_fills_in_is_not_the_scale(off: float) -> None:
    """Neither of tensors that are equal nor of others."""
    want = torch.tensor([2.0, -3.4e38, -4.0])
    found = want + torch.tensor([off, 0.0, 0.0])
    compared = compare(found, want, 0.5, name="y", kind="value", stage=0)
    assert (compared.max_abs_error, compared.scale) == (off, 4.0)


@pytest.mark.filterwarnings("error")
def test_inputs_that_want_a_gradient_are_taken() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4)
    plan = pipec.compile(model, x, "2xcpu")
    assert pipec.verify(plan, model, x.requires_grad_()).ok
