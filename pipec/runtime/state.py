"""What a checkpoint holds of a device: named by parameter, not by stage or rank.

```text
weights/<name>              parameter or buffer, of the first replica
weights#<number>/<name>     the same of a further one, from 1 on
optimizer/<name>/<key>      the optimizer's state of a parameter
velocity/<name>             PipeMare's estimate of a weight's velocity
stage/<k>                   optimizer, learning-rate schedule and counts of a stage, and which
                            weights it trains
run                         round and number of the next microbatch, scale of the loss, last norms
under way/<device>          what an endless schedule has under way between two rounds
```

The last three are plain data with tensors in them: JSON as bytes, with places of the tensors, which
are entries ``<name>/<k>`` of their own.

A name may hold any characters, those of an ONNX file are often paths; a key holds no slash. Named
like this, a checkpoint can be read back onto another number of stages, unless microbatches are
under way: drained, every stage has one version between rounds, without a flush too. Random numbers
need no state: every stream follows from the seed, the microbatch and the place in the model.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from pipec.errors import PlanError
from pipec.runtime.executor import Executor
from pipec.runtime.identity import digest_cut, list_settings
from pipec.runtime.stored import name_weights
from pipec.runtime.weights import StageWeights

Tensors = dict[str, torch.Tensor]
_TENSOR, _MAP = "tensor", "map"


def pack_entries(name: str, data: object) -> Tensors:
    """Entries of mappings, lists, numbers, texts and tensors, which are copied."""
    held: list[torch.Tensor] = []
    text = json.dumps(_plain(data, held))
    plain = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return {name: plain, **{f"{name}/{k}": t for k, t in enumerate(held)}}


def unpack_entries(
    name: str, entries: Mapping[str, torch.Tensor], device: torch.device | str = "cpu"
) -> Any:
    """What `pack_entries` was given; tuples are lists, and tensors are on ``device``.

    Raises:
        PlanError: There is no such entry.
    """
    if name not in entries:
        raise PlanError("the checkpoint is not one of a pipeline", want=name)
    plain = json.loads(bytes(entries[name].tolist()).decode())
    return _whole(plain, name, entries, device)


def _plain(value: Any, held: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        held.append(value.detach().clone())
        return {_TENSOR: len(held) - 1, "stride": held[-1].stride()}
    if isinstance(value, Mapping):
        return {_MAP: [[k, _plain(v, held)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(v, held) for v in value]
    return value


def _whole(
    data: Any, name: str, entries: Mapping[str, torch.Tensor], device: torch.device | str
) -> Any:
    if isinstance(data, list):
        return [_whole(v, name, entries, device) for v in data]
    if not isinstance(data, dict):
        return data
    if _MAP in data:
        return {k: _whole(v, name, entries, device) for k, v in data[_MAP]}
    given = entries[f"{name}/{data[_TENSOR]}"]
    made = torch.empty_strided(given.shape, data["stride"], dtype=given.dtype, device=device)
    return made.copy_(given)


_UNDER_WAY = "under way"
_INNER = "_schedulers"
"""Where torch's schedules of schedules keep the states of these, whose lists follow groups too."""
_OF_ALL = ("_milestones", "_schedule_phases")
"""Lists of torch's schedules that are no lists of a number per group."""
_KEPT = (int, float, bool, str, type(None), tuple, list, torch.Tensor)
"""Types of settings that a checkpoint keeps."""


def state_of(executor: Executor) -> Tensors:
    """The entries of one device, between rounds."""
    scale = [executor.scaling.scale, executor.scaling.good]
    counts = {"round": executor.round, "microbatch": executor.microbatch, "scale": scale,
              "seen": [*executor.spikes.seen], "told": list_settings(executor)}  # fmt: skip
    busy = not executor.rounds.empty
    found = pack_entries("run", {**counts, _UNDER_WAY: busy and digest_cut(executor.program)})
    if busy:
        found |= pack_entries(f"{_UNDER_WAY}/{executor.device}", executor.save_progress())
    for stage, weights in executor.weights.items():
        rule = executor.rules[stage]
        number = _number(executor, stage)
        for name, w in executor.list_changing(stage).items():
            found[f"weights#{number}/{name}" if number else f"weights/{name}"] = w
        found |= {f"velocity/{n}": v for n, v in rule.velocity.items()}
        if weights.optimizer is not None:
            found |= _optimizer_state(weights)
            found |= pack_entries(f"stage/{stage}", _facts_of(weights, rule.updates))
    return found


