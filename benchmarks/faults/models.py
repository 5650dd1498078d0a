"""Small models of unlike kinds, with weights that differ by channel."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from pipec.frontends.base import Loaded
from pipec.frontends.load import load
from pipec.frontends.torch_module import from_module

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Block(nn.Module):
    """Attention over six tokens and a feed-forward part, both around a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.after, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[1, 6, 8]`` to tokens."""
        q, k, v = self.qkv(self.norm(x)).split(8, dim=-1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / 8**0.5, dim=-1) @ v)
        found: Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))
        return found


class Words(nn.Module):
    """An embedding, a block, and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(12, 8), Block(), nn.Linear(8, 12)

    def forward(self, ids: Tensor) -> Tensor:
        """Token numbers ``[1, 6]`` to logits."""
        found: Tensor = self.head(self.block(self.table(ids)))
        return found


class Gated(nn.Module):
    """Two branches that are subtracted and multiplied, and a permutation; four outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Rows ``[6, 6]``."""
        left, right = torch.tanh(self.a(x)), torch.sigmoid(self.b(x))
        gap = left - right
        return {"y": self.c((gap * left).permute(1, 0)), "gap": gap, "x": x, "right": right}


class Residual(nn.Module):
    """Convolutions with a skip, batch norms whose statistics are not those of a new module."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.b, self.c = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.na, self.nb = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.head = nn.Linear(6, 5)
        for norm in (self.na, self.nb):
            state = norm.state_dict()
            for name, low, high in (
                ("weight", 0.5, 2.0),
                ("running_var", 0.5, 2.0),
                ("bias", -0.5, 0.5),
                ("running_mean", -0.5, 0.5),
            ):
                nn.init.uniform_(state[name], low, high)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[1, 3, 8, 8]`` to five numbers."""
        x = torch.relu(self.na(self.a(x)))
        x = torch.relu(x + self.nb(self.b(x)))
        found: Tensor = self.head(torch.relu(self.c(x)).mean((2, 3)))
        return found


def _mlp() -> Made:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(6, 6), nn.Tanh()]
    return nn.Sequential(*layers), (torch.zeros(2, 6),)


def _cnn() -> Made:
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 6),
    )  # fmt: skip
    return body, (torch.zeros(1, 3, 8, 8),)


def _encoder() -> Made:
    return nn.Sequential(Block(), Block()), (torch.zeros(1, 6, 8),)


def _words() -> Made:
    return Words(), (torch.zeros(1, 6, dtype=torch.int64),)


