"""Schedules without a flush go on from round to round: rounds of 8 are one of all they have."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipec.compiler.endless import endless
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.errors import PipecError
from pipec.pipeline.pipeline import Pipeline
from pipec.plan.model import Plan
from pipec.report.plan_data import plan_data
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.executor import Settings
from pipec.runtime.rules import Correction, delays
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.shares import Shares
from pipec.runtime.train import train
from pipec.schedule.endless import check_round, updates_per_round
from pipec.schedule.schedule import Schedule
from pipec.schedule.versions import VersionRule
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, seeded
from tests.pipeline.test_pipeline import LOSS, Batch, Tagger, buckets, parts_of, plan_of, sgd
from tests.pipeline.test_pipeline import batches as ragged
from tests.runtime.pipelines import batches, scheduled, staged
from tests.runtime.test_offload import hosted
from tests.sampling import ALL, each, without

ROUNDS = 10 if ALL else 4
RUNS: dict[str, tuple[str, int, int, dict[str, object]]] = {
    "pipedream": ("pipedream", 4, 8, {}),
    "pipedream, fewer microbatches than stages": ("pipedream", 4, 2, {}),
    "pipedream, vertical": ("pipedream", 4, 8, {"sync": "vertical"}),
    "pipedream, replicas": ("pipedream", 2, 6, {"replicas": [3, 1]}),
    "2bw": ("pipedream-2bw", 4, 8, {}),
    "pipemare": ("pipemare", 4, 8, {"update_every": 4}),
    "pipemare, concurrent": ("pipemare", 4, 8, {"slots": "concurrent"}),
    "pipefb": ("pipefb", 4, 8, {}),
    "pipefb, direct": ("pipefb", 4, 3, {"saved": "direct"}),
}
SETTINGS = Settings(
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=200),
)
CORRECTED = replace(SETTINGS, correction=Correction(30, 0.1))


def made(run: str, model: str) -> tuple[Case, Plan, Settings]:
    """A plan whose schedule is drained after a round."""
    name, stages, microbatches, options = RUNS[run]
    case = CASES[model]
    plan = staged(case, seeded(case), stages)
    plan = plan.replace(schedule=scheduled(plan, name, microbatches, **options))
    return case, plan, CORRECTED if name == "pipemare" else SETTINGS


def pipeline(
    case: Case, plan: Plan, settings: Settings, order: Schedule | None = None
) -> LocalPipeline:
    return LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)


def test_every_rounds_window_is_the_one_that_stands_for_it() -> None:
    _, plan, _ = made("pipemare, concurrent", "long skip")
    window = endless(plan)
    own = plan.schedule
    assert own is not None
    assert window.first > 0
    assert sum(1 for a in window if a.kind.name == "F") == 4 * 8
    assert updates_per_round(window).tolist() == [8, 8, 8, 8]
    assert [delays(window, s) for s in range(4)] == [(7, 0), (5, 0), (3, 0), (1, 0)]
    assert endless(plan.replace(schedule=scheduled(plan, "1f1b", 4))).first == 0


@pytest.mark.parametrize(("run", "model"), each(RUNS, ["long skip", "dropout"]))
def test_rounds_are_one_of_as_many_times_the_microbatches(run: str, model: str) -> None:
    case, plan, settings = made(run, model)
    name, _, microbatches, options = RUNS[run]
    long = pipeline(case, plan, settings, scheduled(plan, name, ROUNDS * microbatches, **options))
    rounds = pipeline(case, plan, settings, endless(plan))
    drained = pipeline(case, plan, settings)
    losses = long.run(1)
    assert rounds.run(ROUNDS) == losses
    assert worst(rounds.state_dict(), long.state_dict()) == 0
    assert drained.run(ROUNDS) != losses
    assert worst(drained.state_dict(), long.state_dict()) > 1e-3


def test_what_waits_in_host_memory_stays_there_between_rounds() -> None:
    case, plan, settings = made("pipedream", "cnn")
    plan = hosted(plan, 2, 2)
    long = pipeline(case, plan, settings, scheduled(plan, "pipedream", 40))
    rounds = pipeline(
        case, plan, settings, endless(plan.replace(schedule=scheduled(plan, "pipedream", 4)))
    )
    assert rounds.run(10) == long.run(1)
    assert worst(rounds.state_dict(), long.state_dict()) == 0


def test_a_drained_pipeline_begins_anew() -> None:
    case, plan, settings = made("pipedream", "dropout")
    rounds, once = (
        pipeline(case, plan, settings, endless(plan)),
        pipeline(case, plan, settings),
    )
    losses = []
    for count in (2, 1, 3):
        for _ in range(count):
            found = rounds.round().losses
            losses += [float(found[m]) for m in range(8)]
            assert not rounds.executors[0].rounds.empty
        rounds.drain()
        assert all(e.rounds.empty and not e.save_progress()["saved"] for e in rounds.executors)
    want = []
    for count in (2, 1, 3):
        once.load(scheduled(plan, "pipedream", 8 * count))
        want += once.run(1)
    assert losses == want
    assert worst(rounds.state_dict(), once.state_dict()) == 0


@pytest.mark.parametrize(
    ("run", "model"),
    each(["pipedream", "pipedream, replicas", "2bw", "pipemare", "pipefb"], ["cnn", "dropout"]),
)
def test_a_checkpoint_holds_what_is_under_way(run: str, model: str, tmp_path: Path) -> None:
    case, plan, settings = made(run, model)
    whole, first, second = (pipeline(case, plan, settings, endless(plan)) for _ in range(3))
    losses = train(whole, 6)
    train(first, 3, checkpoints=Checkpoints(tmp_path, first.executors), every=2)
    checkpoints = Checkpoints(tmp_path, second.executors)
    assert train(second, 6, checkpoints=checkpoints) == losses[3:]
    assert worst(second.state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize("other", ["drained", "stages"])
def test_what_is_under_way_goes_on_in_its_own_stages_alone(other: str, tmp_path: Path) -> None:
    case, plan, settings = made("pipedream", "dropout")
    first = pipeline(case, plan, settings, endless(plan))
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    if other == "stages":
        plan = staged(case, seeded(case), 2)
        plan = plan.replace(schedule=scheduled(plan, "pipedream", 8))
    second = pipeline(case, plan, settings, plan.schedule if other == "drained" else endless(plan))
    with pytest.raises(PipecError, match=r"under way in other stages(.|\n)*drain"):
        Checkpoints(tmp_path, second.executors).resume()


@pytest.mark.parametrize("drop", ["saved", "values", "versions", "sums", "rounds"])
def test_nothing_under_way_can_be_left_out(drop: str, tmp_path: Path) -> None:
    """Each part of what is kept is needed: without it the run ends otherwise, or not at all."""
    case, plan, settings = made("2bw", "dropout")
    plan = plan.replace(schedule=scheduled(plan, "pipedream-2bw", 4, update_every=4))
    whole, second = (pipeline(case, plan, settings, endless(plan)) for _ in range(2))
    losses = whole.run(4)
    first = pipeline(case, plan, settings, endless(plan))
    for _ in range(2):
        first.round()
    for e in first.executors:
        if drop == "saved":
            for _, _, tensors in e.save_progress()["saved"]:
                tensors.update({n: t * 2 for n, t in tensors.items()})
        elif drop == "values":
            held = e.moves.state()
            values = [[c, m, t * 2] for c, m, t in held["values"]]
            e.moves.load_state({**held, "values": values})
        elif drop == "rounds":
            e.rounds.shares = {n: Shares([1, 2, 3, 4]) for n in e.rounds.shares}
        else:
            for w in e.weights.values():
                versions, sums = w.state()
                if drop == "versions":
                    versions = [[v, k, {n: t + 1 for n, t in ts.items()}] for v, k, ts in versions]
                else:
                    sums = [[u, {n: g * 2 for n, g in gs.items()}, own] for u, gs, own in sums]
                w.load_state(versions, sums)
    checkpoints = Checkpoints(tmp_path, first.executors)
    checkpoints.save()
    checkpoints.wait()
    Checkpoints(tmp_path, second.executors).resume()
    assert (second.run(2) != losses[8:]) or worst(second.state_dict(), whole.state_dict()) > 0


def test_a_round_that_is_no_whole_number_of_updates_is_refused() -> None:
    _, plan, _ = made("2bw", "long skip")
    plan = plan.replace(schedule=scheduled(plan, "pipedream-2bw", 6))
    with pytest.raises(
        PipecError, match=r"whole number of updates(.|\n)*multiple of 4(.|\n)*drain"
    ):
        endless(plan)
    plan = plan_of(Tagger(), "pipedream")
    order = scheduled(plan, "pipedream", 3, update_every=2)
    data = plan_data(
        run_passes(parse_pipeline("simulate"), plan.replace(schedule=order, timeline=None))
    )
    assert data["schedule"]["round_seconds"] is None
    never = order.replace(rule=VersionRule("stash"))  # one update, at the end of what never ends
    with pytest.raises(PipecError, match="whole number of updates"):
        check_round(never)


def test_a_schedule_that_its_generator_does_not_make_is_refused() -> None:
    _, plan, _ = made("pipedream", "long skip")
    assert plan.schedule is not None
    edited = plan.schedule.replace(version=plan.schedule.version * 0)
    with pytest.raises(PipecError, match=r"not what its generator makes(.|\n)*--drain"):
        endless(plan.replace(schedule=edited))


def plain_pipedream(
    model: nn.Module, early: set[str], steps: list[Batch]
) -> tuple[list[float], dict[str, Tensor]]:
    """PipeDream's equation on two stages, in one process: the first is one update behind."""
    history = [{n: p.detach().clone() for n, p in model.named_parameters()}]
    speed = {n: torch.zeros_like(p) for n, p in history[0].items()}
    losses = []
    for batch in steps:
        total = count = 0.0
        parts = parts_of(batch)
        for part in [*parts, *[None] * (4 - len(parts))]:
            history.append(dict(history[-1]))
            valid = int((part["target"] != -100).sum()) if part else 0
            if part is None or not valid:
                continue
            used = history[max(0, len(history) - 3)], history[-2]
            params = {n: used[n not in early][n].clone().requires_grad_() for n in speed}
            loss = LOSS(torch.func.functional_call(model, params, part["tokens"]), part["target"])
            total, count = total + loss.item() * valid, count + valid
            for n, g in zip(params, torch.autograd.grad(loss, [*params.values()]), strict=True):
                speed[n] = 0.9 * speed[n] + g
                history[-1][n] = history[-2][n] - 0.1 * speed[n]
        losses.append(total / count)
    return losses, history[-1]