def first_unsound(executor: Executor, state: Tensors) -> str | None:
    """The first entry that is not finite; what is not trained, such as a mask, may be infinite."""
    trained = {n for w in executor.weights.values() for n in w.trained}
    for name, t in state.items():
        kind, _, weight = name.partition("/")
        may_be_infinite = kind.startswith(("weights", _UNDER_WAY)) and weight not in trained
        if not (~t.isnan() if may_be_infinite else t.isfinite()).all():
            return name
    return None


def is_wanted(executor: Executor, name: str) -> bool:
    """Whether a device needs the entry ``name``."""
    kind, _, weight = name.partition("/")
    if kind in ("run", "stage"):
        return True
    if kind == _UNDER_WAY:
        return weight.split("/")[0] == str(executor.device)
    if kind == "optimizer":
        weight = weight.rpartition("/")[0]
        return any(weight in w.owned for w in executor.weights.values())
    local = kind == "velocity" or kind.startswith("weights")
    return local and any(weight in executor.list_changing(s) for s in executor.weights)


def _number(executor: Executor, stage: int) -> int:
    """Of this device among those that hold a stage, the first replica's being 0."""
    place = executor.program.schedule.placement
    held = (*place.forward[stage], *(place.backward[stage] if place.backward else ()))
    return list(dict.fromkeys(held)).index(executor.device)


def list_changed(executor: Executor, entries: Mapping[str, torch.Tensor]) -> list[str]:
    """Settings that the run that saved the entries had otherwise; those of this run count."""
    before = unpack_entries("run", entries).get("told", {})
    settings = list_settings(executor).items()
    return [f"{n} {v}, not {before[n]}" for n, v in settings if before.get(n, v) != v]


def restore(executor: Executor, entries: Mapping[str, torch.Tensor]) -> list[str]:
    """Put entries back into a device, whatever stages they were saved from.

    Returns:
        Settings of the optimizer that are others than the checkpoint's, which count.

    Raises:
        PlanError: The checkpoint lacks a weight of this device.
    """
    run = unpack_entries("run", entries)
    if run.get(_UNDER_WAY) and run[_UNDER_WAY] != digest_cut(executor.program):
        raise PlanError(
            "the checkpoint holds microbatches that are under way in other stages",
            where=f"before round {run['round']}",
            got=f"{len(executor.program.stages)} stages under {executor.program.schedule.name}",
            want="the plan that it was made with, not drained between rounds",
            hint="resume with that plan, then pipeline.drain() and pipeline.save(...)",
        )
    others = set[str]()
    executor.drop_progress()
    executor.resume(int(run["round"]), int(run["microbatch"]))
    executor.spikes.seen.clear()
    executor.spikes.seen.extend(run.get("seen", ()))
    if executor.scaling.adapts and run["scale"][0] != 1:
        executor.scaling.scale, executor.scaling.good = run["scale"]
    for stage, weights in executor.weights.items():
        rule = executor.rules[stage]
        for name, w in executor.list_changing(stage).items():
            further = f"weights#{_number(executor, stage)}/{name}"
            found = entries.get(further, entries.get(f"weights/{name}"))
            if found is None or found.shape != w.shape:
                raise PlanError("the checkpoint lacks a weight of this plan", got=name)
            w.copy_(found)
        saved = {n: entries.get(f"velocity/{n}") for n in weights.trained}
        held = executor.compute.torch
        rule.velocity = {n: v.to(held, copy=True) for n, v in saved.items() if v is not None}
        if weights.optimizer is not None:
            rule.updates = int(_facts(entries, weights.trained[0])["updates"])
            with weights.resting.on_device() if weights.resting else nullcontext():
                others |= _restore_optimizer(weights, entries)
            if weights.resting is not None:
                weights.resting.rest()
    if run.get(_UNDER_WAY):
        name = f"{_UNDER_WAY}/{executor.device}"
        executor.load_progress(unpack_entries(name, entries, executor.compute.torch))
    return sorted(others)


def load_weights(executors: Sequence[Executor], weights: Mapping[str, torch.Tensor]) -> None:
    """Replace the parameters and buffers of all stages by a model's state dict.

    Args:
        executors: Those of this process.
        weights: By the model's names, aliases of shared ones included or not; tensors of stages
            that are elsewhere are not read.

    Raises:
        PlanError: A name is missing or unknown, or a shape or dtype differs.
    """
    given = name_weights(weights, executors[0].program.plan)
    for executor in executors:
        for stage, held in executor.weights.items():
            for name in executor.read_state(stage):
                held.load(name, given[name])


def _optimizer_state(weights: StageWeights) -> Tensors:
    assert weights.optimizer is not None
    found: Tensors = {}
    for name, parameter in weights.owned.items():
        for key, value in weights.optimizer.state.get(parameter, {}).items():
            if value is not None:
                found[f"optimizer/{name}/{key}"] = torch.as_tensor(value)
    return found


