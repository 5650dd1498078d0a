"""Whole plans against brute force: every fate of every saved value, each timed as a schedule."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import host_channels
from pipec.compiler.driver import make_plan
from pipec.compiler.facts import plan_facts
from pipec.compiler.fit import Fates
from pipec.compiler.pass_manager import parse_pipeline
from pipec.compiler.reside import applied, best, planned
from pipec.compiler.residency import saved_in_order, stage_work
from pipec.compiler.timeline import plan_timeline, timeline_of
from pipec.compiler.working import values_of
from pipec.plan.facts import StageFacts
from pipec.plan.model import Plan
from pipec.schedule.channels import Channel
from pipec.schedule.in_flight import in_flight
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.simulate.timeline import Timeline
from tests.trained import trained_mlp

POINT = 0.01
MICROBATCHES = 4


def plan_of(layers: int, stages: int, faster: float) -> Plan:
    """Linear layers and ReLUs on V100s with a faster way to host memory."""
    cluster = parse_cluster(f"{stages}xv100")
    devices = [replace(d, host_bandwidth=faster * d.host_bandwidth) for d in cluster.devices]
    passes = (
        f"simplify,annotate-cost,partition{{stages={stages}}},insert-comm,differentiate,time-stages"
    )
    graph = trained_mlp(layers, width=512, batch=4096)
    return make_plan(graph, replace(cluster, devices=tuple(devices)), passes=parse_pipeline(passes))


@dataclass(frozen=True)
class Part:
    """What one stage brings into a plan with some fates of its values."""

    fates: Fates
    facts: StageFacts
    slots: tuple[Channel, ...]
    saved_too: tuple[str, ...]


def fates(plan: Plan, schedule: Schedule, stage: int, depths: tuple[int, ...]) -> Iterator[Fates]:
    """Every value kept, computed again or, all in one slot of some depth, in host memory."""
    training = plan.stages[stage].training
    assert training is not None
    names = saved_in_order(training)
    _, again = values_of(stage_work(plan)[stage], recompute=True)
    moves = in_flight(schedule)[stage].most > 1  # else no copy lowers the peak
    kinds = ["k" + "r" * bool(np.isfinite(a)) + "o" * moves for a in again]
    for each in product(*kinds):
        out = tuple(n for n, kind in zip(names, each, strict=True) if kind == "o")
        recompute = frozenset(n for n, kind in zip(names, each, strict=True) if kind == "r")
        for depth in depths if out else depths[:1]:
            yield Fates(recompute, ((depth, out),) if out else ())


def parts(plan: Plan, schedule: Schedule, stage: int, depths: tuple[int, ...]) -> list[Part]:
    """Of every fate of one stage's values, with everything kept on the others."""
    apply, found = applied(plan, schedule), []
    for mine in fates(plan, schedule, stage, depths):
        chosen = [Fates(frozenset(), ())] * len(plan.stages)
        chosen[stage] = mine
        made, _ = apply(chosen)
        facts = plan_facts(made)
        sent = {c.name for c in schedule.channels if c.src == stage}
        too = tuple(n for n in facts.saved_too if n in sent)
        found.append(Part(mine, facts.stages[stage], tuple(host_channels(made)), too))
    return found


def together(plan: Plan, schedule: Schedule, chosen: tuple[Part, ...]) -> Timeline:
    """The timeline of a plan of these parts."""
    slots = [c for part in chosen for c in part.slots]
    too = tuple(name for part in chosen for name in part.saved_too)
    facts = replace(plan_facts(plan), stages=tuple(p.facts for p in chosen), saved_too=too)
    return timeline_of(facts, insert_offload(schedule, slots) if slots else schedule)


def test_within_a_point_of_brute_force() -> None:
    """Three stages; where brute force finds nothing more slots of unlike depths may still fit."""
    plan = plan_of(4, 3, 4)
    schedule = planned(plan, "1f1b", MICROBATCHES)
    every = [parts(plan, schedule, s, (1,)) for s in range(3)]
    played = [(each, together(plan, schedule, each)) for each in product(*every)]
    seconds = np.array([t.seconds for _, t in played])
    peaks = np.array([max(t.peak_bytes) for _, t in played])
    plain, apply = plan_timeline(plan, schedule), applied(plan, schedule)
    for share in (0.9, 0.8):
        limit = share * max(plain.peak_bytes)
        fits = np.where(peaks <= limit, seconds, np.inf)
        optimum = int(fits.argmin())
        found = best(plan, schedule, limit, recompute=True, host=True).timeline
        assert max(found.peak_bytes) <= limit
        assert found.seconds <= fits[optimum] + POINT * plain.seconds
        # of brute force too, as the plan that it stands for:
        real = plan_timeline(*apply([part.fates for part in played[optimum][0]]))
        assert real.seconds == pytest.approx(fits[optimum])
        assert max(real.peak_bytes) == pytest.approx(peaks[optimum])


def test_a_stage_that_sees_no_gain_computes_every_second_value_again() -> None:
    """What one stage holds at the end of a forward is the peak; in its backward it holds no less.

    Its own problem, in which what is computed again counts beside what is kept, knows of no gain.
    """
    plan = plan_of(6, 2, 8)
    schedule = planned(plan, "1f1b", MICROBATCHES)
    plain = plan_timeline(plan, schedule)
    limit = 0.8 * max(plain.peak_bytes)
    leaves = Fates(frozenset(), ((0, ("relu", "relu_1", "relu_2")),))
    known = applied(plan, schedule)([leaves, Fates(frozenset({"relu", "relu_3"}), ())])
    fits = plan_timeline(*known)
    assert max(fits.peak_bytes) <= limit < plain.peak_bytes[1]
    found = best(plan, schedule, limit, recompute=True, host=True).timeline
    assert max(found.peak_bytes) <= limit
    assert found.seconds <= fits.seconds + POINT * plain.seconds
