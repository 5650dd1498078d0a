"""One model of the zoo: compiled for a target, its stages chained, compared with the file itself.

The reference is onnxruntime on the original file, asked for that file's own list of outputs. How
far two right results may lie apart is measured, not guessed: onnxruntime runs the file a second
time without its graph optimizations, and the chain may err by what that differs, some times over.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor

from pipec.cli.main import cli as pipec
from pipec.compiler.backend import load_backend
from pipec.compiler.job import StageFunction
from pipec.errors import PipecError
from pipec.graph.arrays import to_array, to_tensor
from pipec.graph.ir import InputKind, tensor
from pipec.graph.opaque import engine_errors
from pipec.plan.store import load_plan

FLOOR = 2e-4
"""Error, relative to an output's largest number, that is rounding whatever onnxruntime says."""
COARSE_FLOOR = 1e-2
"""The same where the model computes with 16-bit floats or on a grid of 8 bits, found at run time:
there a rounding apart is one step of the grid."""
_TINY = 1e-4
"""What an output with smaller numbers is compared with: a sigmoid may end in 0 or in 1e-8."""
TIMES = 8.0
"""How many times onnxruntime's own difference the chain may err."""
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}
)
"""Where only types and shapes can be compared."""
_COARSE = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QuantizeLinear"}
)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one model on one target.

    Attributes:
        kind: ``right``, ``refused``, ``wrong``, ``unloadable``, ``short`` or ``crash``.
        error: Largest error, relative to the output's largest number.
        allowed: What was allowed.
        stages: Stages that were emitted.
        reason: Why it is not right.
        seconds: Processor seconds of compiling.
    """

    kind: str
    error: float = 0.0
    allowed: float = 0.0
    stages: int = 0
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Given:
    """What a list says about a model; see ``benchmarks/zoo.py``."""

    shapes: Mapping[str, list[int]] = field(default_factory=dict)
    bind: Mapping[str, list[float]] = field(default_factory=dict)
    ranges: Mapping[str, list[float]] = field(default_factory=dict)
    devices: int = 3

    def words(self) -> list[str]:
        """Options of the command line."""
        words = []
        for option, table in (("--shape", self.shapes), ("--bind", self.bind)):
            for name, values in table.items():
                words += [option, f"{name}={','.join(map(str, values))}"]
        return words


def judge(path: Path, target: str, given: Given) -> Verdict:
    """Compile a model for a target and compare the chain of its stages with the file."""
    folder = Path(tempfile.mkdtemp(prefix="zoo"))
    try:
        return _judge(path, target, given, folder / "out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(path: Path, target: str, given: Given, out: Path) -> Verdict:
    start = time.process_time()
    try:
        _compile(path, target, given, out)
    except PipecError as error:
        return Verdict("refused", reason=str(error))
    seconds = time.process_time() - start
    plan = load_plan(out)
    try:
        runners = load_backend(target).load(plan, out).stages
    except PipecError as error:
        return Verdict("unloadable", reason=str(error))
    inputs = [i for i in plan.graph.inputs if i.kind is InputKind.INPUT]
    examples = {i.name: tensor(plan.graph.node(i.node)) for i in inputs}
    try:
        worst, may = _worst(path, given, examples, runners)
    except ShortError as missing:
        return Verdict("short", reason=str(missing))
    except UnusableError as reason:
        return Verdict("refused", reason=str(reason))
    return Verdict("right" if worst <= may else "wrong", worst, may, len(plan.stages), "", seconds)


class ShortError(Exception):
    """No stage yields an output that the file declares."""


class UnusableError(Exception):
    """onnxruntime refuses the original file, so there is nothing to compare with."""


def _compile(path: Path, target: str, given: Given, out: Path) -> None:
    """Compile to as many stages as asked for; fewer where the model has fewer nodes."""
    devices = given.devices
    while True:
        words = ["compile", str(path), "--target", target, "--devices", f"{devices}xh100"]
        try:
            with contextlib.redirect_stdout(sys.stderr):
                pipec([*words, "-o", str(out), *given.words()], standalone_mode=False)
        except PipecError as error:
            if devices == 1 or "stages" not in str(error).split("\n")[0]:
                raise
            devices -= 1
        else:
            return


def _worst(
    path: Path, given: Given, examples: Mapping[str, Tensor], runners: Sequence[StageFunction]
) -> tuple[float, float]:
    """The largest error in terms of what is allowed, and that, over three kinds of inputs.

    Raises:
        ShortError: See there.
        UnusableError: See there.
    """
    pairs, only_types, why = [], has_op(path, _RANDOM), ""
    coarse = has_op(path, _COARSE) or has_half(path)
    for seed in range(3):
        inputs = sample(examples, given, seed)
        try:
            want, noise = reference(path, inputs, given)
        except engine_errors() as error:
            why = str(error).split("\n")[0]
            continue
        values: dict[str, Tensor] = dict(inputs)
        for run in runners:
            values |= run(values)
        missing = [n for n in want if n not in values]
        if missing:
            raise ShortError(f"no stage yields {', '.join(missing)}")
        pairs += [
            (difference(values[n], w, only_types), allow_error(w, noise[n], coarse))
            for n, w in want.items()
        ]
    if not pairs:
        raise UnusableError(f"onnxruntime refuses the original: {why}")
    return max(pairs, key=lambda p: p[0] / p[1])


def has_op(path: Path, ops: frozenset[str]) -> bool:
    """Whether the file holds one of some ops."""
    proto = onnx.load(str(path), load_external_data=False)
    return any(n.op_type in ops for n in proto.graph.node)


def has_half(path: Path) -> bool:
    """Whether the file holds 16-bit floats: a weight, or a Cast to them."""
    graph = onnx.load(str(path), load_external_data=False).graph
    kinds = {t.data_type for t in graph.initializer}
    kinds |= {a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute}
    return not kinds.isdisjoint((onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16))


def difference(got: Tensor, want: Tensor, only_types: bool) -> float:
    """Largest difference over the largest number; infinite where type or shape differ."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return float("inf")
    if only_types or not want.numel():
        return 0.0
    a, b = got.double(), want.double()
    same = (a == b) | (a.isnan() & b.isnan())
    a, b = a[~same], b[~same]
    if not a.numel():
        return 0.0
    finite = want.double()
    scale = float(finite[finite.isfinite()].abs().max()) if finite.isfinite().any() else 0.0
    error = float((a - b).abs().max()) / max(scale, _TINY)
    return error if np.isfinite(error) else float("inf")


