"""V-shaped schedules: device r of p holds stages r and 2p - 1 - r, so loss and input meet on 0.

```text
stage    0  1  2  3  4  5  6  7
device   0  1  2  3  3  2  1  0
```

ZB-V: Qi et al., ICLR'24 and NeurIPS'24. DualPipeV: DeepSeek-AI, 2025.
"""

from pipec.errors import ScheduleError
from pipec.schedule.build import build
from pipec.schedule.generators.program import B, F, I, Program
from pipec.schedule.schedule import Placement, Schedule


def fold_stages(stages: int) -> Placement:
    """The placement of the picture above.

    Raises:
        ScheduleError: The number of stages is odd.
    """
    if stages % 2:
        raise ScheduleError("a V needs an even number of stages", got=stages, hint="add a stage")
    return Placement.together(tuple((min(s, stages - 1 - s),) for s in range(stages)))


def zbv(stages: int, microbatches: int) -> Schedule:
    """ZB-V: zero bubble in steady state at the memory of 1F1B, when F, I and W take as long.

    Args:
        stages: 2p.
        microbatches: M; from 2p - 1 on the pipe is full.
    """
    place, devices = fold_stages(stages), stages // 2
    full = max(2 * devices - 1, microbatches)
    rows = []
    for rank in range(devices):
        row = _zbv_row(rank, stages - 1 - rank, devices, full)
        rows.append([a for a in row if a[2] < microbatches])
    return build("zbv", rows, microbatches, placement=place)


def _zbv_row(down: int, up: int, devices: int, microbatches: int) -> list[tuple[int, int, int]]:
    """One row: ``down`` and ``up`` are the stages on the two arms of the V."""
    program, rank = Program(), down
    for _ in range(2 * (devices - rank) - 1):
        program.put(F, down)
    for _ in range(rank):
        program.put(F, up).put(F, down)
    for _ in range(devices - rank):
        program.put(F, up).put(I, up).put_w(up)
    while program.done[F, up] < microbatches:
        if program.done[F, down] < microbatches:
            program.put(F, down)
        program.put(I, down).put_w(down).put(F, up).put(I, up).put_w(up)
    for _ in range(rank):
        program.put(I, down).put(I, up)
    for _ in range(devices - rank):
        program.put(I, down).put_w(down)
    for stage in (up, down):
        for _ in [w for w in program.due if w[0] == stage]:
            program.put_w(stage)
    return program.row


def dualpipev(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: forward of one arm runs next to backward of the other; W fills the ends.

    Args:
        stages: 2p.
        microbatches: M, at least 2p.

    Raises:
        ScheduleError: There are fewer microbatches than stages.
    """
    place, devices = fold_stages(stages), stages // 2
    if microbatches < stages:
        raise ScheduleError(
            "DualPipeV needs as many microbatches as stages",
            got=f"{microbatches} microbatches, {stages} stages",
            hint="take zbv, which does not",
        )
    rows = [_dualpipev_row(r, stages - 1 - r, devices, microbatches) for r in range(devices)]
    return build("dualpipev", rows, microbatches, placement=place)


def _dualpipev_row(
    down: int, up: int, devices: int, microbatches: int
) -> list[tuple[int, int, int]]:
    program, rank = Program(), down
    behind = devices - rank - 1
    for _ in range(2 * behind):
        program.put(F, down)
    for _ in range(rank + 1):
        program.put(F, down).put(F, up)
    for _ in range(behind):
        program.put(I, up).put_w().put(F, up)
    for _ in range(microbatches - 2 * devices + rank + 1):
        program.put(F, down).put(B, up).put(F, up).put(B, down)
    for _ in range(behind):
        program.put(B, up).put(F, up).put(B, down)
    for turn in range(2 * (rank + 1)):  # from the middle on split, to leave W for later
        program.put(I if turn >= rank + 1 else B, down if turn % 2 else up)
    for _ in range(behind):
        program.put_w().put(I, down)
    while program.due:
        program.put_w()
    return program.row
