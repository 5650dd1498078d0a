"""Files: external data, broken ones, open dimensions; every mistake is one `FrontendError`."""

import contextlib
import gc
import math
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from pipec.errors import FrontendError, PipecError
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx import OnnxFrontend, reader
from pipec.frontends.onnx.evaluation import evaluate_file
from pipec.frontends.onnx.reader import read
from pipec.graph.ir import op_name
from tests.frontends.onnx.models import LIGHT, load, model, run, worst

WEIGHT = np.linspace(-1, 1, 12).astype(np.float32).reshape(4, 3)
SHIFT = np.arange(3, dtype=np.float32)


def linear(batch: int | str = 2) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["y"], name="shift"),
    ]
    weights = {"w": WEIGHT, "b": SHIFT}
    return model(nodes, {"x": (TensorProto.FLOAT, [batch, 4])}, ["y"], weights)


def external(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(linear(), path, save_as_external_data=True, location="data.bin", size_threshold=0)
    return path


def refused(path: Path, options: LoadOptions | None = None) -> str:
    with pytest.raises(FrontendError) as caught:
        OnnxFrontend().load(str(path), options or LoadOptions())
    return str(caught.value)


def test_external_data_are_read(tmp_path: Path) -> None:
    loaded = OnnxFrontend().load(str(external(tmp_path)), LoadOptions())
    x = {"x": torch.randn(2, 4)}
    assert torch.equal(loaded.graph.weights["w"], torch.from_numpy(WEIGHT))
    assert worst(run(loaded.graph, x), loaded.original(x)) < 1e-6


def test_external_data_are_mapped_and_never_written(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = (tmp_path / "data.bin").read_bytes()
    weight = read(path).tensor("w")
    weight += 1
    assert (tmp_path / "data.bin").read_bytes() == before


def test_an_external_tensor_at_an_odd_offset(tmp_path: Path) -> None:
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    data = (tmp_path / "data.bin").read_bytes()
    (tmp_path / "data.bin").write_bytes(b"!" + data)
    for t in proto.graph.initializer:
        for entry in t.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 1)
    path.write_bytes(proto.SerializeToString())
    assert torch.equal(read(path).tensor("w"), torch.from_numpy(WEIGHT))


def test_the_digest_covers_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = read(path).digest()
    data = bytearray((tmp_path / "data.bin").read_bytes())
    data[5] ^= 1
    (tmp_path / "data.bin").write_bytes(data)
    assert read(path).digest() != before


def test_a_missing_external_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "data.bin").unlink()
    text = refused(path)
    assert "missing" in text
    assert "data.bin" in text


def test_a_truncated_external_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "data.bin").write_bytes((tmp_path / "data.bin").read_bytes()[:40])
    assert "too short" in refused(path)


@pytest.mark.parametrize("location", ["../data.bin", "/etc/hostname", "link/data.bin"])
def test_external_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    path = external(folder)
    (tmp_path / "data.bin").write_bytes((folder / "data.bin").read_bytes())
    proto = onnx.load(path, load_external_data=False)
    for t in proto.graph.initializer:
        t.external_data[0].value = location
    path.write_bytes(proto.SerializeToString())
    assert "must lie in the model's folder" in refused(path)


def test_a_length_that_does_not_fit(tmp_path: Path) -> None:
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[0] = 3
    path.write_bytes(proto.SerializeToString())
    assert "not a valid ONNX model" in refused(path)


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such model file" in refused(tmp_path / "none.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model", bytes(range(256))])
def test_a_file_that_is_no_model(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refused(path)


def test_broken_files_end_in_one_error(tmp_path: Path) -> None:
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    rng, path = random.Random(0), tmp_path / "model.onnx"
    for _ in range(40):
        data = bytearray(whole)
        if rng.random() < 0.4:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(max(1, len(data)))] = rng.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(PipecError):
            evaluate_file(path, LoadOptions())


def test_an_unbound_dimension_is_told_with_how_to_bind_it(tmp_path: Path) -> None:
    onnx.save(linear("batch"), tmp_path / "model.onnx")
    text = refused(tmp_path / "model.onnx")
    assert "x[batch,4]" in text
    assert "--shape x=N,4" in text
    assert "--bind batch=N" in text


