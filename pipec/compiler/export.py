"""The best split between whole layers, in the words of runtimes that people already have.

The cut of a plan may pass through a layer. These runtimes cut between layers, so the problem is
solved again with every layer in one piece: the split is optimal for what they can do.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pipec.cluster.cluster import Link
from pipec.compiler.layers import Layout, layers_of, place_layers, whole_layers
from pipec.compiler.problem import build_problem, chain_of
from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, IntArray
from pipec.partition.devices import Device
from pipec.partition.result import stage_loads
from pipec.partition.solve import solve_contiguous
from pipec.plan.model import Plan


@dataclass(frozen=True)
class Split:
    """Whole layers on stages.

    Attributes:
        parts: Paths of the layers of every stage, in order.
        numbered: How many of them are numbered layers, by stage.
        seconds: Predicted seconds of every stage, transfers included.
        lower_bound: No split between layers has a slowest stage faster than this.
        even: Slowest stage if every stage had as many numbered layers, which is what these
            runtimes do by default; None where the model allows no such split.
    """

    parts: tuple[tuple[str, ...], ...]
    numbered: tuple[int, ...]
    seconds: tuple[float, ...]
    lower_bound: float
    even: float | None


def split_layers(plan: Plan, stages: int | None = None) -> Split:
    """Solves the placement problem with layers in one piece; by default for as many stages.

    Raises:
        PartitionError: Fewer layers or devices than stages, the plan's stages are not one per
            device, or nothing fits.
    """
    assert plan.costs is not None
    if stages is None:
        check_one_per_device(plan)
    count = len(plan.stages) if stages is None else stages
    layers, problem = layers_of(plan.graph), build_problem(plan)
    if count > len(layers.names):
        raise PartitionError(
            "fewer layers than stages", got=f"{len(layers.names)} layers", want=f"{count} or more"
        )
    if count > plan.cluster.size:
        raise PartitionError(
            "a split has one stage per device",
            got=f"{count} stages on {plan.cluster}",
            want=f"at most {plan.cluster.size}",
            hint=f"--stages {plan.cluster.size}",
        )
    home = whole_layers(plan.graph, layers)
    first, end = layers.ends
    # what is in front of the numbered layers, and behind them, is one piece each for these runtimes
    whole = _in_order(problem, np.clip(home, first - 1, end))
    devices, links = chain_of(plan.cluster, count)
    cut = solve_contiguous(whole, devices, links=links)
    # a layer whose operations all went to others stands where the one before it does
    of_layer = np.array([cut.stage[home <= k].max() for k in range(len(layers.names))])
    parts: list[list[str]] = [[] for _ in range(count)]
    for name, stage in zip(layers.names, of_layer.tolist(), strict=True):
        parts[stage].append(name)
    numbered = np.bincount(of_layer[list(layers.numbered)], minlength=count)
    return Split(
        tuple(map(tuple, parts)),
        tuple(numbered.tolist()),
        cut.loads,
        cut.lower_bound,
        _split_evenly(plan, problem, devices, links, len(layers.numbered)),
    )


def check_one_per_device(plan: Plan) -> None:
    """Refuse a plan whose stage k is not on device k alone, as other runtimes take it.

    Raises:
        PartitionError: It is elsewhere, has replicas, or shares its device.
    """
    for k, devices in enumerate(plan.placement.forward if plan.placement else ()):
        if devices != (k,):
            raise PartitionError(
                "this runtime takes one stage per device",
                where=f"stage {k}",
                got=f"on {', '.join(f'device {d}' for d in devices)}",
                want=f"on device {k} alone",
                hint="compile one stage per device, without replicas; layers are split over the "
                "first N devices with --stages N",
            )


def _in_order(problem: CostGraph, piece: IntArray) -> CostGraph:
    """The problem with these nodes in one piece each, a value of no bytes from each to the next.

    These runtimes cut the list of layers: no layer stands before one that is called earlier.
    """
    numbers = np.unique(piece)
    first = [np.flatnonzero(piece == p)[0] for p in numbers[:-1]]
    last = [np.flatnonzero(piece == p)[-1] for p in numbers[1:]]
    none = np.zeros(len(first))
    return replace(
        problem,
        group=piece,
        producer=np.append(problem.producer, first).astype(np.int64),
        consumer=np.append(problem.consumer, last).astype(np.int64),
        consumer_ptr=np.append(
            problem.consumer_ptr, problem.consumer_ptr[-1] + 1 + np.arange(len(first))
        ),
        seconds=np.append(problem.seconds, none),
        bytes=np.append(problem.bytes, none),
        gradient_bytes=np.append(problem.gradient_bytes, none),
    )


def _split_evenly(
    plan: Plan, problem: CostGraph, devices: list[Device], links: list[Link], layers: int
) -> float | None:
    """Slowest stage of the split into equal numbers of layers; None if the model allows none."""
    count = len(devices)
    ends = [layers * (k + 1) // count for k in range(count)]
    layout = Layout(tuple(b - a for a, b in pairwise([0, *ends])), 0, count - 1)
    try:
        stage = place_layers(plan.graph, layout)
    except PartitionError:
        return None
    return float(stage_loads(problem, stage, devices, links=links).max())


def _torch(split: Split) -> str:
    """``torch.distributed.pipelining``: where stages begin."""
    rows = [f"    {json.dumps(part[0])}: SplitPoint.BEGINNING,\n" for part in split.parts[1:]]
    return f"""\
