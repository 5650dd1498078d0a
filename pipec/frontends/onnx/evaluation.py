"""The first run of a model, on fake tensors: types, known values, weights, and all refusals.

A file is read, its inputs are bound, it is run, and Ifs on known conditions are inlined.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from onnx import NodeProto
from torch import Tensor

from pipec.errors import FrontendError, PipecError, first_line, list_lines
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.frame import Frame, reads
from pipec.frontends.onnx.inline_if import inline_ifs
from pipec.frontends.onnx.inputs import bind_inputs, examples, input_types
from pipec.frontends.onnx.interpreter import Interpreter
from pipec.frontends.onnx.mini import ENGINE_ERRORS
from pipec.frontends.onnx.paired import replace_paired
from pipec.frontends.onnx.reader import ModelFile, read
from pipec.frontends.onnx.recorder import Recorder
from pipec.frontends.onnx.refusals import Demand, Refused, Way, worst
from pipec.frontends.onnx.slots import find_pinned, kinds_of
from pipec.frontends.onnx.values import Type, Value, type_of
from pipec.frontends.onnx.weights import Weights
from pipec.graph.arrays import Array, has_torch_type
from pipec.graph.torch_private import (
    FakeTensorMode,
    below_autograd,
    fake_like,
    mute_logs,
    without_modes,
)

LOWERING_ERRORS = (*ENGINE_ERRORS, MemoryError)
"""What torch raises when a node's inputs do not fit its op."""

_SMALL = 64
"""Elements up to which an input of rank 0 or 1 may be bound: a shape, axes, a count, a ratio."""


@dataclass
class Evaluation:
    """What the first run found out.

    Attributes:
        model: The model.
        inputs: Example value of every graph input; arrays where bound at compile time.
        weights: Parameters, buffers and constants.
        recorder: The ops that were run on fake tensors.
        known: Value name to array, for every known value of the model's graph.
        types: Value name to type, for every traced value of the model's graph.
        made: Value name to the name of the recorded op that yields it, for the same.
        ways: Index of a node to how it is run.
        outputs: Value of every graph output (fake where traced).
        yielded: Outputs that are tensors of the graph, known ones as constants.
    """

    model: ModelFile
    inputs: dict[str, Value]
    weights: Weights
    recorder: Recorder
    known: dict[str, Array] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    ways: dict[int, Way] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    yielded: dict[str, Tensor] = field(default_factory=dict)


def evaluate(
    model: ModelFile,
    inputs: Mapping[str, Value],
    *,
    candidates: Mapping[str, Value] | None = None,
    sized: frozenset[str] = frozenset(),
) -> Evaluation:
    """Run a model on fake tensors.

    Args:
        model: The model.
        inputs: Value per graph input: tensors are traced, arrays are known.
        candidates: Values of inputs that may become known when a node needs them.
        sized: Known values that depend on open sizes: what reads them as tensors reads nodes.

    Raises:
        FrontendError: Nodes that cannot be run; all of them, with op, name and reason.
    """
    values, pinned = dict(inputs), find_pinned(model.proto.graph)
    wanted = frozenset[str]()
    for _ in range(len(values) + len(model.initializers) + 1):
        run = _Run(model, values, pinned, wanted, sized)
        try:
            return run()
        except Demand as demand:
            given = candidates or {}
            for name in demand.names & values.keys():
                if name in given:
                    values[name] = given[name]
                else:
                    wanted |= {name}
            pinned |= demand.names - values.keys()
    raise FrontendError("the model's values depend on each other", where=model.where)


