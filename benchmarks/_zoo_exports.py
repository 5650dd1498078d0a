"""Models exported here: ``torch.onnx`` in both ways, and files that onnxruntime's tools write.

    python -m benchmarks._zoo_exports NAME FILE.onnx

Weights are random and seeded. Each function below whose name is in `EXPORTS` writes one file.
"""

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

EXPORTS: dict[str, Callable[[Path], None]] = {}
"""Name to what writes the file."""


def entry(function: Callable[[Path], None]) -> Callable[[Path], None]:
    """Enter a function under its name."""
    EXPORTS[function.__name__] = function
    return function


def write(
    module: nn.Module, args: tuple[Tensor, ...], path: Path, *, dynamo: bool = True, **options: Any
) -> None:
    """Export a module in evaluation mode."""
    torch.backends.mha.set_fastpath_enabled(False)  # an op that the exporters lack
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), args, str(path), dynamo=dynamo, verbose=False, **options)


class Residual(nn.Module):
    """Convolutions with a normalisation and a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.n = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] to the same."""
        return functional.relu(x + self.b(functional.relu(self.n(self.a(x)))))


def cnn(width: int = 16) -> nn.Module:
    """A small residual network for 32 by 32 images."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), Residual(width), nn.MaxPool2d(2),
        Residual(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


IMAGE = (torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32).sin(),)


class Recurrent(nn.Module):
    """A recurrent layer in both directions and a head over the last step."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(8, 16, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 8] to [N, 5]."""
        return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]


SOUND = (torch.linspace(0, 9, 2 * 7 * 8).reshape(2, 7, 8).sin(),)


class Encoder(nn.Module):
    """A transformer encoder over token ids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(90, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 7)

    def forward(self, ids: Tensor) -> Tensor:
        """[N, T] ids to [N, T, 7]."""
        return self.head(self.layers(self.embed(ids)))  # type: ignore[no-any-return]


IDS = (torch.arange(24).reshape(2, 12) * 7 % 90,)


class Decoder(nn.Module):
    """One decoder layer with a cache of keys and values that it returns, longer by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(90, 32)
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 90)

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """[N, 1] ids, [N, 4, T, 8] keys and values to logits and both, T + 1."""
        q, k, v = self.qkv(self.embed(ids)).view(ids.shape[0], 1, 3, 4, 8).unbind(2)
        k, v = (torch.cat([a, b.transpose(1, 2)], 2) for a, b in ((keys, k), (values, v)))
        mixed = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v)
        return self.head(self.out(mixed.transpose(1, 2).flatten(2))), k, v


CACHE = (torch.tensor([[3], [5]]), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8))