from torch.distributed.pipelining import SplitPoint, pipeline

SPLIT = {{
{"".join(rows)}}}
# pipe = pipeline(model, mb_args=example_microbatch, split_spec=SPLIT)"""


def _torchtitan(split: Split) -> str:
    """Modules of every stage, of a configuration in Python as torchtitan 0.3 reads it."""
    inner = [n for part in split.parts for n in part if not re.fullmatch(r"\w+(\.\d+)?", n)]
    if inner:
        raise PartitionError(
            "torchtitan splits a model at its own children and the items of its lists",
            got=", ".join(inner[:3]),
            want="layers.0, norm, lm_head",
        )
    rows = [f"        {json.dumps(list(part))},\n" for part in split.parts]
    return f"""\
from torchtitan.config import ParallelismConfig

PARALLELISM = ParallelismConfig(  # the parallelism of a Trainer.Config
    pipeline_parallel_degree={len(split.parts)},
    # what is in no list is dropped: add what leaves no node, such as an idle Dropout
    module_fqns_per_model_part=[
{"".join(rows)}    ],
)"""


def _deepspeed(split: Split) -> str:
    """A PipelineModule that is cut like the split, for a list of exactly these layers."""
    ends = [0, *np.cumsum([len(part) for part in split.parts]).tolist()]
    return f"""\
from deepspeed.pipe import PipelineModule

PARTS = {ends}  # first layer of every stage, and the end
LAYERS = {json.dumps([name for part in split.parts for name in part])}


class Cut(PipelineModule):
    def _partition_layers(self, method="uniform"):
        if len(self._layer_specs) != PARTS[-1]:  # layers beyond would be left out
            raise ValueError(f"got {{len(self._layer_specs)}} layers, want {{LAYERS}}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = PARTS
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])"""


def _llama(split: Split) -> str:
    """Shares of every GPU; the output counts as one layer more, on the last."""
    counts = [*split.numbered[:-1], split.numbered[-1] + 1]
    return f"--n-gpu-layers {sum(counts)} --split-mode layer --tensor-split " + ",".join(
        map(str, counts)
    )


FORMATS: dict[str, Callable[[Split], str]] = {
    "deepspeed": _deepspeed,
    "llama.cpp": _llama,
    "megatron": lambda split: (
        f"--pipeline-model-parallel-layout '{Layout(split.numbered, 0, len(split.parts) - 1)}'"
    ),
    "torch": _torch,
    "torchtitan": _torchtitan,
    "vllm": lambda split: f"VLLM_PP_LAYER_PARTITION={','.join(map(str, split.numbered))}",
}
"""Runtime to the text for it; a PartitionError says what it cannot have."""
