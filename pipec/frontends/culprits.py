"""Which parts of a model cannot be traced and differentiated, while all around them can."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipec.autodiff.joint import trace_joint
from pipec.errors import PipecError
from pipec.frontends.base import user_code
from pipec.frontends.eager import Structure, run_once, tensors_of
from pipec.frontends.trace import MODEL, Flat, Loss, trace
from pipec.graph.ir import MEMORY, InputKind, OutputKind, Source

Arguments = tuple[tuple[object, ...], dict[str, object]]
Given = tuple[Arguments, bool]
"""How a part is called, and whether its results want gradients."""


class _Replay(nn.Module):
    """A part of a model as a function of the tensors of one of its calls."""

    def __init__(self, part: nn.Module, arguments: Arguments) -> None:
        super().__init__()
        self.part = part
        self._call = Structure("a part", part, arguments)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._call(tensors))


def culprits(flat: Flat, *, tracked: bool, autocast: str) -> list[str]:
    """Paths of the innermost parts that must run eagerly; none where a graph can hold the model.

    A part that fails is looked into: if all is well with it once its own failing parts are left as
    they are, it is these. What calls them must be traceable; the trace that follows says why not.

    Raises:
        FrontendError: The model raises.
    """
    inputs = [*flat.inputs.values()]
    called: dict[nn.Module, Given] = {flat: ((tuple(inputs), {}), tracked)}

    def noting(part: nn.Module) -> Callable[..., object]:
        kind = type(part)

        def note(*args: Any, **kwargs: Any) -> object:
            result = kind.__call__(part, *args, **kwargs)
            learns = any(t.requires_grad for t in tensors_of(result))
            called.setdefault(part, ((args, kwargs), learns))
            return result

        return note

    def holds(part: nn.Module, eager: Sequence[str] = ()) -> bool:
        """Whether a graph can hold a part, some of its own left as they are."""
        try:
            with user_code("it cannot be held"):
                _hold(part, called[part], [f"part.{n}" for n in eager], autocast)
        except PipecError:
            return False
        return True

    def parts_in(part: nn.Module) -> list[str]:
        found = []
        for name, child in part.named_children():
            inner = of(child) if child in called else parts_in(child)
            found += [f"{name}.{n}".rstrip(".") for n in inner]
        return found

    def of(part: nn.Module) -> list[str]:
        """Culprits in a part that is called; an empty path is itself."""
        if holds(part):
            return []
        found = parts_in(part)
        return found if found and holds(part, found) else [""]

    run_once(flat, inputs, {m: noting(m) for m in flat.modules() if m is not flat}, tracked=tracked)
    if holds(flat):
        return []
    found = [] if holds(flat.model) else parts_in(flat.model)
    alone = flat.loss is None or (found and holds(flat, [MODEL + n for n in found]))
    return found if alone else [*found, "loss"]


def _hold(part: nn.Module, given: Given, eager: Sequence[str], autocast: str) -> None:
    """Trace a part, and its backward if it learns.

    Raises:
        Exception: A graph cannot hold it.
    """
    arguments, learns = given
    flags = [t.requires_grad for t in tensors_of(arguments)]
    graph = trace(
        _Replay(part, arguments),
        [t.detach() for t in tensors_of(arguments)],
        loss=Loss(_total) if learns else None,
        source=Source(MEMORY, "", "", {}),
        differentiable=learns,
        autocast=autocast,
        eager=eager,
    )
    if learns:
        inputs, weights = [*enumerate(graph.inputs)], graph.weights
        trained = [(k, i) for k, i in inputs if i.kind is InputKind.PARAMETER]
        wanted = [k for k, i in trained if weights[i.name].requires_grad]
        read = [k for k, i in enumerate(graph.inputs) if i.kind is InputKind.INPUT]
        wanted += [k for k, flag in zip(read, flags, strict=True) if flag]
        losses = [k for k, o in enumerate(graph.outputs) if o.kind is OutputKind.LOSS]
        trace_joint(graph, tuple(sorted(wanted)), tuple(losses))


def _total(outputs: object) -> Tensor:
    """One number that depends on all results."""
    found = [t for t in tensors_of(outputs) if t.is_floating_point() or t.is_complex()]
    return torch.stack([t.abs().sum().float() for t in found]).sum()
