"""Weight versions: which rule says what version an action uses, in one place.

Version v of a stage holds v updates. With k microbatches done by a replica (counted from 0) and
an update every ``u`` of them:

```text
flush      0 everywhere: one update, after the last backward
stash      F uses the newest version, B the one that F of this microbatch used   (PipeDream)
vertical   F and B use, on every stage, what F used on the first stage           (PipeDream)
2bw        F and B use max(k // u - 1, 0): two versions alive, delay 1           (PipeDream-2BW)
newest     F and B use the newest version there is                              (PipeMare)
given      whatever the generator wrote, the same in F and B                     (PipeFB)
```

Narayanan et al., SOSP'19 and ICML'21; Yang et al., MLSys'21 (PipeMare).
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pipec.errors import ScheduleError

Count = TypeVar("Count", int, np.ndarray)
RULES = ("flush", "stash", "vertical", "2bw", "newest", "given")


@dataclass(frozen=True)
class VersionRule:
    """Which weight version an action must use.

    Attributes:
        name: One of `RULES`.
        update_every: Microbatches per update on each replica of a stage; 0: one update at the
            end of the schedule.
    """

    name: str = "flush"
    update_every: int = 0

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise ScheduleError("unknown version rule", got=self.name, want=", ".join(RULES))
        if not 0 <= self.update_every < 1 << 31:
            raise ScheduleError(
                "cannot update every negative or huge number", got=self.update_every
            )

    @property
    def flush(self) -> bool:
        """Whether weights change only when no microbatch is under way."""
        return self.name == "flush"

    @property
    def alike(self) -> bool:
        """Whether a backward uses the weights that its forward used."""
        return self.name != "newest"

    def update_of(self, microbatch: Count, replicas: Count) -> Count:
        """The version that the gradients of a microbatch go into, 1-based; or of an array of them.

        Example:
            >>> VersionRule("stash", 2).update_of(microbatch=5, replicas=1)
            3
        """
        every = self.update_every
        found: Count = microbatch // replicas // every + 1 if every else microbatch * 0 + 1
        return found

    def updates(self, microbatches: int, replicas: int) -> int:
        """How many updates a stage makes; a last incomplete one counts too."""
        return self.update_of(microbatches - 1, replicas)

    def adding(self, microbatches: int, replicas: int) -> float:
        """The share of microbatches whose gradients are added to others of their update.

        Example:
            >>> VersionRule().adding(microbatches=8, replicas=2)
            0.75
        """
        return 1 - min(1.0, self.updates(microbatches, replicas) * replicas / microbatches)
