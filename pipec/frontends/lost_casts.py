"""Autocast for a device that the model is not traced on is refused: its casts would be lost.

``torch.autocast("cuda")`` leaves tensors on the CPU as they are, and a model is traced where its
weights are: the graph would have no casts, on GPUs too, and nothing would say so.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pipec.errors import FrontendError


@contextmanager
def no_lost_casts(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block, refuse autocast for other kinds of device than those of ``tensors``.

    A region that says ``enabled=False`` casts nothing and is let through.

    Raises:
        FrontendError: The model enters such a region.
    """
    kinds = {"cpu" if t.device.type == "meta" else t.device.type for t in tensors}
    make = torch.autocast.__init__

    def checked(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        """Refuse it, or make it."""
        if enabled and kinds and device_type not in kinds:
            raise FrontendError(
                "the casts of autocast would be lost: the model is traced on another device",
                got=f"torch.autocast({device_type!r}), weights on {' and '.join(sorted(kinds))}",
                want=f"torch.autocast({min(kinds)!r}, dtype={dtype or torch.bfloat16})",
                hint="take the device type of an input: torch.autocast(x.device.type, ...); what "
                "is cast then runs on any device",
            )
        make(self, device_type, dtype, enabled, cache_enabled)

    torch.autocast.__init__ = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = make  # type: ignore[method-assign]
