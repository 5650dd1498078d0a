"""Graphs that were traced on one kind of device, made to run on another."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from pipec.errors import BackendError
from pipec.graph.ir import op_name

_CPU_ONLY = ("_for_cpu", "mkldnn")
"""Parts of the names of ops that only CPUs have."""


def placed(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """A graph whose factory ops make their tensors on ``device``.

    Args:
        module: As traced, on the CPU; it is not changed.
        device: Where to run it.

    Raises:
        BackendError: It holds a kernel that ``device`` does not have.
    """
    if device.type == "cpu":
        return module
    foreign = [n for n in module.graph.nodes if any(part in op_name(n) for part in _CPU_ONLY)]
    if foreign:
        raise BackendError(
            "the graph was differentiated into a kernel that only CPUs have",
            where=type(module).__name__,
            got=f"{foreign[0].name}: {foreign[0].target}",
            hint="compile with --passes '...,differentiate{attention=math},...'",
        )
    moved = copy.deepcopy(module)
    for node in moved.graph.nodes:
        node.args = _moved(node.args, device)
        node.kwargs = _moved(node.kwargs, device)
    moved.recompile()
    return moved


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.device):
        return device
    if isinstance(value, Mapping):
        return {k: _moved(v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(v, device) for v in value)
    return value
