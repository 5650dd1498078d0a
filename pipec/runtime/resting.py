"""An optimizer's state that waits in host memory between steps.

```text
by the step    host ──► device    the optimizer steps    device ──► host
beside         FETCH_O ... beside backwards ... STEP ... OFFLOAD_O ... beside forwards ...
```

Copies are bit for bit, so that training goes on as if the state had stayed. Scalars, such as the
count of steps, stay where the optimizer keeps them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipec.runtime.device import Copied, Device, Fetched
from pipec.runtime.tensors import TensorType, dense, parts


class RestingState:
    """The state of one optimizer.

    Args:
        optimizer: The optimizer that has the state.
        device: The device that it steps on.
        beside: Whether it stays after a step, until it is moved away with `rest`.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: Device, *, beside: bool = False
    ) -> None:
        self._optimizer, self._device, self._beside = optimizer, device, beside
        self._types: tuple[TensorType, ...] = ()
        self._host: Copied | None = None
        self._coming: Fetched | None = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Inside, the state is on the device."""
        self.fetch()
        self._arrive()
        try:
            yield
        finally:
            if not self._beside:
                self._device.wait(self.rest())

    def fetch(self) -> None:
        """Start to bring it from host memory, if it waits there."""
        if self._host is not None:
            self._coming, self._host = self._device.from_host(self._host, self._types), None

    def rest(self) -> Copied:
        """Start to send it to host memory, if it is not there; what the device waits for."""
        self._arrive()
        found = list(self._tensors())
        host = self._host
        if host is not None:
            place = host.buffer.untyped_storage().data_ptr()
            if all(t.untyped_storage().data_ptr() == place for _, _, t in found):
                return host
            self._device.host.give(host.buffer)
        self._types = tuple(TensorType.of(tensor) for _, _, tensor in found)
        self._host = self._device.to_host([tensor for _, _, tensor in found], self._types)
        self._put(parts(self._host.buffer, self._types))
        return self._host

    def _arrive(self) -> None:
        if self._coming is not None:
            self._device.wait(self._coming)
            self._put(self._coming.parts)
            self._coming = None

    def _put(self, copies: list[torch.Tensor]) -> None:
        for (state, key, _), copy in zip(self._tensors(), copies, strict=True):
            state[key] = copy

    def _tensors(self) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
        for state in self._optimizer.state.values():
            for key, value in list(state.items()):
                strided = type(value) is torch.Tensor and value.layout == torch.strided
                if strided and value.dim() and dense(TensorType.of(value)):
                    yield state, key, value
