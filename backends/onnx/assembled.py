"""Stages of a model that was an ONNX file: its own nodes, under their own names."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnx import ModelProto
from torch import Tensor

from pipec.backends.onnx.files import Names, assign_names
from pipec.compiler.job import StageFunction
from pipec.compiler.sizes import check_sizes
from pipec.errors import BackendError
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.onnx.axes import find_axes, grow
from pipec.frontends.onnx.evaluation import evaluate_file
from pipec.frontends.onnx.frontend import Original
from pipec.frontends.onnx.submodel import Assembler
from pipec.graph.arrays import Array
from pipec.graph.axes import Axis, most_open
from pipec.graph.ir import Graph, InputKind, OutputKind, origin
from pipec.graph.lower import lower
from pipec.plan.model import Plan, Stage

Written = tuple[Stage, ModelProto, Mapping[str, Tensor | Array], Names]
"""A stage as an ONNX model, its weights apart."""


class Assembly:
    """The source of a plan, read again, as stages that leave open what axes they can.

    Attributes:
        axes: The axes that the file leaves open.

    Raises:
        FrontendError: The source cannot be read.
        BackendError: The file is not the one that was compiled.
    """

    def __init__(self, plan: Plan) -> None:
        source = plan.graph.source
        self._plan, self._options = plan, LoadOptions.of(source)
        self._evaluation = evaluate_file(Path(source.location), self._options)
        if self._evaluation.model.digest() != source.sha256:
            raise BackendError("the ONNX file changed while it was compiled", got=source.location)
        self._growth = grow(self._evaluation, (), self._options)
        self.axes = most_open(find_axes(self._evaluation, self._options), self._attempt)
        if self._growth.axes != self.axes.open:  # the last attempt failed
            self._growth = grow(self._evaluation, self.axes.open, self._options)

    def _attempt(self, axes: Sequence[Axis]) -> None:
        self._growth = grow(self._evaluation, axes, self._options)
        for _ in self.stages():
            pass

    def fix(self, why: str) -> None:
        """Leave no axis open."""
        self.axes = self.axes.all_fixed(why)
        self._growth = grow(self._evaluation, (), self._options)

    def stages(self) -> Iterator[Written]:
        """Every stage as a model of its own, with its names.

        Raises:
            FrontendError: A cut goes through one of the file's nodes, or a stage cannot have the
                axes open.
        """
        plan = self._plan
        traced = {k for n in plan.graph.calls if (k := origin(n).index) is not None}
        assembler = Assembler(self._evaluation, plan.graph.weights, traced, self._growth)
        nodes = plan.graph.nodes
        called: dict[str, str] = {c.value: assembler.name_of(nodes[c.value]) for c in plan.channels}
        for stage in plan.stages:
            graph = lower(stage.graph).graph
            names, passed_on = _names(graph, called)
            indices = {k for n in graph.calls if (k := origin(n).index) is not None}
            outputs = dict.fromkeys(names.outputs.values())
            part = assembler.part(
                f"stage{stage.index}",
                indices,
                names.inputs.values(),
                [n for n in outputs if n not in passed_on],
                passed_on,
            )
            yield stage, part.proto, part.weights, names

    def check(self, runners: Sequence[StageFunction], tolerance: float) -> None:
        """Run the emitted stages and the file at other sizes of the open axes.

        Raises:
            PipecError: An output is off, or the file itself runs at no other size.
        """
        written, inputs = self._evaluation.model.written, self._evaluation.inputs
        examples = {n: v for n, v in inputs.items() if isinstance(v, Tensor)}
        original = Original(written, inputs)
        model = Loaded(self._plan.graph, examples, original)
        sizes = self._growth.sizes
        self.axes = check_sizes(self._plan, runners, model, self.axes, sizes, tolerance)


def _names(graph: Graph, called: dict[str, str]) -> tuple[Names, dict[str, str]]:
    """The names of a stage's tensors, and which outputs are copies of inputs of their name."""
    received = {i.name for i in graph.inputs_of(InputKind.VALUE)}
    inputs = {
        i.name: called[i.name] if i.kind is InputKind.VALUE else i.name
        for i in graph.inputs
        if not i.kind.is_weight
    }
    outputs = {
        o.name: called[o.name] if o.kind is OutputKind.VALUE else o.name
        for o in graph.outputs
        if o.kind is not OutputKind.VALUE or o.name not in received
    }
    free = assign_names(outputs, inputs.values())
    return Names(inputs, free), {free[n]: old for n, old in outputs.items() if free[n] != old}
