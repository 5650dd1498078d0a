"""ONNX model files of any size, and the names that go with a stage's."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from pipec.errors import BackendError
from pipec.graph.arrays import ONNX_TYPES, Array

LARGEST_INLINE = 2**30
"""Bytes of weights up to which they lie in the model file; a protobuf ends at 2 GiB."""

_ALIGNMENT = 4096
"""Offsets of external data are multiples of it, so that they can be mapped."""


@dataclass(frozen=True)
class Names:
    """What the tensors of a stage are called in its file.

    Attributes:
        inputs: User input or value to the model's input.
        outputs: User output or value to the model's output.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def write(self, path: Path) -> None:
        """Write them beside the model."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Names":
        """Read what `write` wrote.

        Raises:
            BackendError: The file is missing or malformed.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return Names(dict(data["inputs"]), dict(data["outputs"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendError("a stage's names cannot be read", where=path, got=error) from error


def write_model(
    proto: onnx.ModelProto,
    weights: Mapping[str, Tensor | Array],
    path: Path,
    largest_inline: int = LARGEST_INLINE,
) -> None:
    """Write a model; large weights go to ``<path>.data`` and are never copied in memory.

    Args:
        proto: The model; initialisers that it already has stay inside it. It is changed.
        weights: Initialisers to add, in this order.
        path: The file; the same model gives the same bytes.
        largest_inline: Bytes of ``weights`` up to which they lie in the file itself.

    Raises:
        OSError: A file cannot be written.
    """
    if sum(w.nbytes for w in weights.values()) <= largest_inline:
        proto.graph.initializer.extend(_inline(name, w) for name, w in weights.items())
    else:
        data = path.with_name(path.name + ".data")
        with data.open("wb") as file:
            for name, weight in weights.items():
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                start = file.tell()
                _bytes(weight).tofile(file)
                proto.graph.initializer.append(_external(name, weight, data.name, start))
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _inline(name: str, weight: Tensor | Array) -> TensorProto:
    if isinstance(weight, np.ndarray):
        return numpy_helper.from_array(np.ascontiguousarray(weight), name)
    kind = ONNX_TYPES[weight.dtype]
    return TensorProto(
        name=name, data_type=kind, dims=weight.shape, raw_data=_bytes(weight).tobytes()
    )


def _external(name: str, weight: Tensor | Array, file: str, start: int) -> TensorProto:
    if isinstance(weight, np.ndarray):
        kind = int(onnx.helper.np_dtype_to_tensor_dtype(weight.dtype))
    else:
        kind = ONNX_TYPES[weight.dtype]
    proto = TensorProto(name=name, data_type=kind, dims=weight.shape)
    proto.data_location = TensorProto.EXTERNAL
    facts: dict[str, Any] = {"location": file, "offset": start, "length": weight.nbytes}
    for key, value in facts.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def _bytes(weight: Tensor | Array) -> Array:
    """The weight's bytes, flat, without a copy where it is contiguous."""
    if isinstance(weight, np.ndarray):
        return np.ascontiguousarray(weight).reshape(-1).view(np.uint8)
    flat = weight.detach().contiguous().reshape(-1)
    return np.asarray(flat.view(torch.uint8).numpy())
