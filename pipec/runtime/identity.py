"""The settings of a rank as short texts and digests: ranks of one run must have the same."""

import inspect
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version

import torch

from pipec.errors import PipecError
from pipec.files import PACKAGE, code_of, text_digest
from pipec.graph.ir import Graph, InputKind
from pipec.graph.tensor_type import has_data, weights_digest
from pipec.graph.torch_private import tree_leaves
from pipec.plan.record import plan_record
from pipec.runtime.executor import Executor, Settings
from pipec.runtime.program import Program
from pipec.runtime.tensors import TensorType
from pipec.schedule import json_form

_SHORT = 12
_FEW = 64
"""Numbers of a weight that a mark is of."""


def identity(program: Program, settings: Settings) -> dict[str, str | None]:
    """What must be equal on all ranks before they train together.

    Returns:
        A name for people, to a text or the beginning of a SHA-256.
    """
    plan, schedule = program.plan, json_form.to_json(program.schedule)
    record = {k: v for k, v in plan_record(plan).items() if k not in ("schedule", "timeline")}
    graphs = [plan.graph.module.code, *(s.graph.module.code for s in plan.stages)]
    return {
        "the code of pipec": f"{version('pipec')} {code_of(PACKAGE)[:_SHORT]}",
        "the version of torch": torch.__version__,
        "the model's weights": plan.graph.source.sha256[:_SHORT] or None,
        "the schedule": f"{program.schedule.name} {digest_of(schedule)}",
        "the plan": digest_of([record, graphs]),
        "the loss scale": str(settings.loss_scale),
        **_describe(settings),
        "the optimizer": _function(settings.optimizer),
        "the learning-rate schedule": _function(settings.scheduler),
    }


def _describe(settings: Settings) -> dict[str, str]:
    return {
        "the clipping norm": str(settings.clip),
        "what to do about gradients that are not finite": settings.on_nan,
        "what is a spike": str(settings.spike),
        "the seed": str(settings.seed),
        "the correction": str(settings.correction),
    }


def list_settings(executor: Executor) -> dict[str, str]:
    """Settings that a run may change when it goes on from a checkpoint."""
    graph = executor.program.plan.graph
    clip = executor.settings.clip  # infinity limits none
    numbers = (a for n in graph.calls for a in tree_leaves((n.args, n.kwargs)))
    return {
        **_describe(executor.settings),
        "the clipping norm": str(clip if clip != math.inf else None),
        "the microbatches of a round": str(executor.rounds.microbatches),
        "the numbers in the model (dropout)": digest_of([a for a in numbers if type(a) is float]),
    }


def digest_cut(program: Program) -> str:
    """A digest of stages and schedule: what is under way in one pipeline fits no other."""
    graphs = [s.graph.module.code for s in program.plan.stages]
    return digest_of([graphs, json_form.to_json(program.schedule)])


def weights_of(executor: Executor) -> dict[str, str | None]:
    """Digests of the weights that this rank begins with, of those that other ranks hold too."""
    program, found = executor.program, dict[str, str | None]()
    place = program.schedule.placement
    for stage, weights in executor.weights.items():
        copies = {*place.forward[stage], *(place.backward[stage] if place.backward else ())}
        for name, held in weights.version_at(weights.newest).tensors.items():
            if len(copies) > 1 or name in program.tied:
                found[f"the first value of weight {name}"] = digest(held)
    return found


def digest_weights(weights: Mapping[str, torch.Tensor] | None) -> dict[str, str | None]:
    """A digest of the weights that a user gives; of each a few numbers are read, not all of it."""
    text = "those of the plan"
    if weights is not None:
        text = digest_of([(n, mark(weights[n])) for n in sorted(weights)])
    return {"the weights that are given": text}


def mark(given: object, most: int = _FEW) -> list[object]:
    """A cheap mark of a tensor: its type, and a checksum of about ``most`` of its numbers."""
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided or not has_data(given):
        return [type(given).__name__]
    flat = given.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // most)].contiguous().cpu().view(torch.uint8)
    return [str(given.dtype), list(given.shape), zlib.crc32(some.numpy().tobytes())]


def optimizers_of(executor: Executor) -> dict[str, str | None]:
    """Classes of what steps the weights; their settings may differ by stage."""
    made = [w for w in executor.weights.values() if w.optimizer is not None]
    return {
        "the optimizer's class": made[0].optimizer.__class__.__name__ if made else None,
        "the learning-rate schedule's class": made[0].scheduler.__class__.__name__
        if made
        else None,
    }


def inputs_of(executor: Executor) -> dict[str, str | None]:
    """Digests of all that the data gives for the first microbatch, where this rank reads any."""
    if not executor.reads:
        return {}
    try:
        batch = executor.inputs(0)
    except PipecError:
        return {}  # it is reported when it is needed, with its place
    return {
        f"the data: {name} of the first microbatch": digest(given) for name, given in batch.items()
    }


def model_of(graph: Graph) -> str:
    """A digest of a model, however it is cut and whatever the size of its batch.

    Of the types of its weights, and of how often it calls each op.
    """
    held = graph.tensors_of(InputKind.PARAMETER, InputKind.BUFFER)
    types = {n: TensorType.of(t) for n, t in held.items()}
    ops = Counter(str(node.target) for node in graph.calls)
    return digest_of([{n: [t.dtype, list(t.shape)] for n, t in types.items()}, ops])


def digest(given: object) -> str | None:
    """The beginning of the SHA-256 of a tensor's type and bytes; None of anything else."""
    return weights_digest({"": given})[:_SHORT] if isinstance(given, torch.Tensor) else None


def digest_of(data: object) -> str:
    """The beginning of the SHA-256 of plain data."""
    return text_digest(json.dumps(data, sort_keys=True, default=_plain))[:_SHORT]


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _function(made: object) -> str | None:
    """A digest of a function's source and of the values that it has captured."""
    if made is None:
        return None
    try:
        source = inspect.getsource(made)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    captured = getattr(made, "__closure__", None) or ()
    held = [c.cell_contents for c in captured]
    return digest_of([source, [h for h in held if isinstance(h, (str, int, float, list, dict))]])
