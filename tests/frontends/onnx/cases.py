"""The node cases of the ``onnx`` package, run by the front end and judged.

Every input of a case is traced, unless a node needs its value at compile time or torch has no such
type. The traced graph is run on the case's data and compared with its expected outputs (of
`BY_ONNXRUNTIME` with onnxruntime's): shapes, types and integers exactly; floats to 1e-3 (float16
2^-9, bfloat16 2^-6, one unit in the last place is more than 1e-3); DFT and STFT against the largest
value. Random ops are compared by shape.
"""

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import torch
from onnx.backend.test.case.node import collect_testcases
from torch import Tensor

from pipec.errors import PipecError
from pipec.frontends.onnx.evaluation import Evaluation, evaluate
from pipec.frontends.onnx.frontend import graph_of
from pipec.frontends.onnx.module import OnnxModule
from pipec.frontends.onnx.reader import ModelFile
from pipec.frontends.onnx.refusals import Way
from pipec.frontends.onnx.values import Value
from pipec.graph.arrays import Array, has_torch_type, to_array, to_tensor
from pipec.graph.ir import Source

RANDOM_OPS = {"Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
BY_ONNXRUNTIME = {
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}
"""The package expects corners between elements, at ``size * scale``. onnxruntime and torch, whose
exporters write such scales, align the last elements: what onnxruntime gives is expected here."""
SMALL = 64
MATCHED = ("native", "folded", "function", "ort", "reference")
OUTCOMES = (*MATCHED, "random", "refused", "wrong", "crash")


@dataclass(frozen=True)
class Outcome:
    """What became of one case.

    Attributes:
        name: Name of the case.
        ops: Op types of its model, sorted.
        kind: One of `OUTCOMES`.
        reason: Why it was refused or what is wrong.
    """

    name: str
    ops: tuple[str, ...]
    kind: str
    reason: str = ""


@cache
def cases() -> list[Any]:
    """All node cases of the installed ``onnx``."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [c for c in collect_testcases(None) if c.model is not None]


def run_case(case: Any, *, export: bool = False) -> Outcome:
    """Evaluate, trace, run and compare one case."""
    ops = tuple(sorted({n.op_type for n in case.model.graph.node}))
    try:
        evaluation, mistakes = _compared(case, export=export)
    except PipecError as error:
        return Outcome(case.name, ops, "refused", str(error))
    except Exception as error:
        return Outcome(case.name, ops, "crash", f"{type(error).__name__}: {error}"[:300])
    if mistakes:
        return Outcome(case.name, ops, "wrong", mistakes)
    kind = "random" if _is_random(case) else _kind(evaluation)
    return Outcome(case.name, ops, kind)


def _compared(case: Any, *, export: bool) -> tuple[Evaluation, str]:
    inputs, expected = case.data_sets[0]
    model = ModelFile(case.model)
    names = [i.name for i in case.model.graph.input]
    if case.name in BY_ONNXRUNTIME:
        session = onnxruntime.InferenceSession(case.model.SerializeToString())
        expected = session.run(None, dict(zip(names, map(_plain, inputs), strict=True)))
    values = {n: _plain(v) for n, v in zip(names, inputs, strict=True)}
    traced = {n: _traced(v) for n, v in values.items()}
    small = {n: v for n, v in values.items() if isinstance(v, np.ndarray) and _is_small(v)}
    evaluation = evaluate(model, traced, candidates=small)
    found = _exported(evaluation) if export else _run(evaluation)
    wanted = [_plain(v) for v in expected]
    mistakes = [
        f"{name}: {text}"
        for (name, value), want in zip(found.items(), wanted, strict=True)
        if (text := _difference(value, want, case))
    ]
    return evaluation, "; ".join(mistakes)


def _plain(value: object) -> Any:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return onnx.numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return onnx.numpy_helper.to_optional(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if value is None else np.asarray(value)


def _traced(value: Any) -> Value:
    if isinstance(value, list):
        return [_traced(v) for v in value]
    if isinstance(value, np.ndarray) and has_torch_type(value):
        return to_tensor(value)
    return value  # type: ignore[no-any-return]


def _is_small(array: Array) -> bool:
    return array.ndim <= 1 and array.size <= SMALL


def played(evaluation: Evaluation) -> dict[str, Value]:
    """Outputs by name of what was recorded: computed, known, lists, None."""
    module = OnnxModule(evaluation)
    with torch.no_grad():
        values = module.values(module.examples)

    def filled(value: Value) -> Value:
        if isinstance(value, list):
            return [filled(v) for v in value]
        return values[evaluation.recorder.node_of(value)] if isinstance(value, Tensor) else value

    return {name: filled(value) for name, value in evaluation.outputs.items()}


def _run(evaluation: Evaluation) -> dict[str, Any]:
    return {name: _arrays(value) for name, value in played(evaluation).items()}


def _arrays(value: Value) -> Any:
    if isinstance(value, list):
        return [_arrays(v) for v in value]
    return to_array(value) if isinstance(value, Tensor) else value


def _exported(evaluation: Evaluation) -> dict[str, Any]:
    """The outputs of the graph that the front end makes."""
    graph = graph_of(evaluation, Source("onnx", "case"))
    given = {n: v for n, v in evaluation.inputs.items() if isinstance(v, Tensor)}
    weights = graph.weights
    args = [weights[i.name] if i.kind.is_weight else given[i.name] for i in graph.inputs]
    with torch.no_grad():
        found = graph.module(*args)
    return {o.name: to_array(t) for o, t in zip(graph.outputs, found, strict=True)}


def _difference(found: Any, want: Any, case: Any) -> str:
    """What differs, or nothing."""
    if isinstance(want, list) or isinstance(found, list):
        if not isinstance(found, list) or len(found) != len(want):
            return "another sequence"
        return "; ".join(filter(None, map(_difference, found, want, [case] * len(want))))
    if want is None or found is None:
        return "" if want is found else "a value where none is expected, or none"
    if found.dtype != want.dtype and found.dtype.kind not in want.dtype.kind + "OUT":
        return f"type {found.dtype}, want {want.dtype}"
    if found.shape != want.shape:
        return f"shape {found.shape}, want {want.shape}"
    if _is_random(case):
        return ""
    return _numbers(found, want, case)


def _numbers(found: Array, want: Array, case: Any) -> str:
    tiny = {"float16": 2**-9, "bfloat16": 2**-6}
    inexact = want.dtype.kind in "fc" or want.dtype == ml_dtypes.bfloat16
    if not inexact:
        same = np.array_equal(found.astype(object), want.astype(object)) or np.array_equal(
            found.view(np.uint8), want.view(np.uint8)
        )
        return "" if same else "other numbers"
    rtol = tiny.get(want.dtype.name, 1e-3)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = found.astype(wide), want.astype(wide)
    atol = 1e-6
    if {"DFT", "STFT"} & {n.op_type for n in case.model.graph.node}:
        atol = 1e-5 * float(np.abs(b).max(initial=0))
    close = np.isclose(a, b, rtol, atol, equal_nan=True)
    if close.all():
        return ""
    worst = np.abs(a - b)[~close]
    return f"{(~close).sum()} of {close.size} numbers differ, up to {np.nanmax(worst):.3g}"


def _is_random(case: Any) -> bool:
    ops = {n.op_type for n in case.model.graph.node}
    dropout = "Dropout" in ops and ("train" in case.name and "zero_ratio" not in case.name)
    return bool(ops & RANDOM_OPS) or dropout


def _kind(evaluation: Evaluation) -> str:
    ways = set(evaluation.ways.values())
    for way in (Way.REFERENCE, Way.ORT, Way.FUNCTION, Way.NATIVE):
        if way in ways:
            return way.value
    return "folded" if Way.FOLDED in ways else "native"


def read_outcomes(path: Path) -> dict[str, str]:
    """Case name to expected outcome, as ``--write`` wrote them."""
    lines = path.read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)
