"""An optimizer's state that waits in host memory between steps.

```text
STEP    host ──► device    the optimizer steps    device ──► host
```

Copies are bit for bit, so that training goes on as if the state had stayed. Scalars, such as the
count of steps, stay where the optimizer keeps them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipec.runtime.device import Device
from pipec.runtime.tensors import TensorType, pack, packed_bytes, unpack


class RestingState:
    """The state of one optimizer.

    Args:
        optimizer: Whose.
        device: Where it steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: Device) -> None:
        self._optimizer, self._device = optimizer, device
        self._host: torch.Tensor | None = None

    @contextmanager
    def here(self) -> Iterator[None]:
        """Inside, the state is on the device."""
        for state, key, tensor in self._tensors():
            state[key] = tensor.to(self._device.torch, copy=True)
        self._let_go()
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Bring it to host memory, wherever it is."""
        found = list(self._tensors())
        types = [TensorType.of(tensor) for _, _, tensor in found]
        buffer = self._device.room(packed_bytes(types))
        copies = unpack(pack([tensor for _, _, tensor in found], types, buffer), types)
        self._let_go()
        self._host = buffer
        for (state, key, _), copy in zip(found, copies, strict=True):
            state[key] = copy

    def _let_go(self) -> None:
        if self._host is not None:
            self._device.host.give(self._host)
            self._host = None

    def _tensors(self) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
        for state in self._optimizer.state.values():
            for key, value in list(state.items()):
                if type(value) is torch.Tensor and value.dim() and value.layout == torch.strided:
                    yield state, key, value