def _recurrent() -> Made:
    class Cell(nn.Module):
        """Three steps of a gated recurrent unit, written out."""

        def __init__(self) -> None:
            super().__init__()
            self.z, self.r, self.h = (nn.Linear(12, 6) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            """Steps ``[3, 2, 6]`` to the last state."""
            h = torch.zeros(2, 6)
            for step in x.unbind(0):
                both = torch.cat([step, h], 1)
                z, r = torch.sigmoid(self.z(both)), torch.sigmoid(self.r(both))
                h = (1 - z) * h + z * torch.tanh(self.h(torch.cat([step, r * h], 1)))
            return h

    return Cell(), (torch.zeros(3, 2, 6),)


MODULES: dict[str, Callable[[], Made]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "residual": lambda: (Residual(), (torch.zeros(1, 3, 8, 8),)),
    "gated": lambda: (Gated(), (torch.zeros(6, 6),)),
    "encoder": _encoder,
    "words": _words,
    "recurrent": _recurrent,
}

FILES = ("file-cnn", "file-attention", "file-gates", "file-table", "file-norm")
TRAINED = ("train-mlp", "train-gated", "train-residual", "train-encoder")
"""Modules with a loss."""
QUANTISED = ("file-qdq", "file-qdq-channels", "file-qoperator")
"""Files that onnxruntime quantises to 8 bits."""


def make(name: str, folder: Path) -> Loaded:
    """A model by name; files are written into a folder first."""
    torch.manual_seed(len(name))
    if (plain := name.removeprefix("train-")) in MODULES:
        module, example = MODULES[plain]()
        return from_module(module.eval(), example, _loss if name in TRAINED else None)
    path = folder / f"{name}.onnx"
    if not path.exists():
        (_quantise if name in QUANTISED else _write)(name, path)
    return load(str(path))


def _loss(out: Tensor | dict[str, Tensor]) -> Tensor:
    """A sum in which every number of an output has a weight of its own."""
    flat = torch.cat([t.flatten() for t in (out.values() if isinstance(out, dict) else [out])])
    return (flat.sin() * torch.arange(len(flat))).sum()


class _File:
    """Nodes of an ONNX file, and weights drawn for them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(7)

    def weight(self, *shape: int, values: object = None) -> str:
        """A new initialiser's name."""
        name = f"w{len(self.weights)}"
        data = values
        if values is None:  # variance is kept from layer to layer
            inputs = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
            data = (self._rng.normal(size=shape) / np.sqrt(inputs)).astype(np.float32)
            data = 1 + data if len(shape) == 1 else data
        self.weights.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; its output's name."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{len(self.nodes)}", **attributes))
        return name


def _write(name: str, path: Path) -> None:
    f, info, ends = _File(), helper.make_tensor_value_info, dict[str, list[int]]()
    x, shape, dtype = "x", [2, 6], onnx.TensorProto.FLOAT
    if name == "file-cnn":
        shape = [1, 3, 8, 8]
        h = f("Relu", f("Conv", x, f.weight(4, 3, 3, 3), f.weight(4), pads=[1] * 4))
        h = f("Relu", f("Conv", h, f.weight(4, 4, 3, 3), f.weight(4), strides=[2, 2]))
        h = f("Flatten", f("Transpose", h, perm=[0, 2, 3, 1]))
        ends[f("Gemm", h, f.weight(6, 36), f.weight(6), transB=1)] = [1, 6]
    elif name == "file-attention":
        shape = [1, 6, 8]
        q, k, v = (f("Add", f("MatMul", x, f.weight(8, 8)), f.weight(8)) for _ in range(3))
        scores = f("MatMul", q, f("Transpose", k, perm=[0, 2, 1]))
        h = f("MatMul", f("Softmax", f("Mul", scores, f.weight(values=np.float32(0.2))), axis=2), v)
        ends[f("Sub", f("MatMul", h, f.weight(8, 8)), x)] = shape
    elif name == "file-gates":
        a, b = (f("Tanh", f("MatMul", x, f.weight(6, 6))) for _ in range(2))
        c = f("Sub", f("Sigmoid", a), b)
        ends[f("Concat", c, f("Div", f("MatMul", c, f.weight(6, 6)), f.weight(6)), axis=1)] = [
            2,
            12,
        ]
        ends |= {a: [2, 6], x: [2, 6]}
    elif name == "file-table":
        shape, dtype = [1, 5], onnx.TensorProto.INT64
        h = f("Gather", f.weight(9, 6), x)
        h = f("Relu", f("Add", f("MatMul", h, f.weight(6, 6)), f.weight(5, 6)))
        ends[f("MatMul", f("Transpose", h, perm=[0, 2, 1]), f.weight(5, 5))] = [1, 6, 5]
    else:
        h = f("LayerNormalization", x, f.weight(6), f.weight(6), axis=1)
        h = f("Sub", f("MatMul", h, f.weight(6, 6)), f("Softmax", h, axis=1))
        h = f("LayerNormalization", h, f.weight(6), f.weight(6), axis=1)
        ends[f("Sub", f("MatMul", h, f.weight(6, 6)), f.weight(6))] = [2, 6]
    outputs = [info(n, onnx.TensorProto.FLOAT, s) for n, s in ends.items()]
    graph = helper.make_graph(f.nodes, name, [info(x, dtype, shape)], outputs, f.weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _quantise(name: str, path: Path) -> None:
    """A residual network, calibrated on normal frames."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    source = path.with_suffix(".float.onnx")
    torch.manual_seed(2)
    module, example = MODULES["residual"]()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), example, str(source), dynamo=False, input_names=["x"])

    class Frames(CalibrationDataReader):  # type: ignore[misc]
        """Eight of them."""

        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.frames = iter(rng.normal(size=(8, *example[0].shape)).astype(np.float32))

        def get_next(self) -> dict[str, Any] | None:
            """The next frame, None at the end."""
            frame = next(self.frames, None)
            return None if frame is None else {"x": frame}

    form = QuantFormat.QOperator if name == "file-qoperator" else QuantFormat.QDQ
    logging.disable(logging.WARNING)  # it advises to do what was done
    quantize_static(
        str(source), str(path), Frames(), quant_format=form, per_channel=name == "file-qdq-channels"
    )
    logging.disable(logging.NOTSET)
