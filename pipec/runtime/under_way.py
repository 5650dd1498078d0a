"""What a device holds between two rounds of an endless schedule, as tensors and plain data.

Values that wait to be sent or read, what is saved for backwards to come, older versions of weights,
sums of gradients, and how much the microbatches under way count. It fits the stages and the
schedule that it is of, and no others.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pipec.runtime.executor import Executor

Tensors = dict[str, torch.Tensor]
_TENSOR, _MAP = "tensor", "map"


def under_way(executor: Executor) -> tuple[Any, list[torch.Tensor]]:
    """What is under way on a device.

    Returns:
        Plain data, with places of tensors in it; and copies of these tensors.
    """
    held: list[torch.Tensor] = []
    found = {
        "rounds": executor.rounds.state(),
        "moves": executor.moves.state(),
        "saved": executor.saved(),
        "weights": [[s, *w.state()] for s, w in executor.weights.items()],
    }
    return _plain(found, held), held


def go_on(executor: Executor, told: Any, tensor: Callable[[int], torch.Tensor]) -> None:
    """Put what was under way back into a device whose newest weights are back already.

    Args:
        executor: The device.
        told: What `under_way` gave.
        tensor: Its tensors, by number.
    """
    found = _whole(told, tensor, executor.compute.torch)
    executor.rounds.load_state(found["rounds"])
    executor.moves.load_state(found["moves"])
    executor.load_saved(found["saved"])
    for stage, versions, sums in found["weights"]:
        executor.weights[stage].load_state(versions, sums)


def _plain(value: Any, held: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        held.append(value.detach().clone())
        return {_TENSOR: len(held) - 1, "stride": held[-1].stride()}
    if isinstance(value, Mapping):
        return {_MAP: [[k, _plain(v, held)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(v, held) for v in value]
    return value


def _whole(told: Any, tensor: Callable[[int], torch.Tensor], device: torch.device) -> Any:
    if isinstance(told, list):
        return [_whole(v, tensor, device) for v in told]
    if not isinstance(told, dict):
        return told
    if _MAP in told:
        return {k: _whole(v, tensor, device) for k, v in told[_MAP]}
    given = tensor(told[_TENSOR])
    made = torch.empty_strided(given.shape, told["stride"], dtype=given.dtype, device=device)
    return made.copy_(given)
