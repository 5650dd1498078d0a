"""Whole plans against brute force: every fate of every saved value, each timed as a schedule."""

import itertools
import operator
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.complete import host_channels
from pipec.compiler.driver import make_plan
from pipec.compiler.facts import plan_facts
from pipec.compiler.fates import KEPT, FatePredictor, Fates
from pipec.compiler.fit import Fit, Residency
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.reside import best, find_schedule, make_applier
from pipec.compiler.residency import StageWork, list_saved, list_work
from pipec.compiler.timeline import plan_timeline, timeline_of
from pipec.compiler.working import WorkingBytes, values_of
from pipec.cost.stage import StageCost
from pipec.errors import PassError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source
from pipec.plan.facts import StageFacts
from pipec.plan.model import Plan
from pipec.residency.choose import Choice, choose
from pipec.residency.problem import KEEP, RECOMPUTE, Problem
from pipec.schedule.action import ActionKind
from pipec.schedule.channels import Channel
from pipec.schedule.in_flight import in_flight
from pipec.schedule.offload import insert_offload
from pipec.schedule.schedule import Schedule
from pipec.simulate.engine import Prepared
from pipec.simulate.memory import Memory
from pipec.simulate.timeline import Timeline
from tests.residency import trials
from tests.trained import trained_mlp

POINT = 0.01
MICROBATCHES = 4
PLANS = 10_000
"""Plans of brute force up to which slots of all depths are among them."""
SEEDS = [1, 9, 10, 11, 12]
"""Of random plans; others: up to 40 of them were tried, at six limits each."""


def plan_of(layers: int, stages: int, faster: float) -> Plan:
    """Linear layers and ReLUs."""
    return cut(trained_mlp(layers, width=512, batch=4096), stages, faster)


def cut(graph: Graph, stages: int, faster: float, alone: str = "") -> Plan:
    """On V100s with a faster way to host memory; all on one, for the schedule ``alone``."""
    cluster = parse_cluster(f"{1 if alone else stages}xv100")
    devices = [replace(d, host_bandwidth=faster * d.host_bandwidth) for d in cluster.devices]
    told = f"stages={stages}" + f" schedule={alone}" * bool(alone)
    passes = f"simplify,annotate-cost,partition{{{told}}},insert-comm,differentiate,time-stages"
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
    names = list_saved(training)
    _, again = values_of(list_work(plan)[stage])
    alone = schedule.devices == schedule.stages
    moves = in_flight(schedule)[stage].most > 1 or not alone  # else no copy lowers the peak
    kinds = ["k" + "r" * bool(np.isfinite(a)) + "o" * moves for a in again]
    for each in product(*kinds):
        out = tuple(n for n, kind in zip(names, each, strict=True) if kind == "o")
        recompute = frozenset(n for n, kind in zip(names, each, strict=True) if kind == "r")
        for depth in depths if out else depths[:1]:
            yield Fates(recompute, ((depth, out),) if out else ())


def parts(plan: Plan, schedule: Schedule, stage: int, depths: tuple[int, ...]) -> list[Part]:
    """Of every fate of one stage's values, with everything kept on the others."""
    apply, found = make_applier(plan, schedule), []
    for mine in fates(plan, schedule, stage, depths):
        chosen = [Fates(frozenset(), ())] * len(plan.stages)
        chosen[stage] = mine
        made, _ = apply(chosen)
        facts = plan_facts(made)
        sent = {c.name for c in schedule.channels if c.src == stage}
        too = tuple(n for n in facts.saved_too if n in sent)
        found.append(Part(mine, facts.stages[stage], tuple(host_channels(made.slots)), too))
    return found


class Combined:
    """The timelines of a plan of parts; where copies stand depends on slots but for their bytes."""

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self.facts, self.schedule = plan_facts(plan), schedule
        self._known: dict[tuple[Channel, ...], Prepared] = {}

    def __call__(self, chosen: tuple[Part, ...]) -> Timeline:
        slots = [c for part in chosen for c in part.slots]
        too = tuple(name for part in chosen for name in part.saved_too)
        facts = replace(self.facts, stages=tuple(p.facts for p in chosen), saved_too=too)
        key = tuple(replace(c, nbytes=1) for c in slots)
        if key not in self._known:
            order = insert_offload(self.schedule, slots) if slots else self.schedule
            self._known[key] = Prepared.of(order)
        sizes = {c.name: c for c in slots}
        like = self._known[key]
        return timeline_of(
            facts, like.resize([sizes.get(c.name, c) for c in like.schedule.channels])
        )


