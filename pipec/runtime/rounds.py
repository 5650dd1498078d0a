"""Which actions of a device's row are done in a round, and where runs of rounds stand.

Microbatches and versions are numbered since the pipeline was last empty: in a schedule that is
drained since the round began, in an endless one (`pipec.schedule.endless`) over many rounds. Of its
window a round leaves out what belongs to microbatches before the first, and one that drains what
belongs to new ones.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipec.runtime.shares import Shares
from pipec.schedule.action import Action, ActionKind
from pipec.schedule.endless import VERSIONED, updates_per_round
from pipec.schedule.schedule import Schedule

_K = ActionKind


class Turn(NamedTuple):
    """An action of a round.

    Attributes:
        action: What is done.
        oldest: The oldest version of its stage that later actions use; where none does, the one
            that it makes or uses itself.
        place: Its place in the device's row of the schedule.
    """

    action: Action
    oldest: int
    place: int


@dataclass
class Rounds:
    """The rounds of one device.

    Attributes:
        schedule: What is run.
        device: The device whose row it is.
        done: Rounds since the pipeline was last empty.
        origin: Microbatches of the run before that.
        shares: Weights of microbatches in the rounds under way, by their number.
    """

    schedule: Schedule
    device: int
    done: int = 0
    origin: int = 0
    shares: dict[int, Shares] = field(default_factory=dict)
    _left: int | None = None

    def __post_init__(self) -> None:
        s = self.schedule
        self.microbatches = s.microbatches - s.first
        self.lag = s.first // self.microbatches
        self._updates: list[int] = updates_per_round(s).tolist() if s.first else []
        row = s.row(self.device)
        ahead = [self._shift(a, 1) for a in row] if self.lag else []
        oldest = _oldest_used_later([*row, *ahead])
        self._turns = [Turn(a, oldest[k], k) for k, a in enumerate(row)]

    @property
    def empty(self) -> bool:
        """Whether no microbatch is under way."""
        return self.done == 0

    @property
    def draining(self) -> bool:
        """Whether the round takes no new microbatches."""
        return self._left is not None

    def state(self) -> list[Any]:
        """What `load_state` takes."""
        return [self.done, [[n, s.weights, s.shapes] for n, s in self.shares.items()]]

    def load_state(self, state: list[Any]) -> None:
        """Go on where other rounds of the same schedule stood; `origin` is what had been run."""
        self.done, shares = state
        self.origin -= self.done * self.microbatches
        self.shares = {n: Shares(weights, shapes) for n, weights, shapes in shares}

    def begin(self, shares: Shares | None) -> None:
        """A round of new microbatches."""
        self.shares[self.done] = shares or Shares()
        self.shares.pop(self.done - self.lag - 1, None)

    def drain(self) -> None:
        """A round without new ones."""
        self._left = self.done if self._left is None else self._left

    def row(self) -> list[Turn]:
        """What the device does in the round."""
        by = self.done - self.lag
        if not self.lag:
            return self._turns
        found = []
        for turn in self._turns:
            action = self._shift(turn.action, by)
            if self._exists(action):
                oldest = self._shift(turn.action._replace(version=turn.oldest), by).version
                found.append(Turn(action, max(0, oldest), turn.place))
        return found

    def _shift(self, action: Action, by: int) -> Action:
        """The same action some rounds later."""
        m, version = action.microbatch, action.version
        if action.kind in VERSIONED and self._updates:
            version += by * self._updates[action.stage]
        if action.kind.is_compute:
            version = max(0, version)
        m = None if m is None else m + by * self.microbatches
        return action._replace(microbatch=m, version=version)

    def _exists(self, action: Action) -> bool:
        rounds = self.done + 1 if self._left is None else self._left
        if action.microbatch is not None:
            return 0 <= action.microbatch < rounds * self.microbatches
        most: int = rounds * self._updates[action.stage]
        return 0 < action.version <= most

    def weight(self, microbatch: int) -> float:
        """How much a microbatch counts in its round."""
        return self._of(microbatch).weight(microbatch % self.microbatches)

    def shape(self, microbatch: int) -> int:
        """Which compiled shape a microbatch has."""
        return self._of(microbatch).shape(microbatch % self.microbatches)

    def _of(self, microbatch: int) -> Shares:
        return self.shares[microbatch // self.microbatches]

    def total(self, stage: int, update: int) -> float:
        """The weight of all microbatches in an update of a stage."""
        replicas = len(self.schedule.placement.backward[stage])
        every = self.schedule.rule.update_every * replicas or self.microbatches
        last = update * every if self.lag else min(update * every, self.microbatches)
        return float(sum(map(self.weight, range((update - 1) * every, last))))

    def end(self) -> bool:
        """Finish a round; whether the pipeline is empty now."""
        self.done += 1
        left = self.done if self._left is None else self._left
        if self.done < left + self.lag:
            return False
        self.origin += left * self.microbatches
        self.done, self._left = 0, None
        self.shares.clear()
        return True


def _oldest_used_later(row: list[Action]) -> list[int]:
    """For every position, the oldest version that its stage's later actions use.

    Where no later action uses any, the version that the action itself makes or uses.
    """
    later: dict[int, int] = {}
    found = [0] * len(row)
    for k in range(len(row) - 1, -1, -1):
        action = row[k]
        found[k] = later.get(action.stage, action.version)
        if action.kind <= _K.W or action.kind is _K.SEND_W:
            later[action.stage] = min(later.get(action.stage, action.version), action.version)
    return found
