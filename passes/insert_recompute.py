"""Pass ``insert-recompute``: B computes again what does not fit, chosen by an optimiser."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipec.compiler.pass_base import Pass
from pipec.compiler.reside import find_schedule, fit_memory
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class InsertRecompute(Pass):
    """Lets B recompute saved values where a device's memory is too small, at the least added time.

    1. Each stage's saved values, their bytes and the seconds to compute them again make a
       residency problem; a program over whole values bounds the added time from below.
    2. The recomputed nodes stand in B, each right before its first reader.
    3. What was received and what draws random numbers is never recomputed.
    4. Where forward and backward run on two devices (``generator=pipefb``) a value that is computed
       again does not cross either; weights are versions, so that it comes out the same.

    Attributes:
        memory_limit: Bytes per device; its cluster's figure if not given.
        host: Whether values may also wait in host memory (see ``insert-offload``).
        generator: The schedule that is planned for, where the plan has none yet.
        microbatches: Its microbatches.
        values: Instead of all that: modules or values, such as ``layers.*.mlp``.

    Raises:
        PassError: A limit cannot be met, or a pattern names nothing.
    """

    name: ClassVar[str] = "insert-recompute"
    requires: ClassVar[frozenset[Fact]] = frozenset({Fact.SAVED, Fact.TIMING})
    memory_limit: float | None = None
    host: bool = False
    generator: str = "1f1b"
    microbatches: int = 8
    values: Sequence[str] = ()

    def run(self, plan: Plan) -> Plan:
        schedule = find_schedule(plan, self.generator, self.microbatches)
        return fit_memory(
            plan, schedule, self.memory_limit, recompute=True, host=self.host, values=self.values
        )
