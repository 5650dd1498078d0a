"""From what a file says about its inputs, and the user's options, to example values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.reader import ModelFile
from pipec.frontends.onnx.values import TORCH_OF_ONNX, Type, Value, dtype_name, numpy_dtype
from pipec.graph.arrays import Array
from pipec.graph.axes import size_of

LARGEST_INPUT = 2**28
"""Elements that an input may have."""

NAMELESS = "?"
"""What some exporters call every open dimension: two of that name need not be equal."""

_PASSED_ON = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True)
class Dimension:
    """One dimension of a graph input as the file writes it: a size, a name, or neither."""

    size: int | None
    name: str

    def __str__(self) -> str:
        return str(self.size) if self.size is not None else self.name or "?"

    def evaluate(self, sizes: Mapping[str, int]) -> int | None:
        """Its size by those of names; ``past + seq`` has one where both have."""
        return sizes.get(self.name, size_of(self.name, sizes))


def dimensions(info: onnx.ValueInfoProto) -> list[Dimension] | None:
    """Dimensions of a graph input; None where the file does not even tell the rank."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        Dimension(
            d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None,
            d.dim_param if d.dim_param != NAMELESS else "",
        )
        for d in tensor.shape.dim
    ]


def input_types(model: ModelFile, options: LoadOptions) -> dict[str, Type]:
    """Element type and static shape of every graph input, open dimensions bound by the options.

    A shape given for one input also binds its named dimensions for the others.

    Raises:
        FrontendError: A dimension stays open, an option does not fit, or an input is no tensor.
    """
    names = {i.name for i in model.inputs}
    _check_options(model, options, names)
    sizes = bind_sizes(model, options)
    for info in model.inputs:
        for dim, size in zip(
            dimensions(info) or (), options.shapes.get(info.name, ()), strict=False
        ):
            if dim.name and sizes.setdefault(dim.name, size) != size:
                raise FrontendError(
                    f"dimension {dim.name!r} is bound to two sizes",
                    where=f"{model.where}, input {info.name}",
                    got=f"{sizes[dim.name]} and {size}",
                )
    found = {i.name: _type(model, i, options.shapes.get(i.name), sizes) for i in model.inputs}
    open_ = {i.name: i for i in model.inputs if found[i.name] is None}
    if open_:
        raise _unbound(model, open_)
    return {name: t for name, t in found.items() if t is not None}


def bind_sizes(model: ModelFile, options: LoadOptions) -> dict[str, int]:
    """Sizes of the dimensions that the user binds by name.

    Raises:
        FrontendError: One is bound to anything but one whole number of at least 0.
    """
    names = {i.name for i in model.inputs}
    found = {name: values for name, values in options.bind.items() if name not in names}
    for name, values in found.items():
        if len(values) != 1 or values[0] < 0 or not float(values[0]).is_integer():
            raise FrontendError(
                "a dimension is bound to what is no size",
                where=f"{model.where}, dimension {name}",
                got=",".join(map(str, values)),
                want="one whole number",
            )
    return {name: int(values[0]) for name, values in found.items()}


def _check_options(model: ModelFile, options: LoadOptions, names: set[str]) -> None:
    dims = {d.name for i in model.inputs for d in dimensions(i) or () if d.name}
    for option, given, allowed in (
        ("--shape", options.shapes.keys(), names),
        ("--bind", options.bind.keys(), names | dims),
    ):
        for name in sorted(given - allowed):
            raise FrontendError(
                f"{option} names something that the model does not have",
                where=model.where,
                got=name,
                want="one of " + ", ".join(sorted(allowed)),
            )


def _type(
    model: ModelFile,
    info: onnx.ValueInfoProto,
    given: tuple[int, ...] | None,
    sizes: Mapping[str, int],
) -> Type | None:
    if not info.type.HasField("tensor_type"):
        raise FrontendError(
            "a graph input that is not a tensor",
            where=f"{model.where}, input {info.name}",
            got=info.type.WhichOneof("value") or "no type",
            want="a tensor",
        )
    declared = dimensions(info)
    if given is not None:
        fits = declared is None or (
            len(declared) == len(given)
            and all(d.size in (None, g) for d, g in zip(declared, given, strict=True))
        )
        if not fits or min(given, default=0) < 0:
            raise FrontendError(
                "--shape does not fit the model's input",
                where=f"{model.where}, input {info.name}",
                got=",".join(map(str, given)),
                want=",".join(map(str, declared or ())),
            )
        return Type(info.type.tensor_type.elem_type, given)
    if declared is None:
        return None
    shape = [d.size if d.size is not None else d.evaluate(sizes) for d in declared]
    known = [s for s in shape if s is not None]
    return Type(info.type.tensor_type.elem_type, tuple(known)) if len(known) == len(shape) else None