@pytest.mark.parametrize("stop", without([None, 1, 2], [None]))
def test_ragged_steps_are_pipedreams_equation(stop: int | None, tmp_path: Path) -> None:
    """Also saved after a full step, what is under way with it, or after one with another shape."""
    weights: dict[str, Tensor] | None = None
    model, losses = Tagger(), list[float]()
    steps: list[Batch] = [*ragged(), buckets(), ragged()[0]]
    plan = plan_of(model, "pipedream")
    assert plan.stages[0].training is not None
    want, end = plain_pipedream(model, set(plan.stages[0].training.trained), steps)
    for part in (steps[:stop], steps[stop:] if stop else []):
        with Pipeline(plan, optimizer=sgd, model=model, loss=LOSS) as pipeline:
            assert pipeline.resume(tmp_path) == len(losses)
            for batch in part:
                losses.append(pipeline.step(batch).loss)
                pipeline.evaluate([batch])  # disturbs nothing that is under way
            weights = pipeline.state_dict()
            if len(losses) < len(steps):
                pipeline.save(tmp_path)
                continue
            assert worst(weights or {}, end) > 1e-3
            pipeline.drain()
            weights = pipeline.state_dict()
            break
    assert weights is not None
    if stop == 2:  # drained before it was saved, since its last microbatch has a shape of its own
        want[2:], weights = losses[2:], end
    assert losses == pytest.approx(want, rel=1e-5)
    assert worst(weights, end) < 1e-5
