"""A stage as a plain `nn.Module`, for other engines: torch's own `PipelineStage` takes it."""

from collections.abc import Mapping

import torch
from torch import nn

from pipec.errors import PlanError
from pipec.graph.ir import InputKind, OutputKind
from pipec.graph.lower import lower
from pipec.plan.model import Stage


class StageModule(nn.Module):
    """A stage whose weights are its parameters and buffers, under their original names.

    Called with the values that it receives (in the order of the plan's channels into it), then
    the user's inputs that it reads; gives what it sends, or the model's outputs. Autograd goes
    through it like through any module. State dicts of all stages together are the model's.

    Args:
        stage: A stage; with a loss in it, it takes the target as an input and gives the loss.
        weights: Where its weights come from, by name.

    Raises:
        PlanError: A weight is missing.
    """

    def __init__(self, stage: Stage, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._low = (lower(stage.graph),)
        graph = self._low[0].graph
        self._graph_module = (graph.module,)
        for i in graph.inputs:
            if i.kind.is_weight:
                if i.name not in weights:
                    raise PlanError("a weight is missing", where=i.name)
                hold(self, i.name, weights[i.name].detach().clone(), i.kind)

    @property
    def inputs(self) -> list[str]:
        """Names of the positional arguments."""
        graph = self._low[0].graph
        received = [t.value for t in self._low[0].receives]
        received = received or [i.name for i in graph.inputs_of(InputKind.VALUE)]
        return received + [i.name for i in graph.inputs_of(InputKind.INPUT)]

    @property
    def outputs(self) -> list[str]:
        """Names of what it gives."""
        graph = self._low[0].graph
        kinds = (OutputKind.LOSS, OutputKind.OUTPUT, OutputKind.VALUE)
        return [o.name for kind in kinds for o in graph.outputs_of(kind)]

    def forward(self, *args: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the stage; one result is given as it is, several as a tuple."""
        graph = self._low[0].graph
        given = dict(zip(self.inputs, args, strict=True))
        held = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        values = [held[i.name] if i.kind.is_weight else given[i.name] for i in graph.inputs]
        results = self._graph_module[0](*values)
        found = {}
        for o, x in zip(graph.outputs, results, strict=True):
            if o.kind is OutputKind.BUFFER_UPDATE:
                self._replace_buffer(o.name, x.detach())
            else:
                found[o.name] = x
        ordered = tuple(found[name] for name in self.outputs)
        return ordered[0] if len(ordered) == 1 else ordered

    def _replace_buffer(self, name: str, value: torch.Tensor) -> None:
        """Put a new tensor in a buffer's place: the old one may be saved for a backward."""
        path, _, last = name.rpartition(".")
        setattr(self.get_submodule(path), last, value)


def hold(module: nn.Module, name: str, tensor: torch.Tensor, kind: InputKind) -> None:
    """Register a weight under a dotted name; only a parameter or a buffer is in the state dict."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:  # noqa: SLF001
            module.add_module(part, nn.Module())
        child = module._modules[part]  # noqa: SLF001
        assert child is not None
        module = child
    if kind is InputKind.PARAMETER:
        grad = tensor.is_floating_point() or tensor.is_complex()
        module.register_parameter(last, nn.Parameter(tensor, grad))
    else:
        module.register_buffer(last, tensor, persistent=kind is InputKind.BUFFER)
