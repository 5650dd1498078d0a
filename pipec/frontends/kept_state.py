"""What a model keeps from one forward to the next: buffers, and nothing else.

```text
self.mean = 0.9 * self.mean + x       a buffer that is replaced: written in place, so that it is
                                      an update which tracing sees
self.steps += 1                       a number or tensor that is no buffer: refused, a graph would
                                      compute with its first value for ever
```
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from pipec.errors import FrontendError

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
