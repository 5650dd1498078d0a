"""What a backend says about the cycles of what it emitted."""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EngineCycles:
    """One engine in the steady state, in cycles per frame.

    Attributes:
        name: Name of the engine.
        busy: Cycles of its firings.
        empty: Cycles that it waits for tokens; ``full`` for room in the streams that it writes.
        waits_for: The stream that it waits for most; empty if it never waits.
    """

    name: str
    busy: int
    empty: int
    full: int
    waits_for: str


@dataclass(frozen=True)
class StageCycles:
    """One emitted stage, simulated handshake by handshake.

    Attributes:
        stage: Its name; ``clock_mhz`` its clock.
        interval: Cycles from frame to frame.
        latency: Cycles from the first token in to the last token out of a frame alone.
        steady: Whether every later frame is known to repeat the last one.
        bottleneck: The engine that is busy longest: its work sets the interval.
        handshakes: Tokens of one frame on all streams between engines.
        engines: All engines and ports, in order.
        free_interval: Cycles from frame to frame where pipelines are free-running; in the others,
            one that waits stands still as a whole.
    """

    stage: str
    clock_mhz: float
    interval: int
    latency: int
    steady: bool
    bottleneck: str
    handshakes: int
    engines: tuple[EngineCycles, ...]
    free_interval: int


@dataclass(frozen=True)
class TimedCheck:
    """One emitted stage's code, run with the cycle of every handshake, beside the simulator.

    Attributes:
        stage: Name of the stage.
        frames: Frames played.
        handshakes: Tokens compared.
        differing: Streams on which some handshake has another cycle.
        ends: Cycles at which the frames end.
    """

    stage: str
    frames: int
    handshakes: int
    differing: tuple[str, ...]
    ends: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Whether every handshake has the cycle that the simulator says."""
        return not self.differing

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**dataclasses.asdict(self), "ok": self.ok}
