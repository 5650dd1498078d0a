"""What a traced graph would lose is refused: gradients, casts and state; nothing else would tell.

A graph holds what the forward computes, and its backward is what follows from that. Formulas of
the model's own, and hooks that change gradients on their way, leave no trace in it.
``torch.autocast("cuda")`` leaves tensors on the CPU as they are, and a model is traced where its
weights are; a region that is entered around the tracer has no end in the graph. And of what a
model keeps from one forward to the next a graph knows buffers alone:

```text
self.mean = 0.9 * self.mean + x       a buffer that is replaced: written in place, so that it is
                                      an update which tracing sees
self.steps += 1                       a number or tensor that is no buffer: refused, a graph would
                                      compute with its first value for ever
```
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from pipec.errors import FrontendError
from pipec.frontends.regions import MarkNoGrad
from pipec.graph.autocast import refuse_autocast
from pipec.graph.torch_private import gradient_hooks, swapped

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


class Watch(MarkNoGrad):
    """Refuses calls, too, that change how gradients flow without being part of the graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        return super().__torch_function__(func, types, args, kwargs)


def device_types(tensors: Iterable[Tensor]) -> set[str]:
    """Kinds of device that tensors are traced on."""
    return {"cpu" if t.device.type == "meta" else t.device.type for t in tensors}


@contextmanager
def no_lost_casts(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block, refuse autocast for other kinds of device than those of ``tensors``.

    A region that says ``enabled=False`` casts nothing and is let through, if it says so inside the
    block: one that was made before, such as a decorator, does not tell that from having found no
    such device.

    Raises:
        FrontendError: The model enters such a region.
        PlanError: Autocast is on around the block.
    """
    kinds = device_types(tensors)
    for kind in kinds:
        refuse_autocast(kind, "the model is traced", "compile(..., autocast='{dtype}')")
    make, enter = torch.autocast.__init__, torch.autocast.__enter__
    disabled = list[torch.autocast]()

    def check_init(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        """Note that it casts nothing, or refuse it, or make it."""
        if not enabled:
            disabled.append(self)
        elif kinds and device_type not in kinds:
            raise _make_error(device_type, dtype, kinds)
        make(self, device_type, dtype, enabled, cache_enabled)

    def check_enter(self: torch.autocast) -> object:
        """Enter it, or refuse one that was made before."""
        if kinds and self.device not in kinds and all(self is not d for d in disabled):
            raise _make_error(self.device, self.fast_dtype, kinds)
        return enter(self)  # type: ignore[no-untyped-call]

    with swapped(torch.autocast, __init__=check_init, __enter__=check_enter):
        yield


def _make_error(device: str, dtype: torch.dtype | None, kinds: set[str]) -> FrontendError:
    return FrontendError(
        "the casts of autocast would be lost: the model is traced on another device",
        got=f"torch.autocast({device!r}), weights on {' and '.join(sorted(kinds))}",
        want=f"torch.autocast({min(kinds)!r}, dtype={dtype or torch.bfloat16})",
        hint="take the device type of an input: torch.autocast(x.device.type, ...); what "
        "is cast then runs on any device",
    )


_settles: ContextVar[bool] = ContextVar("settles", default=False)


@contextmanager
def allow_state_changes() -> Iterator[None]:
    """Inside the block a model may change its attributes: it is run and not traced."""
    token = _settles.set(True)
    try:
        yield
    finally:
        _settles.reset(token)


@contextmanager
def keep_state(module: nn.Module) -> Iterator[None]:
    """Around one forward of ``module``: write replaced buffers in place, refuse other state.

    Raises:
        FrontendError: A buffer is replaced by a tensor of another type; or, in training mode, an
            attribute that is a number or a tensor has another value than before.
    """
    parts = list(module.named_modules())
    buffers = [dict(m.named_buffers(recurse=False)) for _, m in parts]
    others = [_state(m) for _, m in parts]
    yield
    for (path, m), old, state in zip(parts, buffers, others, strict=True):
        for name, buffer in old.items():
            new = getattr(m, name, None)
            if new is not buffer:
                _write(buffer, new, f"{path}.{name}".lstrip("."))
                setattr(m, name, buffer)
        if module.training and not _settles.get():
            _refuse_changes(path, state, _state(m))


def _state(module: nn.Module) -> dict[str, object]:
    """Attributes that are numbers or tensors; flags are left out."""
    kinds = (int, float, Tensor)
    found = vars(module).items()
    return {k: v for k, v in found if isinstance(v, kinds) and not isinstance(v, bool)}


def _write(buffer: Tensor, new: object, name: str) -> None:
    fits = isinstance(new, Tensor) and (new.shape, new.dtype) == (buffer.shape, buffer.dtype)
    if not fits:
        raise FrontendError(
            "a buffer is replaced by something of another type",
            where=name,
            got=f"{new.dtype}{list(new.shape)}" if isinstance(new, Tensor) else type(new).__name__,
            want=f"{buffer.dtype}{list(buffer.shape)}",
        )
    with torch.no_grad():
        buffer.copy_(new)  # type: ignore[arg-type]


def _refuse_changes(path: str, before: dict[str, object], after: dict[str, object]) -> None:
    for name, old in before.items():
        new = after.get(name)
        same = new is old if isinstance(old, Tensor) else new == old
        if not same:
            raise FrontendError(
                "an attribute changes while the model runs; a graph would keep its first value",
                where=f"{path}.{name}".lstrip("."),
                got="another tensor" if isinstance(old, Tensor) else f"{old}, then {new}",
                hint="make it a buffer (or let it be None before the model is read)",
            )