def stacked(stack: list[nn.Module], batch: int, first: int, last: int) -> Graph:
    """Layers one behind the other, from a width to a width."""
    loss = Loss(nn.functional.mse_loss, torch.zeros(batch, last))
    given = (torch.zeros(batch, first),)
    return trace(nn.Sequential(*stack), given, loss=loss, source=Source("memory", "mlp"))


def random_plan(seed: int, alone: str = "") -> tuple[Plan, Schedule]:
    """One to three stages of up to five values of unlike sizes, a slow or a fast link.

    Of a schedule that runs all on one device, two stages.
    """
    draw = random.Random(seed)
    stages = 2 if alone else draw.randint(1, 3)
    layers = draw.randint(stages, min(2 * stages, 5))
    widths = [draw.choice((256, 512, 768, 1024)) for _ in range(layers + 1)]
    batch, faster = draw.choice((2048, 4096, 8192)), draw.choice((0.25, 0.5, 1, 2, 4, 8, 32))
    stack: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        stack += [nn.Linear(before, after), draw.choice((nn.ReLU, nn.GELU, nn.Tanh))()]
    plan = cut(stacked(stack, batch, widths[0], widths[-1]), stages, faster, alone)
    order = alone or draw.choice(("1f1b", "gpipe"))
    return plan, find_schedule(plan, order, draw.choice((2, 3, 4, 6)))


def optima(plan: Plan, schedule: Schedule, limits: list[float]) -> list[tuple[float, list[Fates]]]:
    """The fastest of all plans within each limit: seconds, and what becomes of its values.

    No plan is faster than with the same fates in one stage and everything kept in the others.
    """
    every = [parts(plan, schedule, s, (0, 1, 2)) for s in range(len(plan.stages))]
    if prod(map(len, every)) > PLANS:
        every = [parts(plan, schedule, s, (1,)) for s in range(len(plan.stages))]
    kept, together = [those[0] for those in every], Combined(plan, schedule)
    least = [
        [together((*kept[:s], p, *kept[s + 1 :])).seconds for p in those]
        for s, those in enumerate(every)
    ]
    order = sorted(
        (max(map(operator.getitem, least, at)), at)
        for at in product(*(range(len(e)) for e in every))
    )
    found: list[tuple[float, list[Fates]]] = [(np.inf, [])] * len(limits)
    for seconds, at in order:
        if all(best_ <= seconds for best_, _ in found):
            break
        chosen = tuple(map(operator.getitem, every, at))
        timeline = together(chosen)
        for k, limit in enumerate(limits):
            if max(timeline.peak_bytes) <= limit and timeline.seconds < found[k][0]:
                found[k] = timeline.seconds, [p.fates for p in chosen]
    return found