def _unbound(model: ModelFile, open_: Mapping[str, onnx.ValueInfoProto]) -> FrontendError:
    shown, shapes = [], []
    for name, info in open_.items():
        dims = dimensions(info)
        shown.append(f"{name}[{','.join(map(str, dims))}]" if dims is not None else f"{name}[…]")
        sizes = [str(d.size) if d.size is not None else "N" for d in dims or ()]
        shapes.append(f"--shape {name}={','.join(sizes) or 'N,…'}")
    named = sorted({d.name for i in open_.values() for d in dimensions(i) or () if d.name})
    by_name = " or " + " ".join(f"--bind {n}=N" for n in named) if named else ""
    return FrontendError(
        "the model has inputs with unknown dimensions",
        where=model.where,
        got=", ".join(shown),
        want="a size for each",
        hint=" ".join(shapes) + by_name,
    )


def bind_inputs(
    model: ModelFile, types: Mapping[str, Type], options: LoadOptions
) -> dict[str, Array]:
    """Values of inputs that the user fixed, in the input's type and shape.

    Raises:
        FrontendError: The number of values does not fit the shape.
    """
    bound = {}
    for name in types.keys() & options.bind.keys():
        want, given = types[name], options.bind[name]
        if math.prod(want.shape) != len(given):
            raise FrontendError(
                "--bind gives the wrong number of values",
                where=f"{model.where}, input {name}",
                got=len(given),
                want=f"{math.prod(want.shape)}, for {want}",
            )
        if want.dtype == TensorProto.STRING:
            raise FrontendError("strings cannot be bound", where=f"{model.where}, input {name}")
        bound[name] = np.array(given).astype(numpy_dtype(want.dtype)).reshape(want.shape)
    return bound


def examples(
    model: ModelFile, types: Mapping[str, Type], bound: Mapping[str, Array], seed: int
) -> dict[str, Value]:
    """An example value per graph input: bound ones as arrays, the others as tensors.

    Floats are normal; integers that index a table are below its size; other integers (masks) and
    booleans are one.

    Raises:
        FrontendError: An input has an element type that torch lacks and is not bound.
    """
    generator = torch.Generator().manual_seed(seed)
    limits = _table_sizes(model)
    found: dict[str, Value] = {}
    for name, want in types.items():
        if name in bound:
            found[name] = bound[name]
            continue
        if math.prod(want.shape) > LARGEST_INPUT:
            raise FrontendError(
                "a graph input is too large",
                where=f"{model.where}, input {name}",
                got=want,
                want=f"at most {LARGEST_INPUT} elements",
            )
        if want.dtype not in TORCH_OF_ONNX:
            text = want.dtype == TensorProto.STRING
            raise FrontendError(
                "a graph input of a type that tensors cannot have",
                where=f"{model.where}, input {name}",
                got=dtype_name(want.dtype),
                want="numbers" if text else "a value bound at compile time",
                hint="cut off the nodes that read strings" if text else f"--bind {name}=…",
            )
        found[name] = _example(want, limits.get(name), generator)
    return found


def _example(want: Type, limit: int | None, generator: torch.Generator) -> Tensor:
    dtype = TORCH_OF_ONNX[want.dtype]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(want.shape, generator=generator).to(dtype)
    if limit is None:
        return torch.ones(want.shape, dtype=dtype)
    return torch.randint(limit, want.shape, generator=generator).to(dtype)


def _table_sizes(model: ModelFile) -> dict[str, int]:
    """Rows of the table that an input picks from, for inputs that end in a Gather's indices."""
    source = {i.name: i.name for i in model.inputs}
    sizes: dict[str, int] = {}
    for node in model.proto.graph.node:
        if node.op_type in _PASSED_ON and node.input and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[1] in source:
            table = model.initializers.get(node.input[0])
            if table is not None and table.dims:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                name, rows = source[node.input[1]], table.dims[axis]
                sizes[name] = max(1, min(rows, sizes.get(name, rows)))
    return sizes