class _Run:
    """One attempt at an evaluation."""

    def __init__(
        self,
        model: ModelFile,
        inputs: dict[str, Value],
        pinned: frozenset[str],
        wanted: frozenset[str],
        sized: frozenset[str],
    ) -> None:
        self.model, self.inputs, self.wanted = model, inputs, wanted
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        recorder = Recorder()
        weights = Weights(lambda name, t: recorder.add_input(name, self._fake_of(t)))
        self.result = Evaluation(model, inputs, weights, recorder)
        traced = {n: v for n, v in inputs.items() if isinstance(v, Tensor)}
        small = {n for n, v in traced.items() if v.dim() <= 1 and v.numel() <= _SMALL}
        self.held = {n: kind for n, kind in kinds_of(model).items() if n not in pinned}
        self.interpreter = Interpreter(
            weights,
            recorder,
            pinned=pinned,
            bindable=frozenset((small | self.held.keys()) - wanted),
            sized=sized,
        )
        self.refusals: list[str] = []
        self.missing: set[str] = set()

    def __call__(self) -> Evaluation:
        frame = self.model.frame()
        with self.mode, self.result.recorder, below_autograd(), mute_logs():
            self._enter(frame)
            for k, node in enumerate(self.model.proto.graph.node):
                self._node(frame, k, node)
            for output in self.model.proto.graph.output:
                if output.name not in frame.env and output.name not in self.missing:
                    self.refusals.append(f"graph output {output.name}: no node yields it")
            if self.refusals:
                raise self._error()
            self._record(frame)
        return self.result

    def _enter(self, frame: Frame) -> None:
        graph = self.model.proto.graph
        read = {n for node in graph.node for n in reads(node)} | {o.name for o in graph.output}
        for name in (n for n in self.model.initializers if n in read):
            if name in self.held:
                with without_modes():
                    real = self.model.tensor(name)
                again = partial(self.model.tensor, name)
                live = self.result.weights.add(name, real, self.held[name], again)
                self.interpreter.bind(frame, name, live, source=name)
            else:
                self.interpreter.bind(frame, name, self.model.array(name))
        for name, value in self.inputs.items():
            self.interpreter.bind(frame, name, self._input(name, value), source=name)

    def _input(self, name: str, value: Value) -> Value:
        if isinstance(value, list):
            return [self._input(f"{name}.{k}", v) for k, v in enumerate(value)]
        if isinstance(value, Tensor):
            return self.result.recorder.add_input(name, self._fake_of(value))
        return value

    def _fake_of(self, t: Tensor) -> Tensor:
        with without_modes():
            like = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        return fake_like(like, torch.device("cpu"), self.mode)

    def _node(self, frame: Frame, index: int, node: NodeProto) -> None:
        if self.missing.intersection(node.input):
            self.missing.update(node.output)
            return
        self.interpreter.used.clear()
        try:
            self.interpreter.step(frame, node, str(index))
        except Refused as refusal:
            self.refusals.append(f"{describe(node, index)}: {refusal.reason}")
            self.missing.update(node.output)
        except PipecError:
            raise
        except LOWERING_ERRORS as error:
            types = ", ".join(_type_text(frame.env.get(name)) for name in node.input)
            raise FrontendError(
                "an ONNX node cannot be run on its inputs",
                where=f"{self.model.where}, {describe(node, index)}",
                got=f"{first_line(error)}; inputs {types}",
                hint="the file may be malformed, or a --shape may not suit the model",
            ) from error
        else:
            self.result.ways[index] = worst(self.interpreter.used)

    def _error(self) -> FrontendError:
        hint = None
        if self.wanted:
            names = " ".join(f"--bind {name}=…" for name in sorted(self.wanted))
            hint = f"give the values of shape-like inputs at compile time: {names}"
        return FrontendError(
            f"{len(self.refusals)} ONNX node(s) cannot be translated",
            where=self.model.where,
            got=list_lines(self.refusals),
            hint=hint,
        )

    def _record(self, frame: Frame) -> None:
        for name, value in frame.env.items():
            if isinstance(value, np.ndarray):
                self.result.known[name] = value
            elif isinstance(value, Tensor):
                self.result.types[name] = type_of(value)
                self.result.made[name] = self.result.recorder.node_of(value).name
        for output in self.model.proto.graph.output:
            value = frame.env[output.name]
            self.result.outputs[output.name] = value
            if isinstance(value, np.ndarray) and has_torch_type(value):
                made = self.interpreter.lift(value)
                value = self.result.weights.constant(output.name, value) if made is None else made
            if isinstance(value, Tensor):
                self.result.yielded[output.name] = value


def describe(node: NodeProto, index: int) -> str:
    """A node in the user's words: ``Conv conv1 (node 3)``."""
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{op} {node.name} (node {index})" if node.name else f"{op} (node {index})"


def _type_text(value: Value) -> str:
    if isinstance(value, list):
        return "a sequence"
    return "-" if value is None else str(type_of(value))


def evaluate_file(path: Path, options: LoadOptions) -> Evaluation:
    """Read a model file and run it on fake tensors: types, known values, weights, refusals.

    Raises:
        FrontendError: See `OnnxFrontend.load`.
    """
    return evaluate_model(read(path), options)


def evaluate_model(
    model: ModelFile, options: LoadOptions, sized: frozenset[str] = frozenset()
) -> Evaluation:
    """The same of a model that was read before.

    Args:
        model: The model.
        options: Shapes, bound inputs, and in which form integer operators are wanted.
        sized: Values that are known only as long as sizes are (`Growth.computed`).

    Raises:
        FrontendError: See `OnnxFrontend.load`.
    """
    model = replace_paired(model) if options.paired else model
    types = input_types(model, options)
    inputs = examples(model, types, bind_inputs(model, types, options), options.seed)
    evaluation = evaluate(model, inputs, sized=sized)
    while (flat := inline_ifs(evaluation.model, evaluation.known)) is not None:
        evaluation = evaluate(flat, inputs, sized=sized)
    return evaluation