def _restore_optimizer(weights: StageWeights, entries: Mapping[str, torch.Tensor]) -> set[str]:
    """Take over state and settings; the settings that were others here."""
    assert weights.optimizer is not None
    groups = weights.optimizer.param_groups
    counts_here = any(g.get("fused") or g.get("capturable") for g in groups)
    for name, parameter in weights.owned.items():
        prefix = f"optimizer/{name}/"
        keys = {k: k.removeprefix(prefix) for k in entries if k.startswith(prefix)}
        state = {
            key: entries[k].to(  # as torch.optim.Optimizer.load_state_dict does
                "cpu" if key == "step" and not counts_here else parameter.device, copy=True
            )
            for k, key in keys.items()
            if "/" not in key
        }
        weights.optimizer.state.pop(parameter, None)
        if state:
            weights.optimizer.state[parameter] = state
    first = _facts(entries, weights.trained[0])
    _check_kind("optimizer", first["optimizer_class"], weights.optimizer)
    places = [
        _place(entries, names[0]) if names else (first, min(k, len(first["groups"]) - 1))
        for k, names in enumerate(weights.groups)
    ]
    others, varied = set[str](), {"lr", "momentum"}
    for group, (facts, k) in zip(groups, places, strict=True):
        kept = {n: v for n, v in facts["groups"][k].items() if n != "params"}
        kept = {n: tuple(v) if isinstance(v, list) else v for n, v in kept.items()}
        scheduled = varied if weights.scheduler is not None and "scheduler" in first else set()
        plain = {n for n, v in kept.items() if isinstance(v, int | float | None)} - scheduled
        others |= {f"{n} {kept[n]}, not {group.get(n)}" for n in plain if group.get(n) != kept[n]}
        group.update(kept)
    if weights.scheduler is not None and "scheduler" in first:
        _check_kind("learning-rate schedule", first["schedule_class"], weights.scheduler)
        here, saved = weights.scheduled, first.get("scheduled", {})
        others |= {f"{n} {v}, not {here.get(n)}" for n, v in saved.items() if here.get(n) != v}
        states = [(facts["scheduler"], k, len(facts["groups"])) for facts, k in places]
        weights.scheduler.load_state_dict(_follow_groups(states))
    return others


def _place(entries: Mapping[str, torch.Tensor], weight: str) -> tuple[Any, int]:
    """The stage that trained a weight, and in which group: stages may have groups of their own."""
    facts = _facts(entries, weight)
    return facts, next(k for k, g in enumerate(facts["groups"]) if weight in g["params"])


def _follow_groups(places: list[tuple[Any, int, int]]) -> dict[str, Any]:
    """State of a schedule, or of one inside of it, from (state, group, groups) of each group.

    Lists of a number per group follow the groups.
    """
    found = {}
    for name, value in places[0][0].items():
        values = [(state[name], k, of) for state, k, of in places]
        found[name] = value
        if name == _INNER:
            each = range(len(value))
            found[name] = [_follow_groups([(v[n], k, of) for v, k, of in values]) for n in each]
        elif name not in _OF_ALL and all(isinstance(v, list) and len(v) == n for v, _, n in values):
            found[name] = [v[k] for v, k, _ in values]
    return found


def _check_kind(what: str, want: str, value: object) -> None:
    """Refuse to go on with another class: it would take the other's settings for its own."""
    if type(value).__name__ != want:
        got = type(value).__name__
        raise PlanError(f"the checkpoint is of a run with another {what}", got=got, want=want)


def _facts_of(weights: StageWeights, updates: int) -> dict[str, object]:
    assert weights.optimizer is not None
    plain = (
        {k: v for k, v in group.items() if k != "params" and isinstance(v, _KEPT)}
        for group in weights.optimizer.param_groups
    )
    facts: dict[str, object] = {
        "updates": updates,
        "trained": weights.trained,
        "optimizer_class": type(weights.optimizer).__name__,
        "groups": [{**g, "params": n} for g, n in zip(plain, weights.groups, strict=True)],
    }
    if weights.scheduler is not None:
        facts["schedule_class"] = type(weights.scheduler).__name__
        state, facts["scheduled"] = weights.scheduler.state_dict(), weights.scheduled
        facts["scheduler"] = {k: v for k, v in state.items() if isinstance(v, _KEPT)}
    return facts


def _facts(entries: Mapping[str, torch.Tensor], weight: str) -> Any:
    """Those of the stage that trained a weight."""
    names = (name for name in entries if name.startswith("stage/") and name.count("/") == 1)
    stages = (unpack_entries(name, entries) for name in names)
    found = next((facts for facts in stages if weight in facts["trained"]), None)
    if found is None:
        raise PlanError("the checkpoint is of a run that did not train a weight", got=weight)
    return found
