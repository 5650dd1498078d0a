"""Interleaved schedules: every device holds v stages (*chunks*), p apart, so the bubble shrinks.

```text
4 stages on 2 devices, 2 chunks: device 0 holds stages 0 and 2, device 1 holds 1 and 3
0: 0F0 0F1 2F0 2F1 2B0 ...
1: 1F0 1F1 3F0 3B0 ...
```

Narayanan et al., SC'21 (depth first); Lamy-Poirier, MLSys'23 (breadth first); Qi et al., ICLR'24
(with the backward split in I and W).
"""

from pipec.errors import ScheduleError
from pipec.schedule.build import build
from pipec.schedule.generators.program import alternate
from pipec.schedule.schedule import Placement, Schedule


def loop_stages(stages: int, chunks: int) -> Placement:
    """Stage s on device ``s mod p``, where p = stages / chunks.

    Raises:
        ScheduleError: The stages cannot be dealt out evenly.
    """
    if chunks < 1 or stages % chunks:
        raise ScheduleError(
            "stages must be a multiple of chunks",
            got=f"{stages} stages, {chunks} chunks",
            hint=f"{max(chunks, 1) * -(-stages // max(chunks, 1))} stages would do",
        )
    devices = stages // chunks
    return Placement.together(tuple((s % devices,) for s in range(stages)))


def interleaved(
    stages: int, microbatches: int, chunks: int = 2, order: str = "depth", split: bool = False
) -> Schedule:
    """Interleaved 1F1B.

    Args:
        stages: All stages together, v x p.
        microbatches: M; best a multiple of p.
        chunks: v, stages per device.
        order: "depth": 1F1B, a group of p microbatches goes through all chunks before the next.
            "breadth": all microbatches through a chunk, then the next chunk, then backwards.
        split: Whether the backward is split in I and W, and W fills the bubble (zero bubble).

    Raises:
        ScheduleError: Stages are no multiple of chunks, or an option has another value.
    """
    place = loop_stages(stages, chunks)
    devices = stages // chunks
    if order not in ("depth", "breadth") or (order == "breadth" and split):
        raise ScheduleError(
            "no such interleaved schedule",
            got=f"order={order}, split={split}",
            want="order=depth, or order=breadth without split",
        )
    whole = order == "breadth"
    groups = [microbatches] if whole else _groups(microbatches, devices)
    rows = []
    for rank in range(devices):
        held = range(rank, stages, devices)
        forward = [s for size in groups for s in held for _ in range(size)]
        backward = [s for size in groups for s in reversed(held) for _ in range(size)]
        hops = (1 if split else 2) * (devices - 1 - rank)
        ahead = len(forward) if whole else min(len(forward), (chunks - 1) * max(groups) + hops)
        rows.append(alternate(forward, backward, ahead, rank if split else None))
    options = {"chunks": chunks, "order": order, "split": split}
    return build("interleaved", rows, microbatches, placement=place, options=options)


def _groups(microbatches: int, devices: int) -> list[int]:
    """Sizes of the groups that go through all chunks together, as equal as possible."""
    count = max(1, microbatches // devices)
    size, rest = divmod(microbatches, count)
    return [size + (g < rest) for g in range(count)]