def allow_error(want: Tensor, noise: float, coarse: bool) -> float:
    """The error that counts as rounding."""
    half = want.dtype in (torch.float16, torch.bfloat16)
    return max(COARSE_FLOOR if coarse or half else FLOOR, TIMES * noise)


def reference(
    path: Path, inputs: Mapping[str, Tensor], given: Given
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The file's own outputs, and how far onnxruntime with and without optimizations differ."""
    proto = onnx.load(str(path), load_external_data=False)
    names = [o.name for o in proto.graph.output]
    results = []
    for session in sessions(path):
        fed = {n: to_array(t) for n, t in inputs.items()}
        for i in session.get_inputs():
            if i.name in given.bind:
                like: np.ndarray[Any, Any] = np.array(given.bind[i.name], _NUMPY[i.type])
                fed[i.name] = like.reshape([d if isinstance(d, int) else -1 for d in i.shape])
        results.append([to_tensor(np.asarray(a)) for a in session.run(names, fed)])
    pairs = zip(names, *results, strict=True)
    noise = {n: difference(a, b, has_op(path, _RANDOM)) for n, a, b in pairs}
    return dict(zip(names, results[0], strict=True)), noise


@lru_cache(maxsize=1)
def sessions(path: Path) -> list[Any]:
    """onnxruntime on the file, with and without its graph optimizations."""
    found = []
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        providers = ["CPUExecutionProvider"]
        found.append(ort.InferenceSession(str(path), options, providers=providers))
    return found


_NUMPY = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32,
    "tensor(double)": np.float64, "tensor(bool)": np.bool_, "tensor(float16)": np.float16,
}  # fmt: skip


def sample(examples: Mapping[str, Tensor], given: Given, seed: int) -> dict[str, Tensor]:
    """Inputs of a kind of their own per seed: normal, in [0, 1], and small ones."""
    generator = torch.Generator().manual_seed(seed)
    return {n: _random(t, given.ranges.get(n), seed, generator) for n, t in examples.items()}


def _random(t: Tensor, span: list[float] | None, seed: int, generator: torch.Generator) -> Tensor:
    shape = tuple(t.shape)
    if t.dtype.is_floating_point:
        if span:
            drawn = torch.rand(shape, generator=generator) * (span[1] - span[0]) + span[0]
        elif seed == 1:
            drawn = torch.rand(shape, generator=generator)
        else:
            drawn = torch.randn(shape, generator=generator) * (1.0 if seed == 0 else 0.1)
        return drawn.to(t.dtype)
    if t.dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=t.dtype)
    if t.dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low, high = span or ((0, 255) if t.dtype == torch.uint8 else (1, 1 if seed == 0 else 2))
    drawn = torch.randint(int(low), int(high) + 1, shape, generator=generator)
    return drawn.to(t.dtype)


def main() -> None:
    """Judge the model that each line of standard input describes in JSON, on each target."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        path, targets = Path(request.pop("path")), request.pop("targets")
        given = Given(**request)
        for target in targets:
            try:
                verdict = judge(path, target, given)
            except Exception as error:  # whatever is no PipecError is a fault to show
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = (
                    f"{type(error).__name__}: {error}, {Path(where.filename).name}:{where.lineno}"
                )
                verdict = Verdict("crash", reason=text)
            print(json.dumps({"target": target, **asdict(verdict)}), flush=True)


if __name__ == "__main__":
    main()
