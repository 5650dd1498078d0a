"""Pass ``insert-offload``: saved values that do not fit wait in host memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.pass_base import Pass
from pipec.compiler.reside import find_schedule, fit_memory, rest_state
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class InsertOffload(Pass):
    """Sends saved values to host memory where a device's memory is too small for them.

    1. Each stage's saved values, their bytes, how many microbatches are in flight and the device's
       bandwidth to the host make a residency problem; a program over whole values bounds the added
       time from below.
    2. F ends with one ``offload`` node per value that leaves, B and I start with its ``fetch``.
    3. The values of a stage wait in one or more host slots. The schedule gets an OFFLOAD of each
       slot behind every F, and its FETCH as many compute actions before the backward as the slot
       is deep.
    4. Where forward and backward run on two devices (``generator=pipefb``) all that is saved
       leaves; chosen is the part that leaves before the next forward, for want of room.

    Attributes:
        memory_limit: Bytes per device; its cluster's figure if not given.
        recompute: Whether values may also be computed again (see ``insert-recompute``).
        generator: The schedule that is planned for, where the plan has none yet.
        microbatches: Its microbatches.
        values: Instead of all that: modules or values that leave, such as ``layers.*.mlp``.
        optimizer: Whether the optimizer's state waits in host memory too, between steps: copied
            beside forwards and backwards, or by each STEP.

    Raises:
        PassError: A limit cannot be met, a pattern names nothing, or the optimizer's state has no
            way to host memory.
    """

    name: ClassVar[str] = "insert-offload"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.SAVED, Fact.TIMING})
    memory_limit: float | None = None
    recompute: bool = False
    generator: str = "1f1b"
    microbatches: int = 8
    values: Sequence[str] = ()
    optimizer: bool = False

    def run(self, plan: Plan) -> Plan:
        if self.optimizer:
            plan = rest_state(plan, self.memory_limit, self.generator, self.microbatches)
        schedule = find_schedule(plan, self.generator, self.microbatches)
        return fit_memory(
            plan,
            schedule,
            self.memory_limit,
            recompute=self.recompute,
            host=True,
            values=self.values,
        )
