"""The facts of a plan's stages, read off its graphs, its costs and its backend's timing.

1. A stage that was measured as a whole takes what was measured. Else F takes the backend's
   interval, B what its timing says, I and W half of B, and what each computes again; a step and
   adding up gradients what `pipec.cost.stage` says of a device that runs node after node, and
   what the backend says of one that streams.
2. Weights stay. In inference the values of a forward are there while it runs, and the model's
   outputs from then on. In training, once stages are differentiated, gradients, the optimizer's
   state, what every microbatch in flight saves and what a backward computes again are there.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pipec.autodiff.model import Training
from pipec.compiler.residency import list_work, working_bytes
from pipec.compiler.stage_timing import device_of, find_measured
from pipec.cost.stage import OPTIMIZER_COPIES, StageCost, update_cost
from pipec.errors import PlanError
from pipec.graph.ir import InputKind, nbytes, tensor_nbytes
from pipec.plan.facts import Facts, SharedSum, StageFacts
from pipec.plan.model import HostSlot, Plan, Stage


def plan_facts(plan: Plan) -> Facts:
    """What is known of a plan's stages.

    Raises:
        PlanError: The stages are not timed.
    """
    if len(plan.timing) != len(plan.stages):
        raise PlanError("the stages are not timed", want="the pass time-stages")
    trains = plan.trains and plan.differentiated
    saved = [frozenset(v.name for v in s.training.saved) if s.training else frozenset()
             for s in plan.stages]  # fmt: skip
    return Facts(
        plan.cluster,
        tuple(_training(plan, s) if trains else _forward(plan, s) for s in plan.stages),
        trains=trains,
        shared=tuple(find_shared(plan)) if trains else (),
        messages=plan.costs.messages if plan.costs else {},
        moved_for_w={slot.name: _count_moved(plan, slot) for slot in plan.slots} if trains else {},
        state_waits=plan.state_waits,
        saved_too=list_saved_too(plan, saved),
    )


def list_saved_too(plan: Plan, saved: Sequence[frozenset[str]]) -> tuple[str, ...]:
    """Channels of a differentiated plan whose value lies in memory that its sender saves anyway.

    Args:
        plan: The plan.
        saved: Names of what each stage's F keeps on the device.
    """
    held = [s.training.holders if s.training else {} for s in plan.stages]
    return tuple(c.name for c in plan.channels
                 if not saved[c.src].isdisjoint(held[c.src].get(c.value, ())))  # fmt: skip


def count_trained(stage: Stage) -> int:
    """Bytes of all parameters of a differentiated stage that get a gradient."""
    return sum(_list_trained(stage))


def _list_trained(stage: Stage) -> list[int]:
    nodes, trained = stage.graph.nodes, set(stage.phases.trained)
    parameters = stage.graph.inputs_of(InputKind.PARAMETER)
    return [nbytes(nodes[i.node]) for i in parameters if i.name in trained]


def find_shared(plan: Plan) -> Iterator[SharedSum]:
    """What stages of a differentiated plan add up before they step."""
    sizes = {i.name: nbytes(s.graph.nodes[i.node]) for s in plan.stages for i in s.graph.inputs}
    for name, readers in plan.find_tied(trained=True).items():
        yield SharedSum(sizes[name], readers)
    trained = {name for s in plan.stages if s.training for name in s.training.trained}
    yield from SharedSum.of_norm(len(trained), len(plan.stages), plan.cluster)


def list_sums(plan: Plan) -> set[int]:
    """Bytes of everything that devices of a plan add up."""
    if not plan.differentiated or plan.placement is None:
        return set()
    pairs = zip(plan.stages, plan.placement.backward, strict=False)
    replicated = {count_trained(stage) for stage, devices in pairs if len(devices) > 1}
    return replicated | {int(w.nbytes) for w in find_shared(plan)}


def _forward(plan: Plan, stage: Stage) -> StageFacts:
    timing, whole = plan.timing[stage.index], find_measured(plan, stage)
    cost, weights = whole or StageCost(timing.compute_seconds), float(stage.graph.weight_bytes)
    if plan.trains:  # before it is differentiated: weights, and nothing that is guessed
        return StageFacts(_kind(plan, stage), replace(cost, workspace={}), weights)
    room = whole.workspace.get("F", 0) if whole else timing.workspace_bytes
    streams = not timing.workspace_bytes  # weights are where the backend puts them
    return StageFacts(
        _kind(plan, stage),
        replace(cost, workspace={"F": room}),
        weights=float(timing.memory_bytes) if streams else weights,
        outputs=float(timing.output_bytes),
        sends=_list_sends(plan, stage),
    )


def _training(plan: Plan, stage: Stage) -> StageFacts:
    timing, trained = plan.timing[stage.index], count_trained(stage)
    hosted = {v for slot in plan.slots if slot.stage == stage.index for v in slot.values}
    return StageFacts(
        _kind(plan, stage),
        find_measured(plan, stage) or _estimate(plan, stage, trained),
        weights=float(stage.graph.weight_bytes),
        gradients=float(trained),
        parameters=tuple(map(float, _list_trained(stage))),
        saved=float(stage.phases.saved_bytes),
        saved_for_w=_count_left(stage, hosted),
        together=timing.together_seconds,
        sends=_list_sends(plan, stage),
    )


def _list_sends(plan: Plan, stage: Stage) -> dict[str, float]:
    """What the backend says of the stage's messages, by channel: its values, and gradients back."""
    known, k = dict(plan.timing[stage.index].link_seconds), stage.index
    ways = [(c.name, c.value) for c in plan.channels if c.src == k]
    back = [(f"{c.name}.grad", f"{c.value}.grad") for c in plan.channels if c.dst == k]
    return {name: known[value] for name, value in (*ways, *back) if value in known}


def _estimate(plan: Plan, stage: Stage, trained: int) -> StageCost:
    timing, training = plan.timing[stage.index], stage.phases
    update = update_cost(device_of(plan, stage, backward=True), trained)
    half, step = timing.backward_seconds / 2, timing.step_seconds + update.step
    work, again = list_work(plan)[stage.index], working_bytes(training)
    return StageCost(
        timing.compute_seconds,
        B=2 * half + work.again_seconds(training.B),
        I=half + work.again_seconds(training.I),
        W=half + work.again_seconds(training.W),
        accumulate=update.accumulate,
        step=step,
        step_copied=step,
        optimizer_bytes=OPTIMIZER_COPIES * trained,
        workspace=again | {f"first {k}": again[k] for k in ("B", "W")},
    )


def _kind(plan: Plan, stage: Stage) -> str:
    return device_of(plan, stage).kind


def list_w_reads(training: Training) -> dict[str, int]:
    """Bytes of every saved value that W reads, by its name in F."""
    return {n: tensor_nbytes(t) for n, t in training.W.tensors_of(InputKind.SAVED).items()}


def _count_moved(plan: Plan, slot: HostSlot) -> float:
    """Bytes of a slot that W reads too."""
    read = list_w_reads(plan.stages[slot.stage].phases)
    return float(sum(read.get(v, 0) for v in slot.values))


def _count_left(stage: Stage, hosted: Collection[str]) -> float:
    """What is left for W after I, of what stays on the device."""
    read = list_w_reads(stage.phases).items()
    return float(sum(size for name, size in read if name not in hosted))
