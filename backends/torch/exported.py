"""A stage as a `torch.export` program on disk."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from pipec.errors import BackendError
from pipec.graph.ir import Graph, tensor
from pipec.runtime.module import hold

_QUOTED = frozenset('"\\\n\r')
"""What ends a text in Python; torch.fx writes names of modules between quotes as they are."""


class _FlatStage(nn.Module):
    """A stage graph as a module: weights under their original names, inputs as arguments.

    Args:
        graph: The stage without communication nodes.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        for i in graph.inputs:
            if i.kind.is_weight:
                hold(self, i.name, graph.weights[i.name].detach(), i.kind)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Outputs in the order of the graph."""
        given = iter(inputs)
        args = [
            _named(self, i.name) if i.kind.is_weight else next(given) for i in self._graph.inputs
        ]
        results: tuple[Tensor, ...] = self._graph.module(*args)
        return results


def _named(module: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), last)
    return found


def export_stage(graph: Graph) -> torch.export.ExportedProgram:
    """Trace a pure stage graph again, as a program of its own.

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
    nodes = graph.nodes
    inputs = tuple(
        torch.zeros(t.shape, dtype=t.dtype)
        for t in (tensor(nodes[i.node]) for i in graph.inputs if not i.kind.is_weight)
    )
    with torch.no_grad():
        return torch.export.export(_FlatStage(graph), inputs, strict=False)


def write_exported(graph: Graph, path: Path) -> None:
    """Write a ``.pt2`` file without example inputs and without paths of this machine.

    Raises:
        OSError: The file cannot be written.
    """
    program = export_stage(graph)
    program.example_inputs = None
    for n in program.graph.nodes:
        n.meta.pop("stack_trace", None)
        n.meta.pop("nn_module_stack", None)
    # Through memory: on a full disk torch's own file writer aborts the whole process.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())