@pytest.mark.parametrize(
    ("setting", "shares"),
    [
        ((4, 3, 4), (0.9, 0.8)),
        ((6, 2, 1), (0.9,)),
        ((2, "1f1b{parts=2}"), (0.9,)),  # what a stage saves leaves beside the other one
        *((seed, (0.95, 0.8, 0.6)) for seed in SEEDS),
    ],
)
def test_within_a_point_of_brute_force(
    setting: int | tuple[int, str] | tuple[int, int, float], shares: tuple[float, ...]
) -> None:
    """Where brute force finds nothing more slots of unlike depths may still fit."""
    if isinstance(setting, int):
        plan, schedule = random_plan(setting)
    elif len(setting) == 2:
        plan, schedule = random_plan(*setting)
    else:
        plan = plan_of(*setting)
        schedule = find_schedule(plan, "1f1b", MICROBATCHES)
    plain, apply = plan_timeline(plan, schedule), make_applier(plan, schedule)
    limits = [share * max(plain.peak_bytes) for share in shares]
    fitted = 0
    for limit, (seconds, fates) in zip(limits, optima(plan, schedule, limits), strict=True):
        try:
            found = best(
                Fit(plan, schedule, limit, make_applier(plan, schedule), recompute=True, host=True)
            ).timeline
        except PassError:
            assert seconds == np.inf
            continue
        assert max(found.peak_bytes) <= limit
        assert found.seconds <= seconds + POINT * plain.seconds
        if fates:  # of brute force too, as the plan that it stands for:
            real = plan_timeline(*apply(fates))
            assert real.seconds == pytest.approx(seconds)
            assert max(real.peak_bytes) <= limit
            fitted += 1
    assert fitted


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.parametrize(("measured", "twice"), [(False, False), (True, False), (False, True)])
def test_what_is_foreseen_of_fates_is_what_their_plan_takes(
    schedule: str, measured: bool, twice: bool
) -> None:
    """Bytes exactly, seconds but for rounding, for any fates; of measured stages too.

    And of stages that compute some values again already.
    """
    plan = trials.planned("attention", schedule)
    if twice:
        draw, made = random.Random(1), make_applier(plan, find_schedule(plan, schedule, 4))
        some = [replace(drawn_fates(work, draw, 0.4), slots=()) for work in list_work(plan)]
        plan = run_passes(parse_pipeline("time-stages"), made(some)[0])
    if measured:
        room = {"F": 5000, "B": 9000, "I": 7000, "W": 6000, "STEP": 100, "first B": 9500}
        cost = StageCost(1e-3, 2e-3, 1e-3, 1.5e-3, 1e-4, 1e-5, 2e-5, 4096, room)
        assert plan.costs
        kinds = {w.device.kind for w in list_work(plan)}
        table = dict.fromkeys((s.cost_key for s in plan.stages), cost)
        plan = plan.replace(costs=replace(plan.costs, stages=dict.fromkeys(kinds, table)))
    order, draw = find_schedule(plan, schedule, 4), random.Random(0)
    foresight, apply = FatePredictor(plan, order), make_applier(plan, order)
    for share in (0.0, 0.3, 0.6, 1.0):
        chosen = [drawn_fates(work, draw, share) for work in list_work(plan)]
        told, real = foresight.timeline(chosen), plan_timeline(*apply(chosen))
        assert told.seconds == pytest.approx(real.seconds, rel=1e-12)
        assert told.peak_bytes == real.peak_bytes
        assert what_counts(told.memory, order) == what_counts(real.memory, order)


@pytest.mark.parametrize("name", ["attention", "dropout", "dropout of dropout"])
def test_what_recomputed_values_take_they_take_beside_others_too(name: str) -> None:
    """A decision's working bytes belong to values without which they would not be."""
    plan, draw = trials.planned(name, "1f1b"), random.Random(0)
    foresight = FatePredictor(plan, find_schedule(plan, "1f1b", 4))
    for rewrites in foresight.rewrites:
        working, again = WorkingBytes(rewrites, 2), values_of(rewrites.work)[1]
        able = np.flatnonzero(np.isfinite(again)).tolist()
        for share in (0.3, 0.5, 0.7) * 4:
            some, more = ([v for v in able if draw.random() < s] for s in (0.5, share))
            found = working(np.where(np.isin(np.arange(len(again)), some), RECOMPUTE, KEEP))
            assert set(found.values) <= set(some)
            for those in (found.values, {*found.values, *more}):
                others = np.where(np.isin(np.arange(len(again)), list(those)), RECOMPUTE, KEEP)
                assert working(others).alive >= found.alive


def what_counts(memory: Memory, order: Schedule) -> Memory:
    """Without what is known of actions that the schedule does not have."""
    backward = {ActionKind.B, ActionKind.I, ActionKind.W}
    no = {k.name for k in backward - {ActionKind(k) for k in order.kind}}
    spaces = {k: v for k, v in memory.workspace.items() if k.removeprefix("first ") not in no}
    memory = replace(memory, workspace=spaces)
    return replace(memory, saved_for_w=None, moved_for_w={}) if "W" in no else memory


def drawn_fates(work: StageWork, draw: random.Random, share: float) -> Fates:
    """Some values computed again, the others in two slots or kept."""
    names, (_, again) = list_saved(work.training), values_of(work)
    able = [n for n, a in zip(names, again, strict=True) if np.isfinite(a)]
    recompute = frozenset(n for n in able if draw.random() < share)
    left = [n for n in names if n not in recompute]
    depths = [draw.choice((0, 2, None)) for _ in left]
    out = [(d, tuple(n for n, e in zip(left, depths, strict=True) if e == d)) for d in (0, 2)]
    return Fates(recompute, tuple(slot for slot in out if slot[1]))


