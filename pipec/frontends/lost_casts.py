"""Autocast that a graph would not hold is refused: its casts would be lost, and nothing would tell.

``torch.autocast("cuda")`` leaves tensors on the CPU as they are, and a model is traced where its
weights are; a region that is entered around the tracer has no end in the graph.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pipec.errors import FrontendError
from pipec.graph.autocast import refuse_autocast


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

    torch.autocast.__init__, torch.autocast.__enter__ = check_init, check_enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__, torch.autocast.__enter__ = make, enter  # type: ignore[method-assign]


def _make_error(device: str, dtype: torch.dtype | None, kinds: set[str]) -> FrontendError:
    return FrontendError(
        "the casts of autocast would be lost: the model is traced on another device",
        got=f"torch.autocast({device!r}), weights on {' and '.join(sorted(kinds))}",
        want=f"torch.autocast({min(kinds)!r}, dtype={dtype or torch.bfloat16})",
        hint="take the device type of an input: torch.autocast(x.device.type, ...); what "
        "is cast then runs on any device",
    )
