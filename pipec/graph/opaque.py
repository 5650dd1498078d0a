"""``pipec::onnx``: one ONNX node that has no ATen lowering, as one node of the graph.

```text
%y = pipec.onnx([%x, %scale], '3f6c…', 'ort', 'float32[1,8];int64[3]')
                 what it reads  payload  engine  what it yields
```

The payload is a model of one node; graph lines carry only its key (digest), and a graph is saved
together with the payloads that it names (`opaque_payload`, `register_payload`).
Engine ``ort`` is onnxruntime, ``reference`` is `onnx.reference`. There is no gradient.
"""

import ctypes
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from torch import Tensor

from pipec.errors import GraphError, first_line
from pipec.graph.arrays import ONNX_TYPES, to_array, to_tensor
from pipec.graph.tensor_type import metas_of_types, types_text

ENGINES = ("ort", "reference")
"""What can run a payload."""

_payloads: dict[str, bytes] = {}


def register_payload(payload: bytes) -> str:
    """Make a one-node model known to the op.

    Returns:
        Its key: 16 hexadecimal digits of SHA-256.

    Raises:
        GraphError: It is no model, or keeps data in another file: running a node opens no file.
    """
    try:
        proto = onnx.load_from_string(payload)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise GraphError("the payload of an opaque node is no ONNX model", got=error) from error
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in _tensors(proto.graph)):
        raise GraphError("the payload of an opaque node names a file", where=proto.graph.name)
    key = hashlib.sha256(payload).hexdigest()[:16]
    _payloads[key] = payload
    return key


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for a in node.attribute:
            yield from (a.t, *a.tensors)
            for inner in (a.g, *a.graphs):
                yield from _tensors(inner)


def opaque_payload(key: str) -> bytes:
    """The payload called ``key``.

    Raises:
        GraphError: It was never registered.
    """
    if key not in _payloads:
        raise GraphError("the payload of an opaque ONNX node is missing", got=key)
    return _payloads[key]


@torch.library.custom_op("pipec::onnx", mutates_args=())
def onnx_node(inputs: list[Tensor], model: str, engine: str, outputs: str) -> list[Tensor]:
    """Run the payload ``model`` on ``inputs``; checks what comes back against ``outputs``.

    Raises:
        GraphError: The engine fails, or yields other types than declared.
    """
    declared = metas_of_types(outputs)
    try:
        found = engine_of(model, engine)(inputs, declared)
    except engine_errors() as error:
        raise GraphError(
            f"{engine} failed to run an ONNX node", where=_name(model), got=first_line(error)
        ) from error
    if types_text(found) != outputs:
        raise GraphError(
            "an ONNX node yields other types than shape inference says",
            where=_name(model),
            got=types_text(found),
            want=outputs,
        )
    return found


@onnx_node.register_fake
def _(inputs: list[Tensor], model: str, engine: str, outputs: str) -> list[Tensor]:
    like = inputs[0].device if inputs else None
    return [torch.empty(t.shape, dtype=t.dtype, device=like) for t in metas_of_types(outputs)]


ONNX = torch.ops.pipec.onnx.default
"""The op overload, as it stands in graphs."""

Engine = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
"""Runs one payload: inputs in the model's order, and tensors of the declared types, to outputs."""


def _name(key: str) -> str:
    return onnx.load_from_string(opaque_payload(key)).graph.name


@lru_cache(maxsize=512)
def engine_of(key: str, engine: str) -> Engine:
    """What runs the payload ``key``.

    Raises:
        Exception: One of the types that `engine_errors` lists: the engine cannot run it.
    """
    if engine not in ENGINES:
        raise GraphError("no such engine for ONNX nodes", got=engine, want=" or ".join(ENGINES))
    return (_ort if engine == "ort" else _reference)(opaque_payload(key))


def ort_session(model: bytes | str, *, threads: int = 1, fused: bool = True) -> Any:
    """An onnxruntime session on the CPU.

    Args:
        model: In memory, or the path of a file.
        threads: Number of threads of one operation.
        fused: Whether onnxruntime may rewrite it: that moves the roundings of quantised models.

    Raises:
        Exception: One of the types that `engine_errors` lists.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@lru_cache
def ort_saturates() -> bool:
    """Whether onnxruntime adds products of uint8 and int8 in 16 bits on this processor.

    That of MLAS on x86 without VNNI: two products of more than 7 bits each may exceed 16.
    """
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> sum (uint8[1, 4] a, int8[4, 1] b)'
        "=> (int32[1, 1] y) { y = MatMulInteger(a, b) }"
    )
    given = {"a": torch.full((1, 4), 255).byte(), "b": torch.full((4, 1), 127).char()}
    session = ort_session(model.SerializeToString())
    return int(run_session(session, given, {"y": torch.int32})["y"]) != 4 * 255 * 127


def run_session(
    session: Any, fed: Mapping[str, Tensor], made: Mapping[str, torch.dtype]
) -> dict[str, Tensor]:
    """Run a session on tensors; it is bound to torch's memory, as numpy lacks some of the types.

    Raises:
        Exception: One of the types that `engine_errors` lists, `TypeError` for another dtype.
    """
    binding, found = session.io_binding(), dict[str, Tensor]()
    held = {name: t.detach().contiguous() for name, t in fed.items()}
    for name, t in held.items():
        address = t.data_ptr() or _SOMEWHERE.data_ptr()  # nothing is read there
        binding.bind_input(name, "cpu", 0, ONNX_TYPES[t.dtype], list(t.shape), address)
    for name in made:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    for (name, dtype), value in zip(made.items(), binding.get_outputs(), strict=True):
        if value.data_type() != ort_type(dtype):
            raise TypeError(f"{name} is {value.data_type()}, not {ort_type(dtype)}")
        found[name] = torch.empty(value.shape(), dtype=dtype)
        if found[name].nbytes:
            ctypes.memmove(found[name].data_ptr(), value.data_ptr(), found[name].nbytes)
    return found


def ort_type(dtype: torch.dtype) -> str:
    """What onnxruntime calls tensors of a dtype."""
    return f"tensor({onnx.TensorProto.DataType.Name(ONNX_TYPES[dtype]).lower()})"


def _ort(payload: bytes) -> Engine:
    session = ort_session(payload)
    inputs = [i.name for i in session.get_inputs()]
    outputs = [o.name for o in session.get_outputs()]

    def run(values: list[Tensor], types: list[Tensor]) -> list[Tensor]:
        made = {name: t.dtype for name, t in zip(outputs, types, strict=True)}
        return list(run_session(session, dict(zip(inputs, values, strict=True)), made).values())

    return run


_SOMEWHERE = torch.zeros(1)


def _reference(payload: bytes) -> Engine:
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load_from_string(payload)
    evaluator = ReferenceEvaluator(proto)
    names = [i.name for i in proto.graph.input]

    def run(values: list[Tensor], types: list[Tensor]) -> list[Tensor]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = evaluator.run(None, dict(zip(names, map(to_array, values), strict=True)))
        return [to_tensor(np.asarray(a)) for a in found]

    return run


def engine_errors() -> tuple[type[Exception], ...]:
    """What the engines raise on a node that they cannot run."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception)]
    builtin = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError)
    return (*own, *builtin, NotImplementedError, TypeError, ValueError)


def lacks_kernel(error: BaseException) -> bool:
    """Whether onnxruntime has no kernel on the CPU for an op on its types, such as bfloat16."""
    return "NOT_IMPLEMENTED" in str(error)
