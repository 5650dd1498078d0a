"""A stage as a `torch.export` program on disk."""

import functools
import inspect
import io
import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipec.errors import BackendError, first_line
from pipec.frontends.base import quiet
from pipec.graph.ir import Graph, tensor
from pipec.graph.open_sizes import by_node, with_sizes
from pipec.graph.size_formula import SizedArgument
from pipec.runtime.module import hold

_QUOTED = frozenset('"\\\n\r')
"""What ends a text in Python; torch.fx writes names of modules between quotes as they are."""


class _FlatStage(nn.Module):
    """A stage graph as a module of inputs by name; outputs by name if ``named``, else in order."""

    def __init__(self, graph: Graph, *, named: bool, sized: Sequence[SizedArgument] = ()) -> None:
        super().__init__()
        self._sized = Sized(graph, sized) if sized else None
        self._graph, self._named, self._values = graph, named, argument_names(graph)
        for i in graph.inputs:
            if i.kind.is_weight:
                hold(self, i.name, graph.weights[i.name].detach(), i.kind)
        kind = inspect.Parameter.KEYWORD_ONLY  # the exporter names placeholders by them
        parameters = [inspect.Parameter(name, kind) for name in self._values.values()]
        self.__dict__["forward"] = forward = functools.partial(type(self).run, self)
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def run(self, /, **inputs: Tensor) -> tuple[Tensor, ...] | dict[str, Tensor]:
        args = [
            attrgetter(i.name)(self) if i.kind.is_weight else inputs[self._values[i.node]]
            for i in self._graph.inputs
        ]
        if self._sized is not None:
            results: tuple[Tensor, ...] = self._sized.run(*args)
        else:
            results = self._graph.module(*args)
        if not self._named:
            return results
        pairs = zip(self._graph.outputs, results, strict=True)
        return {o.name: result for o, result in pairs}


class Sized(fx.Interpreter):
    """A stage graph for any size of what it is given."""

    def __init__(self, graph: Graph, sized: Sequence[SizedArgument]) -> None:
        super().__init__(graph.module)
        self._arguments, self._shapes = by_node(sized), dict[str, Sequence[int]]()
        self._given = {i.node: i.name for i in graph.inputs if not i.kind.is_weight}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, with the sizes that follow from the stage's inputs."""
        if n.name in self._arguments:
            found = self.fetch_args_kwargs_from_env(n)
            args, kwargs = with_sizes(found, self._arguments[n.name], self._shapes)
            return self.call_function(n.target, args, kwargs)
        result = super().run_node(n)
        if n.name in self._given:
            self._shapes[self._given[n.name]] = result.shape
        return result


def argument_names(graph: Graph) -> dict[str, str]:
    """Placeholder of every value to the name of the argument: its own, where Python takes it."""
    values = [i for i in graph.inputs if not i.kind.is_weight]
    fine = {i.name for i in values if i.name.isidentifier() and not keyword.iskeyword(i.name)}
    return {i.node: i.name if len(fine) == len(values) else i.node for i in values}


@dataclass(frozen=True)
class OpenStage:
    """A stage, and what of it has any size.

    Attributes:
        graph: The stage without communication nodes.
        sized: Arguments of its nodes that follow open sizes.
        other: The stage at another size of every open axis; None if none is open.
    """

    graph: Graph
    sized: Sequence[SizedArgument] = ()
    other: Graph | None = None


def export_stage(stage: OpenStage, *, named: bool = False) -> torch.export.ExportedProgram:
    """Trace a pure stage graph again, as a program of its own.

    It yields a dictionary by the plan's names of outputs if ``named``.

    Raises:
        BackendError: A dimension that is open here is not so in torch's eyes; or a weight's name is
            what torch would write into Python code as it is.
    """
    graph, other = stage.graph, stage.other
    for i in graph.inputs:
        if i.kind.is_weight and not _QUOTED.isdisjoint(i.name):
            raise BackendError(
                "a stage cannot be written as a .pt2 file",
                where=f"weight {i.name!r}",
                got="a quote, a backslash or a line's end in its name",
                hint="rename it in the model, or compile without --pt2",
            )
    nodes, names = graph.nodes, argument_names(graph)
    inputs = {
        name: torch.zeros(t.shape, dtype=t.dtype)
        for name, t in ((names[n], tensor(nodes[n])) for n in names)
    }
    module, dims = _FlatStage(graph, named=named, sized=stage.sized), None
    if other is not None:
        dims = {names[n]: _open(tensor(nodes[n]), tensor(other.node(n))) for n in names}
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(module, (), inputs, strict=False, dynamic_shapes=dims)
    except (RuntimeError, ValueError) as error:
        if other is None:
            raise
        got = first_line(error)
        raise BackendError("torch.export fixes a size of a stage", got=got) from error


def _open(planned: Tensor, other: Tensor) -> dict[int, Any]:
    """The dimensions of a tensor that stay open, as `torch.export` takes them."""
    pairs = enumerate(zip(planned.shape, other.shape, strict=True))
    return {k: torch.export.Dim.DYNAMIC for k, (a, b) in pairs if a != b}


def write_exported(stage: OpenStage, path: Path) -> None:
    """Write a ``.pt2`` file without example inputs and without paths of this machine.

    Raises:
        OSError: The file cannot be written.
    """
    program = export_stage(stage, named=True)
    program.example_inputs = None
    for n in program.graph.nodes:
        n.meta.pop("stack_trace", None)
        n.meta.pop("nn_module_stack", None)
    # Through memory: on a full disk torch's own file writer aborts the whole process.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())