@pytest.mark.parametrize("options", [{"shapes": {"x": (5, 4)}}, {"bind": {"batch": (5,)}}])
def test_a_dimension_is_bound_by_shape_or_name(options: dict[str, object], tmp_path: Path) -> None:
    loaded = load(linear("batch"), tmp_path, **options)
    assert loaded.example_inputs["x"].shape == (5, 4)
    x = {"x": torch.randn(5, 4)}
    assert worst(run(loaded.graph, x), loaded.original(x)) < 1e-6
    assert loaded.graph.source.options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (LoadOptions(shapes={"x": (5, 3)}), "does not fit"),
        (LoadOptions(shapes={"x": (5,)}), "does not fit"),
        (LoadOptions(shapes={"z": (5,)}), "does not have"),
        (LoadOptions(bind={"z": (5,)}), "does not have"),
        (LoadOptions(shapes={"x": (5, 4)}, bind={"batch": (6,)}), "two sizes"),
        *((LoadOptions(bind={"batch": (n,)}), "no size") for n in (2.5, -1, math.inf, math.nan)),
        (LoadOptions(bind={"batch": (2, 3)}), "no size"),
        (LoadOptions(training=True, shapes={"x": (5, 4)}), "the loss that it ends in"),
    ],
)
def test_options_that_do_not_fit(options: LoadOptions, said: str, tmp_path: Path) -> None:
    onnx.save(linear("batch"), tmp_path / "model.onnx")
    assert said in refused(tmp_path / "model.onnx", options)


def test_a_file_newer_than_the_installed_onnx(tmp_path: Path) -> None:
    proto = linear()
    proto.opset_import[0].version = 999
    onnx.save(proto, tmp_path / "model.onnx")
    assert "opset 999" in refused(tmp_path / "model.onnx")


def test_a_node_whose_inputs_do_not_fit(tmp_path: Path) -> None:
    proto = linear()
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    onnx.save(proto, tmp_path / "model.onnx")
    text = refused(tmp_path / "model.onnx")
    assert "not a valid ONNX model" in text
    assert "op_type:MatMul, node name: product" in text


def test_all_untranslatable_nodes_are_listed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Unique", ["x"], ["b"], name="second"),
        helper.make_node("Shape", ["a"], ["c"], name="follows"),
    ]
    proto = model(nodes, {"x": (TensorProto.FLOAT, [3])}, ["b", "c"])
    onnx.save(proto, tmp_path / "model.onnx")
    text = refused(tmp_path / "model.onnx")
    assert "NonZero first (node 0)" in text or "not a valid ONNX model" in text


def test_a_missing_input_of_a_node(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Add", ["x", ""], ["y"])], {"x": (TensorProto.FLOAT, [3])}, ["y"]
    )
    onnx.save(proto, tmp_path / "model.onnx")
    assert "not a valid ONNX model" in refused(tmp_path / "model.onnx")


def test_weights_over_two_gigabytes_are_mapped(tmp_path: Path) -> None:
    side, count = 8192, 9
    names = [f"w{k}" for k in range(count)]
    nodes = [
        helper.make_node("MatMul", [f"x{k}", name], [f"x{k + 1}"], name=f"layer{k}")
        for k, name in enumerate(names)
    ]
    proto = model(nodes, {"x0": (TensorProto.FLOAT, [1, side])}, [f"x{count}"])
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(count * side * side * 4)  # a hole: takes no room on the disk
    for k, name in enumerate(names):
        weight = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[side, side])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="weights.bin")
        weight.external_data.add(key="offset", value=str(k * side * side * 4))
        proto.graph.initializer.append(weight)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    loaded = OnnxFrontend().load(str(tmp_path / "model.onnx"), LoadOptions())
    assert sum(w.numel() * 4 for w in loaded.graph.weights.values()) > 2**31
    assert [op_name(n) for n in loaded.graph.calls] == ["aten.matmul.default"] * count
    addresses = [w.data_ptr() for w in loaded.graph.weights.values()]
    steps = {b - a for a, b in pairwise(addresses)}
    assert steps == {side * side * 4}  # all in one mapping, where the file has them


def test_a_large_file_that_is_held_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_LARGE", 0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = {"x": (TensorProto.FLOAT, [2, 61])}
    proto = model(nodes, inputs, ["y"], {"w": np.ones((61, 67), np.float32)})
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    evaluation = evaluate_file(path, LoadOptions())
    gc.collect()
    assert not [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == (61, 67)]
    assert evaluate_file(path, LoadOptions()).model is evaluation.model
    assert torch.equal(evaluation.weights.real()["w"], torch.ones(61, 67))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((61, 3), "f4"), "w"))
    onnx.save(proto, path)
    assert read(path).tensor("w").shape == (61, 3)
