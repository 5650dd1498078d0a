"""A stage as a plain `nn.Module`, for other engines: torch's own `PipelineStage` takes it."""

from collections.abc import Mapping

import torch
from torch import nn

from pipec.autodiff.needs import trainable
from pipec.errors import PlanError
from pipec.graph.ir import InputKind, OutputKind, tensor
from pipec.graph.lower import lower
from pipec.plan.model import Plan
from pipec.runtime.stored import name_weights
from pipec.runtime.weights import check_fits


class StageModule(nn.Module):
    """A stage whose weights are its parameters and buffers, under their original names.

    Called with the values that it receives (in the order of the plan's channels into it), then
    the user's inputs that it reads; gives what it sends, or the model's outputs. Autograd goes
    through it like through any module, and what the plan does not train is frozen. State dicts of
    all stages together are the model's, other names of shared weights included.

    Args:
        plan: A cut plan.
        stage: Which stage; with a loss in it, it takes the target as an input and gives the loss.
        weights: Where its weights come from, by name; the plan's if absent.

    Raises:
        PlanError: A weight is missing, has another shape or dtype, or is trained by another stage
            too: each engine would step a copy of its own.
    """

    def __init__(
        self, plan: Plan, stage: int, weights: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        self._low = (lower(plan.stages[stage].graph),)
        graph = self._low[0].graph
        self._tied = plan.graph.tied
        given, trained = name_weights(weights or plan.graph.weights, plan), _find_trained(plan)
        shared = plan.find_tied()
        for i in graph.inputs:
            if not i.kind.is_weight:
                continue
            if i.name in shared and i.name in trained:
                raise PlanError(
                    "a weight is trained by several stages; as modules they would step a copy each",
                    where=i.name,
                    got=f"stages {', '.join(map(str, shared[i.name]))}",
                    hint="cut so that one stage reads it, or train with pipec.Pipeline",
                )
            check_fits(i.name, tensor(graph.node(i.node)), given[i.name])
            held = given[i.name].detach().clone()
            held = nn.Parameter(held, i.name in trained) if i.kind is InputKind.PARAMETER else held
            for name in self._names(i.name):
                hold(self, name, held, i.kind)

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
        parameters = self.named_parameters(remove_duplicate=False)
        held = {**dict(parameters), **dict(self.named_buffers(remove_duplicate=False))}
        values = [held[i.name] if i.kind.is_weight else given[i.name] for i in graph.inputs]
        results = graph.module(*values)
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
        for each in self._names(name):
            path, _, last = each.rpartition(".")
            setattr(self.get_submodule(path), last, value)

    def _names(self, weight: str) -> tuple[str, ...]:
        return (weight, *self._tied.get(weight, ()))


def _find_trained(plan: Plan) -> frozenset[str]:
    """Parameters that the plan trains; before it is differentiated, those that the model says."""
    if plan.differentiated:
        found = [s.training.trained for s in plan.stages if s.training is not None]
        return frozenset(n for names in found for n in names)
    return trainable(plan.graph)


def hold(module: nn.Module, name: str, value: torch.Tensor, kind: InputKind) -> None:
    """Register a weight under a dotted name; only a parameter or a buffer is in the state dict."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:  # noqa: SLF001
            module.add_module(part, nn.Module())
        child = module._modules[part]  # noqa: SLF001
        assert child is not None
        module = child
    if kind is InputKind.PARAMETER:
        grad = value.is_floating_point() or value.is_complex()
        made = value if isinstance(value, nn.Parameter) else nn.Parameter(value, grad)
        module.register_parameter(last, made)
    else:
        module.register_buffer(last, value, persistent=kind is InputKind.BUFFER)
