"""Plain data with tensors in it as entries of a file of tensors.

```text
<name>        JSON as bytes, with places of tensors in it
<name>/<k>    the tensors
```
"""

import json
from collections.abc import Mapping
from typing import Any

import torch

from pipec.errors import PlanError

Tensors = dict[str, torch.Tensor]
_TENSOR, _MAP = "tensor", "map"


def pack_entries(name: str, data: object) -> Tensors:
    """Entries of mappings, lists, numbers, texts and tensors, which are copied."""
    held: list[torch.Tensor] = []
    text = json.dumps(_plain(data, held))
    plain = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return {name: plain, **{f"{name}/{k}": t for k, t in enumerate(held)}}


def unpack_entries(
    name: str, entries: Mapping[str, torch.Tensor], device: torch.device | str = "cpu"
) -> Any:
    """What `pack_entries` was given; tuples are lists, and tensors are on ``device``.

    Raises:
        PlanError: There is no such entry.
    """
    if name not in entries:
        raise PlanError("the checkpoint is not one of a pipeline", want=name)
    plain = json.loads(bytes(entries[name].tolist()).decode())
    return _whole(plain, name, entries, device)


def _plain(value: Any, held: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        held.append(value.detach().clone())
        return {_TENSOR: len(held) - 1, "stride": held[-1].stride()}
    if isinstance(value, Mapping):
        return {_MAP: [[k, _plain(v, held)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(v, held) for v in value]
    return value


def _whole(
    data: Any, name: str, entries: Mapping[str, torch.Tensor], device: torch.device | str
) -> Any:
    if isinstance(data, list):
        return [_whole(v, name, entries, device) for v in data]
    if not isinstance(data, dict):
        return data
    if _MAP in data:
        return {k: _whole(v, name, entries, device) for k, v in data[_MAP]}
    given = entries[f"{name}/{data[_TENSOR]}"]
    made = torch.empty_strided(given.shape, data["stride"], dtype=given.dtype, device=device)
    return made.copy_(given)
