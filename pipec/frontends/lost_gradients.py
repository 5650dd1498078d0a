"""What changes gradients behind the back of a traced graph is refused.

A graph holds what the forward computes, and its backward is what follows from that. Formulas of
the model's own, and hooks that change gradients on their way, leave no trace in it: training would
go on with other gradients, and nothing would say so.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pipec.errors import FrontendError
from pipec.graph.torch_private import gradient_hooks

_REFUSED = {
    Tensor.register_hook: ("a hook on a gradient", "write what it does into the forward"),
    Tensor.detach_: ("a tensor that is detached in place", "write x = x.detach()"),
}
_OUT_OF_GRADIENTS = (
    "write y = g + (x - g).detach(): the value is x, the gradient that of g; or run that part as "
    "it is: --eager"
)


@contextmanager
def no_lost_gradients(module: nn.Module, eager: Collection[nn.Module] = ()) -> Iterator[None]:
    """Inside the block, refuse what a graph traced from ``module`` could not hold.

    Args:
        module: The model.
        eager: Parts of it that run as they are.

    Raises:
        FrontendError: A `torch.autograd.Function` of the model's own (or reentrant checkpointing,
            which is one), a hook on gradients, a ``detach_``, or `torch.inference_mode`.
    """
    if found := gradient_hooks(module, eager):
        raise FrontendError(
            "hooks on gradients would be lost",
            got=", ".join(found),
            hint="write what they do into the forward, or run that part as it is: --eager",
        )
    function = torch.autograd.Function
    base: Any = function.__mro__[1]  # a name for F.apply from before calls what is inherited
    apply = vars(function)["apply"]
    function.apply = classmethod(_refusing(apply.__func__))  # type: ignore[assignment]
    base.apply = classmethod(_refusing(lambda cls, *a, **k: super(base, cls).apply(*a, **k)))
    try:
        with _Watch():
            yield
    finally:
        function.apply = apply  # type: ignore[method-assign]
        del base.apply


def _refusing(apply: Any) -> Any:
    """`Function.apply` for functions of torch itself alone, whose forward says it all."""

    def check(cls: type, *args: Any, **kwargs: Any) -> object:
        """Refuse other functions."""
        if cls.__module__ == "torch.utils.checkpoint":
            raise FrontendError(
                "reentrant checkpointing hides its part of the model from tracing",
                got=cls.__name__,
                hint="use_reentrant=False, or --recompute, or run that part as it is: --eager",
            )
        if cls.__module__.split(".")[0] != "torch":
            raise FrontendError(
                "a torch.autograd.Function has a backward of its own, which would be lost",
                got=f"{cls.__module__}.{cls.__qualname__}",
                hint=_OUT_OF_GRADIENTS,
            )
        return apply(cls, *args, **kwargs)

    return check


class _Watch(TorchFunctionMode):
    """Refuses calls that change how gradients flow without being part of the graph."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Look at a call before it is made."""
        if func in _REFUSED:
            what, hint = _REFUSED[func]
            raise FrontendError(f"{what} would be lost", got=f"Tensor.{func.__name__}", hint=hint)
        if torch.is_inference_mode_enabled():
            raise FrontendError(
                "a part of the model runs in inference mode",
                got="torch.inference_mode",
                hint="use torch.no_grad",
            )
        return func(*args, **(kwargs or {}))
