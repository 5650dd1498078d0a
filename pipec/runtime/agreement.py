"""What all ranks must have in common, compared before the first round; and messages of plain data.

Nothing that comes from another rank is unpickled: tensors travel as tensors, all else as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pipec.errors import BackendError
from pipec.runtime.waiting import waiting_for


def exchange(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What every rank has given, of what JSON can hold, by rank; all ranks must call.

    Raises:
        BackendError: Another rank did not answer.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [json.loads(json.dumps(value))]
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    world = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    with waiting_for("the messages of all ranks"):
        dist.all_gather(lengths, torch.tensor([len(data)]), group)
        longest = max(int(n) for n in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
        dist.all_gather(parts, padded, group)
    pairs = zip(parts, lengths, strict=True)
    return [json.loads(part[: int(n)].numpy().tobytes()) for part, n in pairs]


def collect(tensors: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]] | None:
    """The tensors of every rank on rank 0, in host memory; None elsewhere. All ranks must call.

    Raises:
        BackendError: Another rank did not answer.
    """
    types = {n: [str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in tensors.items()}
    parts = exchange(types)
    with waiting_for("the tensors of all ranks"):
        if dist.get_rank():
            for t in tensors.values():
                dist.send(t.detach().cpu().contiguous(), 0)
            return None
        found = [{n: t.cpu() for n, t in tensors.items()}]
        for rank, kinds in enumerate(parts[1:], 1):
            found.append({})
            for name, (dtype, shape) in kinds.items():
                buffer = torch.empty(shape, dtype=getattr(torch, dtype))
                dist.recv(buffer, rank)
                found[rank][name] = buffer
    return found


def agree(facts: Mapping[str, str | None]) -> None:
    """Refuse to go on with ranks that have different settings; all ranks must call.

    Args:
        facts: What it is called in the message, to a text or a digest of it; None where this rank
            cannot say, which agrees with everything.

    Raises:
        BackendError: Which fact differs, and on which ranks.
    """
    parts: list[dict[str, str | None]] = exchange(dict(facts))
    for name in dict.fromkeys(n for part in parts for n in part):
        check_same(name, [part.get(name) for part in parts])


def check_same(
    name: str,
    values: Sequence[str | None],
    hint: str = "start all ranks with the same command, files and package versions",
) -> None:
    """Refuse to go on with ranks whose values differ; None is that of one that knows none.

    Raises:
        BackendError: The values differ; the message names them with their ranks.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            ranks_of.setdefault(value, []).append(rank)
    if len(ranks_of) > 1:
        raise BackendError(
            f"the ranks do not agree on {name}",
            got="; ".join(
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {value}"
                for value, ranks in ranks_of.items()
            ),
            want="the same on all ranks",
            hint=hint,
        )
