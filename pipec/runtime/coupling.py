"""Whether an optimizer steps every parameter by itself, found out on small stand-ins.

An optimizer per stage, or per replica, is the optimizer of the whole model only if no parameter's
step depends on another's gradient. All of `torch.optim` are such; those that estimate one number
from all parameters (Prodigy's step size, the global norm of LAMB) are not: every stage would
estimate another one. What an optimizer does is not to be read from its class, so it is tried: some
steps twice, with other gradients for half of the parameters; the other half must not notice.
Optimizers of `torch.optim` as they are, without hooks, are not tried; L-BFGS is.
"""

from collections.abc import Collection, Mapping

import torch
from torch import nn

from pipec.errors import PlanError
from pipec.graph.torch_private import has_step_hooks
from pipec.runtime.weights import OptimizerFactory

_STEPS = 8
"""Enough for an estimate that begins with its second step to be used."""
_KNOWN = {k for k in vars(torch.optim).values() if isinstance(k, type)} - {torch.optim.LBFGS}
_SIZE = 3
"""Of a dimension of a stand-in."""


def check_uncoupled(make: OptimizerFactory, parameters: Mapping[str, torch.Tensor]) -> None:
    """Refuse an optimizer in which one parameter's gradient moves another one.

    What it cannot make of stand-ins is not judged; of parameters only the types are read.

    Raises:
        PlanError: It is such an optimizer.
    """
    if not parameters:
        return
    names = [*parameters, f"{next(iter(parameters))} again"]
    parameters = {n: parameters[n.removesuffix(" again")] for n in names}
    shapes = {n: tuple(min(k, _SIZE) for k in parameters[n].shape) for n in names}
    generator = torch.Generator().manual_seed(0)
    values, gradients = (
        {n: torch.randn(shapes[n], generator=generator).to(parameters[n].dtype) for n in names}
        for _ in range(2)
    )
    halves = (names[::2], names[: len(names) // 2])
    try:
        plain, *others = (_step(make, values, gradients, moved) for moved in ((), *halves))
    except Exception:  # it looks at more than names and dimensions
        return
    for moved, changed in zip(halves, others, strict=True):
        still = (n for n in names if n not in moved and not torch.equal(plain[0][n], changed[0][n]))
        where = next(still, None if plain[1] == changed[1] else "the settings of a group")
        if where is not None:
            raise PlanError(
                "the optimizer moves a parameter by the gradients of others, which are "
                "stepped elsewhere",
                where=where,
                got="an estimate over several parameters, such as a global norm",
                want="an optimizer that steps every parameter by itself, as torch's do",
                hint="clip=, for a limit on the norm of all gradients; or one stage on one device",
            )


def _step(
    make: OptimizerFactory,
    values: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    moved: Collection[str],
) -> tuple[dict[str, torch.Tensor], str]:
    """Parameters after some steps, and the settings of their groups.

    Gradients of ``moved`` change in size and direction with every step.
    """
    held = {n: nn.Parameter(v.clone()) for n, v in values.items()}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of no other device, where the state would stay
        optimizer = make(list(held.items()))
        known = type(optimizer) in _KNOWN and not has_step_hooks(optimizer)
        for step in range(0 if known else _STEPS):
            for n, p in held.items():
                p.grad = gradients[n] * (-100) ** (step % 3) if n in moved else gradients[n].clone()
            optimizer.step()
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return {n: p.detach() for n, p in held.items()}, str(groups)
