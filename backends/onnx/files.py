"""ONNX model files of any size, and the names that go with a stage's."""

import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from torch import Tensor

from pipec.errors import BackendError, first_line
from pipec.files import read_data
from pipec.graph.arrays import Array, as_array

LARGEST_INLINE = 2**30
"""Bytes of weights up to which they lie in the model file; a protobuf ends at 2 GiB."""

_SMALL = 4096
"""Bytes of weights up to which shape inference sees their values: shapes, axes, counts."""

_ALIGNMENT = 4096
"""Offsets of external data are multiples of it, so that they can be mapped."""


@dataclass(frozen=True)
class Names:
    """The names of the tensors of a stage in its file.

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
            return msgspec.json.decode(read_data(path), type=Names)
        except (OSError, ValueError, RecursionError) as error:
            raise BackendError("a stage's names cannot be read", where=path, got=error) from error


def assign_names(outputs: Mapping[str, str], inputs: Collection[str]) -> dict[str, str]:
    """Outputs to names in a model none of which is an input's: one tensor cannot be both.

    Args:
        outputs: Output to its name in the model so far; an input that is passed on has its own.
        inputs: Names of the model's inputs, and of what else no node yields.

    Example:
        >>> assign_names({"y": "y", "x": "x"}, ["x"])
        {'y': 'y', 'x': 'x/out'}
    """
    taken, found = {*inputs, *outputs.values()}, dict[str, str]()
    for output, name in outputs.items():
        free = name
        while free in inputs or (free != name and free in taken):
            free += "/out"
        found[output] = free
    return found


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
                np.ascontiguousarray(_array(weight)).tofile(file)
                proto.graph.initializer.append(_external(name, weight, data.name, start))
    path.write_bytes(proto.SerializeToString(deterministic=True))


def check_shapes(proto: onnx.ModelProto, weights: Mapping[str, Tensor | Array]) -> None:
    """Infer all types and shapes strictly, from the values of small weights too.

    Args:
        proto: A model, before `write_model` puts the weights into it.
        weights: Weights of the model; of large ones only types and shapes are looked at.

    Raises:
        BackendError: A node, or what the model says of its outputs, does not fit.
    """
    light = deepcopy(proto)
    light.graph.initializer.extend(
        _inline(n, w) if w.nbytes <= _SMALL else _external(n, w, "weights", 0)
        for n, w in weights.items()
    )
    # values are not followed into the bodies of two Scans: ONNX takes equal names there for one
    values = [n.op_type for n in proto.graph.node].count("Scan") < 2
    try:
        onnx.shape_inference.infer_shapes(light, True, strict_mode=True, data_prop=values)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise _error(proto.graph.name, error) from error


def check_file(path: Path) -> None:
    """See that the ONNX checker, with all its checks, has nothing against a written model.

    Raises:
        BackendError: It has.
    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise _error(path.stem, error) from error


def _error(stage: str, error: Exception) -> BackendError:
    return BackendError(
        "a stage is no valid ONNX model, and nothing was written",
        where=stage,
        got=first_line(error),
        want="one that the ONNX checker and strict shape inference take",
        hint="is the source one? onnx.checker.check_model(..., full_check=True)",
    )


def _inline(name: str, weight: Tensor | Array) -> TensorProto:
    return numpy_helper.from_array(_array(weight), name)


def _external(name: str, weight: Tensor | Array, file: str, start: int) -> TensorProto:
    kind = int(onnx.helper.np_dtype_to_tensor_dtype(_array(weight).dtype))
    proto = TensorProto(name=name, data_type=kind, dims=weight.shape)
    proto.data_location = TensorProto.EXTERNAL
    facts: dict[str, Any] = {"location": file, "offset": start, "length": weight.nbytes}
    for key, value in facts.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def _array(weight: Tensor | Array) -> Array:
    return weight if isinstance(weight, np.ndarray) else as_array(weight)
