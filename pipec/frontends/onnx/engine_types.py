"""Types of what an op yields that ONNX does not define: onnxruntime is asked, by running it."""

import warnings

import numpy as np
import onnx

from pipec.errors import first_line
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Type, numpy_dtype, type_of
from pipec.graph.arrays import Array
from pipec.graph.opaque import engine_errors, ort_session

LARGEST_TRIAL = 2**24
"""Elements that the inputs of a trial may have in all."""


def types_by_running(model: onnx.ModelProto) -> list[Type]:
    """Types of the outputs of a model of one node, learnt by running it on two kinds of inputs.

    Args:
        model: With types of its inputs; those of its outputs may be missing.

    Raises:
        Refused: onnxruntime refuses the node, its output shapes depend on data, or what it yields
            is no tensor.
    """
    try:
        session = ort_session(model.SerializeToString())
        names = [o.name for o in session.get_outputs()]
        runs = []
        for fill in (0, 1):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                runs.append(
                    session.run(names, {i.name: _filled(i, fill) for i in model.graph.input})
                )
    except engine_errors() as error:
        raise Refused(f"onnxruntime does not run it: {first_line(error)}") from error
    if not all(isinstance(a, np.ndarray) for a in runs[0]):
        raise Refused("it yields maps or lists; skl2onnx writes tensors with {'zipmap': False}")
    zeros, ones = ([type_of(np.asarray(a)) for a in run] for run in runs)
    if zeros != ones:
        raise Refused("the shapes of its outputs depend on data")
    return zeros


def _filled(info: onnx.ValueInfoProto, value: int) -> Array:
    tensor = info.type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    if np.prod(shape, dtype=np.float64) > LARGEST_TRIAL:
        raise Refused(f"its input {info.name} is too large to try it")
    return np.full(shape, value, numpy_dtype(tensor.elem_type))