def hugging_face(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small transformers model with random weights, and inputs for it."""
    from tests.frontends.onnx.test_exports import MODELS

    torch.manual_seed(0)
    factory, args = MODELS[name]
    return factory(), args


@entry
def cnn_dynamo(path: Path) -> None:
    """A convolutional network by the new exporter."""
    write(cnn(), IMAGE, path)


@entry
def cnn_legacy(path: Path) -> None:
    """The same by the old exporter."""
    write(cnn(), IMAGE, path, dynamo=False, opset_version=13)


@entry
def cnn_dynamic_batch(path: Path) -> None:
    """Batch, height and width open."""
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    names = {"input_names": ["x"], "output_names": ["y"]}
    write(cnn(), IMAGE, path, dynamo=False, dynamic_axes=axes, **names)


@entry
def cnn_half(path: Path) -> None:
    """All in 16-bit floating point."""
    write(cnn().half(), (IMAGE[0].half(),), path)


@entry
def lstm_dynamo(path: Path) -> None:
    """A bidirectional LSTM."""
    write(Recurrent(nn.LSTM), SOUND, path)


@entry
def lstm_legacy(path: Path) -> None:
    """The same with sequence and batch open."""
    axes = {"x": {0: "batch", 1: "time"}}
    write(Recurrent(nn.LSTM), SOUND, path, dynamo=False, dynamic_axes=axes, input_names=["x"])


@entry
def gru_legacy(path: Path) -> None:
    """A bidirectional GRU."""
    write(Recurrent(nn.GRU), SOUND, path, dynamo=False)


@entry
def encoder_dynamic(path: Path) -> None:
    """A transformer encoder, batch and sequence open."""
    dims = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")},)
    write(Encoder(), IDS, path, dynamic_shapes=dims, input_names=["ids"])


@entry
def encoder_legacy(path: Path) -> None:
    """The same by the old exporter, opset 12."""
    write(Encoder(), IDS, path, dynamo=False, opset_version=14, input_names=["ids"])


@entry
def decoder_with_cache(path: Path) -> None:
    """A decoder step whose cache of keys and values comes in and goes out."""
    names = {"input_names": ["ids", "keys", "values"], "output_names": ["logits", "k", "v"]}
    axes = {"ids": {0: "batch"}, "keys": {0: "batch", 2: "past"}, "values": {0: "batch", 2: "past"}}
    write(Decoder(), CACHE, path, dynamo=False, dynamic_axes=axes, **names)


def _transformers(name: str) -> None:
    def export(path: Path) -> None:
        write(*hugging_face(name), path)

    EXPORTS[name] = export


for _name in ("bert", "vit", "gpt2", "t5", "llama", "whisper", "mixtral", "resnet"):
    _transformers(_name)


def quantise_file(
    export: Callable[[Path], None],
    path: Path,
    form: str,
    frames: Sequence[Mapping[str, Any]],
    **options: Any,
) -> None:
    """Write a file quantised statically by onnxruntime.

    Args:
        export: Writes the file in floats.
        path: The new file.
        form: Form of its nodes, ``QDQ`` or ``QOperator``.
        frames: Inputs by name, to calibrate with.
        options: More of ``quantize_static``.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Frames(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.frames = iter(frames)

        def get_next(self) -> Mapping[str, Any] | None:
            """The next frame, None at the end."""
            return next(self.frames, None)

    logging.disable(logging.WARNING)  # it advises to do what was done
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(folder / "f.onnx")
        quant_pre_process(str(folder / "f.onnx"), str(folder / "p.onnx"), skip_symbolic_shape=True)
        quantize_static(
            str(folder / "p.onnx"), str(path), Frames(), quant_format=QuantFormat[form], **options
        )
    logging.disable(logging.NOTSET)


def _write_calibrated(path: Path, form: str, **options: Any) -> None:
    """The convolutional network, quantised on normal frames."""
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(8, *IMAGE[0].shape)).astype(np.float32)
    export = partial(write, cnn(), IMAGE, dynamo=False, opset_version=13, input_names=["x"])
    quantise_file(export, path, form, [{"x": f} for f in frames], **options)


@entry
def cnn_qdq(path: Path) -> None:
    """Static quantization, QDQ form, one scale per channel."""
    _write_calibrated(path, "QDQ", per_channel=True)


@entry
def cnn_qoperator(path: Path) -> None:
    """Static quantization, QOperator form: QLinearConv, QLinearAdd, QGemm."""
    _write_calibrated(path, "QOperator")


@entry
def encoder_int8_dynamic(path: Path) -> None:
    """Dynamic quantization: DynamicQuantizeLinear, MatMulInteger."""
    from onnxruntime.quantization import quantize_dynamic

    source = path.with_name("source.onnx")
    encoder_legacy(source)
    quantize_dynamic(str(source), str(path))


@entry
def lstm_int8_dynamic(path: Path) -> None:
    """Dynamic quantization of an LSTM: DynamicQuantizeLSTM."""
    from onnxruntime.quantization import quantize_dynamic

    source = path.with_name("source.onnx")
    lstm_legacy(source)
    quantize_dynamic(str(source), str(path))


def _write_extended(source: Callable[[Path], None], path: Path) -> None:
    """A file as onnxruntime saves it at level extended: contrib ops, fused."""
    whole = path.with_name("source.onnx")
    source(whole)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(str(whole), options, providers=["CPUExecutionProvider"])


@entry
def cnn_extended(path: Path) -> None:
    """FusedConv and its like."""
    _write_extended(cnn_legacy, path)


@entry
def encoder_extended(path: Path) -> None:
    """SkipLayerNormalization, FusedMatMul, BiasGelu and their like."""
    _write_extended(encoder_legacy, path)


@entry
def bert_extended(path: Path) -> None:
    """An exported BERT, fused by onnxruntime."""
    _write_extended(EXPORTS["bert"], path)


@entry
def qdq_extended(path: Path) -> None:
    """A QDQ file, fused by onnxruntime to QLinear ops."""
    _write_extended(cnn_qdq, path)


@entry
def external_large(path: Path) -> None:
    """Weights of 2.1 GB in a file of their own; most of it is a table that is looked up."""
    rows, width = 1_050_000, 512
    table = path.with_name("weights.bin")
    rng = np.random.default_rng(0)
    with table.open("wb") as file:
        block = rng.normal(size=(10_500, width)).astype(np.float32)
        for k in range(100):
            (block + k).tofile(file)
        rng.normal(size=(width, 10)).astype(np.float32).tofile(file)
    held = []
    for name, dims, start in (("table", (rows, width), 0), ("w", (width, 10), rows * width * 4)):
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
        proto.data_location = TensorProto.EXTERNAL
        facts = {"location": table.name, "offset": start, "length": int(np.prod(dims)) * 4}
        for key, value in facts.items():
            proto.external_data.add(key=key, value=str(value))
        held.append(proto)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["rows"]),
         helper.make_node("MatMul", ["rows", "w"], ["h"]),
         helper.make_node("Tanh", ["h"], ["y"])],
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5, 10])],
        held,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


@entry
def if_on_input(path: Path) -> None:
    """An If on a value that is only known at run time, between two layers."""
    rng = np.random.default_rng(0)
    names = {n: rng.normal(size=(16, 16)).astype(np.float32) / 4 for n in "abcd"}

    def branch(weight: str) -> onnx.GraphProto:
        node = helper.make_node("MatMul", ["h", weight], [f"{weight}y"])
        return helper.make_graph(
            [node], weight, [], [helper.make_tensor_value_info(f"{weight}y", 1, [4, 16])]
        )

    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["go"]),
        helper.make_node("If", ["go"], ["z"], then_branch=branch("b"), else_branch=branch("c")),
        helper.make_node("MatMul", ["z", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "if",
        [helper.make_tensor_value_info("x", 1, [4, 16])],
        [helper.make_tensor_value_info("y", 1, [4, 16])],
        [*(numpy_helper.from_array(a, n) for n, a in names.items()),
         numpy_helper.from_array(np.array(0, np.float32), "zero")],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )


def main() -> None:
    """Write one file."""
    name, path = sys.argv[1], Path(sys.argv[2])
    EXPORTS[name](path)


if __name__ == "__main__":
    main()
