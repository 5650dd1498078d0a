"""A stage as a `torch.export` program on disk."""

import functools
import inspect
import io
import keyword
from pathlib import Path

import torch
from torch import Tensor, nn

from pipec.errors import BackendError
from pipec.graph.ir import Graph, tensor
from pipec.runtime.module import hold

_QUOTED = frozenset('"\\\n\r')
"""What ends a text in Python; torch.fx writes names of modules between quotes as they are."""


class _FlatStage(nn.Module):
    """A stage graph as a module: weights under their original names, inputs as arguments by name.

    Args:
        graph: The stage without communication nodes.
        named: Whether it yields its outputs by name, and not as a tuple in the order of the graph.
    """

    def __init__(self, graph: Graph, *, named: bool) -> None:
        super().__init__()
        self._graph, self._named, self._values = graph, named, argument_names(graph)
        for i in graph.inputs:
            if i.kind.is_weight:
                hold(self, i.name, graph.weights[i.name].detach(), i.kind)
        kind = inspect.Parameter.KEYWORD_ONLY  # the exporter names placeholders by them
        parameters = [inspect.Parameter(name, kind) for name in self._values.values()]
        self.__dict__["forward"] = forward = functools.partial(type(self).run, self)
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def run(self, /, **inputs: Tensor) -> tuple[Tensor, ...] | dict[str, Tensor]:
        """What the graph computes."""
        args = [
            _named(self, i.name) if i.kind.is_weight else inputs[self._values[i.node]]
            for i in self._graph.inputs
        ]
        results: tuple[Tensor, ...] = self._graph.module(*args)
        if not self._named:
            return results
        pairs = zip(self._graph.outputs, results, strict=True)
        return {o.name: result for o, result in pairs}


def argument_names(graph: Graph) -> dict[str, str]:
    """Placeholder of every value to the name of the argument: its own, where Python takes it."""
    values = [i for i in graph.inputs if not i.kind.is_weight]
    fine = {i.name for i in values if i.name.isidentifier() and not keyword.iskeyword(i.name)}
    return {i.node: i.name if len(fine) == len(values) else i.node for i in values}


def _named(module: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), last)
    return found


def export_stage(graph: Graph, *, named: bool = False) -> torch.export.ExportedProgram:
    """Trace a pure stage graph again, as a program of its own.

    Args:
        graph: The stage without communication nodes.
        named: Whether it yields a dictionary, by the names that outputs have in the plan.

    Raises:
        BackendError: A weight has a name that torch would write into Python code as it is.
    """
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
    with torch.no_grad():
        return torch.export.export(_FlatStage(graph, named=named), (), inputs, strict=False)


def write_exported(graph: Graph, path: Path) -> None:
    """Write a ``.pt2`` file without example inputs and without paths of this machine.

    Raises:
        OSError: The file cannot be written.
    """
    program = export_stage(graph, named=True)
    program.example_inputs = None
    for n in program.graph.nodes:
        n.meta.pop("stack_trace", None)
        n.meta.pop("nn_module_stack", None)
    # Through memory: on a full disk torch's own file writer aborts the whole process.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())