def test_a_stage_that_sees_no_gain_computes_every_second_value_again() -> None:
    """What one stage holds at the end of a forward is the peak; in its backward it holds no less.

    Its own problem, in which what is computed again counts beside what is kept, knows of no gain.
    """
    plan = plan_of(6, 2, 8)
    schedule = find_schedule(plan, "1f1b", MICROBATCHES)
    plain = plan_timeline(plan, schedule)
    limit = 0.8 * max(plain.peak_bytes)
    leaves = Fates(frozenset(), ((0, ("relu", "relu_1", "relu_2")),))
    known = make_applier(plan, schedule)([leaves, Fates(frozenset({"relu", "relu_3"}), ())])
    fits = plan_timeline(*known)
    assert max(fits.peak_bytes) <= limit < plain.peak_bytes[1]
    found = best(
        Fit(plan, schedule, limit, make_applier(plan, schedule), recompute=True, host=True)
    ).timeline
    assert max(found.peak_bytes) <= limit
    assert found.seconds <= fits.seconds + POINT * plain.seconds


def test_the_way_to_a_faster_plan_leads_through_several_that_are_too_full() -> None:
    """Two values change their slots, beside a slow link; either change alone gains nothing."""
    stack = [nn.Linear(256, 1024), nn.LayerNorm(1024), nn.Tanh(), nn.Linear(1024, 1024), nn.GELU(),
             nn.Linear(1024, 512), nn.ReLU()]  # fmt: skip
    plan = cut(stacked(stack, 8192, 256, 512), 2, 0.1)
    schedule = find_schedule(plan, "1f1b", MICROBATCHES)
    plain = plan_timeline(plan, schedule)
    limit = 0.81 * max(plain.peak_bytes)
    leaves = Fates(frozenset({"addmm"}), ((1, ("tanh",)), (2, ("input_1",))))
    fits = plan_timeline(*make_applier(plan, schedule)([leaves, KEPT]))
    assert max(fits.peak_bytes) <= limit
    found = best(
        Fit(plan, schedule, limit, make_applier(plan, schedule), recompute=True, host=True)
    ).timeline
    assert max(found.peak_bytes) <= limit
    assert found.seconds <= fits.seconds + POINT * plain.seconds


def test_a_freedom_knows_how_fast_stages_are_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(6, 2, 8)
    schedule = find_schedule(plan, "1f1b", MICROBATCHES)
    limit = 0.9 * max(plan_timeline(plan, schedule).peak_bytes)
    fit = Fit(plan, schedule, limit, make_applier(plan, schedule), recompute=True, host=True)
    first, given = fit.solve(), list[float]()
    assert first is not None
    fates = [f for f in first.stages if isinstance(f, Residency)]

    def noted(problem: Problem, enough: float) -> Choice:
        given.append(enough)
        return choose(problem, enough)

    monkeypatch.setattr("pipec.compiler.fit.choose", noted)
    fit.with_freedom(recompute=True, host=False).solve()
    assert given[: len(fates)] == [f.choice.seconds for f in fates]


@pytest.mark.parametrize(
    ("layers", "batch", "share", "most"), [(8, 1, 0.8, 0.01), (4, 4, 0.6, 0.065)]
)
def test_stages_that_are_fast_alone_are_weighed_by_the_whole_schedule(
    layers: int, batch: int, share: float, most: float
) -> None:
    """Where the pipeline fills and drains, copies have less to hide behind than a stage counts on.

    The steady optimum of every stage alone adds 4 % to the first plan. In the second, one kind of
    choice for all stages adds 7.8 %.
    """
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, "gelu", batch_first=True)
    stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = nn.Sequential(stack, nn.Linear(1024, 5), nn.Flatten(0, 1))
    x, target = torch.zeros(batch, 512, 1024), torch.zeros(batch * 512, dtype=torch.long)
    loss = Loss(nn.functional.cross_entropy, target)
    passes = "simplify,annotate-cost,partition{stages=4},insert-comm,differentiate,time-stages"
    graph = trace(model, (x,), loss=loss, source=Source("memory", "encoders"))
    plan = make_plan(graph, parse_cluster("4xh100"), passes=parse_pipeline(passes))
    schedule = find_schedule(plan, "1f1b", 8)
    plain = plan_timeline(plan, schedule)
    limit = share * max(plain.peak_bytes)
    fit = Fit(plan, schedule, limit, make_applier(plan, schedule), recompute=True, host=True)
    found = best(fit).timeline
    assert max(found.peak_bytes) <= limit
    assert found.seconds <= (1 + most) * plain.seconds
