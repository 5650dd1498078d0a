"""FIFO depths by simulation: deeper where the interval asks for it, and then as small as it allows.

The depths of `pipec.backends.fpga.fifo` follow from a schedule in chunks; they suffice but are
not least. An interval never falls when a FIFO is made shallower (all times are maxima of sums), so
the least depth of one stream, the others kept, is found by bisection.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pipec.backends.fpga.cycles import network_of, simulated, steady_state
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.simulator.process import Process, Trace
from pipec.errors import BackendError

FREE_DEPTH = 32
"""Depths up to this cost the same: a shift register of 32 per bit."""
BUDGET = 400_000_000
"""Handshakes to simulate, at most, while shrinking."""


@dataclass
class _Trials:
    """Simulations of one stage under changing depths.

    Attributes:
        processes: Of the stage; ``initial`` tokens of its streams.
        best: Depths that are known to be good.
        interval: What they must keep.
        budget: Handshakes that may still be simulated.
    """

    processes: list[Process]
    initial: Mapping[str, int]
    best: dict[str, int]
    interval: int
    budget: int

    def run(self, depths: Mapping[str, int]) -> Trace:
        trace = steady_state(self.processes, depths, self.initial)
        self.budget -= sum(flow.tokens for flow in trace.flows.values())
        return trace

    def keeps(self, depths: dict[str, int]) -> bool:
        """Whether these depths are seen to reach the interval; they are the best so far then."""
        try:
            good = self.budget > 0 and self.run(depths).interval <= self.interval
        except BackendError:  # it deadlocks
            return False
        self.best = depths if good else self.best
        return good

    def least(self, low: int, high: int, depths: Callable[[int], dict[str, int]]) -> None:
        """Bisect for the least number that keeps the interval; ``high`` is known to do."""
        bisect_left(range(low, high), x=True, key=lambda n: self.keeps(depths(n)))

    def grow(self, least: int) -> None:
        """Deepen the streams that are full, until the interval is the least or gains nothing."""
        trace = self.run(self.best)
        self.interval = trace.interval
        while self.interval > least and self.budget > 0:
            full = {s for s, flow in trace.flows.items() if flow.last_full}
            depths = {s: 2 * n if s in full else n for s, n in self.best.items()}
            trace = self.run(depths)
            if trace.interval >= self.interval:
                return
            self.interval, self.best = trace.interval, depths


def shrunk(design: StageDesign, budget: int = BUDGET) -> StageDesign:
    """The design with the least FIFO depths that keep its interval, and simulated cycles.

    Where the interval is above the busiest engine's, full streams are deepened first. Then all
    streams deeper than `FREE_DEPTH` shrink by one common factor, then each alone, the one with
    most bits first, until none can be shallower or the budget is spent.

    Args:
        design: A stage with its FIFOs sized.
        budget: Handshakes to simulate at most.

    Raises:
        BackendError: It deadlocks.
    """
    processes, depths, initial = network_of(design)
    trials = _Trials(processes, initial, depths, 0, budget)
    trials.grow(busiest(design)[0])
    full = trials.best

    def scaled(percent: int) -> dict[str, int]:
        return {s: max(n * percent // 100, min(n, FREE_DEPTH)) for s, n in full.items()}

    trials.least(0, 100, scaled)
    bits = {n: s.token_bits for n, s in design.streams.items()}
    for name in sorted(full, key=lambda n: -trials.best[n] * bits[n]):
        if trials.best[name] > FREE_DEPTH:
            others = dict(trials.best)
            trials.least(FREE_DEPTH, others[name], partial(_with_depth, others, name))
    streams = {n: dataclasses.replace(s, depth=trials.best[n]) for n, s in design.streams.items()}
    return simulated(dataclasses.replace(design, streams=streams))


def _with_depth(depths: Mapping[str, int], stream: str, depth: int) -> dict[str, int]:
    return {**depths, stream: depth}
