"""Zero-bubble schedules of one stage per device: the backward is split, W fills what was bubble.

```text
0: 0F0 0F1 0I0 0W0 ...      the first stage runs each W right behind its I
1: 1F0 1I0 1F1 1I1 1W0      stage s (0-based) keeps s weight gradients back
```

Qi et al., ICLR'24 (ZB-H1, ZB-H2).
"""

from pipec.errors import ScheduleError
from pipec.schedule.build import build
from pipec.schedule.generators.flush import one_per_device
from pipec.schedule.generators.program import alternate
from pipec.schedule.schedule import Schedule


def zb_h1(stages: int, microbatches: int, memory: int = 1) -> Schedule:
    """1F1B with the backward split in I and W, so that the bubble is a third of 1F1B's.

    Args:
        stages: N.
        microbatches: M.
        memory: 1 (ZB-H1): every stage holds N microbatches, 1F1B's peak. 2 (ZB-H2): up to 2N,
            for almost no bubble per device.

    Raises:
        ScheduleError: ``memory`` is neither 1 nor 2.
    """
    if memory not in (1, 2):
        raise ScheduleError("zb-h1 has no such memory", got=memory, want="1 (N) or 2 (2N)")
    rows = []
    for stage in range(stages):
        every, delay = [stage] * microbatches, stage if memory == 1 else 2 * stage + 1
        ahead = min(memory * (stages - 1 - stage), microbatches)
        rows.append(alternate(every, every, ahead, delay))
    place, options = one_per_device(stages), {"memory": memory}
    return build("zb-h1", rows, microbatches, placement=place, options=options)
