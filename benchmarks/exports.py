"""The exported split in the runtime that it is for, beside that runtime's own default.

    python -m benchmarks.exports                         all cells, about 10 minutes
    python -m benchmarks.exports --cells gpt2:openvino,edsr:torch --windows 4

What ``pipec export --to`` prints is run by the runtime it names, on two cores, by turns with what
the runtime does by default. Printed are samples per second and how many times as long the default
takes: the median of neighbouring windows with its quartiles; the fastest window of each, since
whatever else a machine does only adds time; and the processor time of the busier core, which is
what a machine that does nothing else would show. Costs are measured as ``pipec profile`` does.

```text
torch        training, 1F1B, 2 processes                    default: as many layers per stage
deepspeed    the same                                       uniform and parameters, its two rules
onnxruntime  inference, two threads, one core each          it has none: as many layers per stage
openvino     inference, HETERO over two devices of a thread half of the weights each, its rule
                                                            where no device holds the model; it has
                                                            none for processors, which it gives all
                                                            to the first; half of the operations
```

`benchmarks/_deepspeed.py` and `benchmarks/_openvino.py` say how to install these two; cells of a
runtime that is not there are left out, and said to be.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import onnxruntime
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks import _openvino
from benchmarks._deepspeed import METHODS, deepspeed_step, find_deepspeed, layers_of
from benchmarks._exit import positive
from benchmarks._ranks import is_rank, launch, pin, quartiles, say
from benchmarks._uneven import workload
from benchmarks.prediction import PASSES, node_costs
from benchmarks.training_throughput import LR, MICROBATCHES, Cell, Step, theirs, time_step
from pipec.cli.export import FORMATS
from pipec.cluster.cluster import parse_cluster
from pipec.compiler import export, profile
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.pass_manager import parse_pipeline
from pipec.cost.measure import Measuring
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, InputKind, Source
from pipec.plan.model import Plan
from pipec.runtime.distributed import process_group

TRAINING = ("torch", "deepspeed")
CELLS = (
    "gpt2:onnxruntime,edsr:onnxruntime,densenet:onnxruntime,tiny_yolo:onnxruntime,"
    "unet:onnxruntime,gpt2:openvino,edsr:openvino,densenet:openvino,tiny_yolo:openvino,"
    "unet:openvino,gpt2:torch,edsr:torch,densenet:torch,tiny_yolo:torch,unet:torch,"
    "gpt2:deepspeed,distilgpt2:deepspeed,tiny_yolo:deepspeed,"
    "vgg16:deepspeed,vgg16:torch"
)
OURS = "exported"
TWO = "2xcpu"
HEAD = f"{'model, runtime':22} {'split':24} samples/s  windows            fastest  processor"
Run = Callable[[int], tuple[float, float]]
"""Seconds of as many microbatches, and processor seconds of the stage that works most."""


def cut_twice(loaded: Loaded, folder: Path) -> Plan:
    """A plan for ONNX files: cut by measured nodes, then by what the stages took, and written."""
    backend = load_backend("onnx")
    how = Measuring(clock=time.thread_time, repeats=9)
    costs = profile.node_costs(backend, loaded.graph, loaded.example_inputs, "cpu", how)
    plan = make_plan(loaded.graph, parse_cluster(TWO), "onnx", costs=costs)
    emit(plan, folder / "first")
    stages = backend.load(plan, folder / "first").stages
    took = profile.profile_emitted(plan, stages, loaded.example_inputs, 1.0, time.thread_time)
    again = took.add_to(costs, plan, "cpu")
    plan = make_plan(loaded.graph, parse_cluster(TWO), "onnx", costs=again)
    emit(plan, folder / OURS)
    return plan


def openvino(name: str, folder: Path) -> dict[str, Run]:
    """Every cut of a model's ONNX file as a pipeline in HETERO."""
    model, x, _ = workload(name).make_seeded(1)
    path = folder / f"{name}.onnx"
    torch.onnx.export(model.eval(), (x,), path, dynamo=True, verbose=False)
    loaded = load(str(path), LoadOptions(**load_backend("onnx").reads))
    text = FORMATS["openvino"](cut_twice(loaded, folder), folder)
    core = _openvino.two_devices()
    models = {
        OURS: _openvino.place_model(text, path),
        "half of the weights": _openvino.place_model(text, path, _openvino.by_weights(path)),
        "half of the operations": _openvino.place_model(text, path, _openvino.by_number(path)),
        "all on the first": core.read_model(path),
    }
    fed = {n: v.numpy() for n, v in loaded.example_inputs.items()}
    (want,) = onnxruntime.InferenceSession(path).run(None, fed)
    runs = {}
    for label, each in models.items():
        compiled = _openvino.compile_model(core, each)
        (got,) = compiled(list(fed.values())).values()
        check(want, got, f"{name} in OpenVINO, {label}")
        runs[label] = _openvino.hetero(compiled, list(fed.values()))
    return runs


def onnx_stages(name: str, folder: Path) -> dict[str, Run]:
    """Both cuts of a model as a pipeline of two sessions of onnxruntime."""
    model, x, _ = workload(name).make_seeded(1)
    loaded = from_module(model.eval(), (x,))
    layers = model.layers
    assert isinstance(layers, nn.ModuleList)
    half = len(layers) // 2
    passes = parse_pipeline(
        f"simplify,annotate-cost,partition{{layout={half},{len(layers) - half}}},insert-comm"
    )
    even = make_plan(loaded.graph, parse_cluster(TWO), "onnx", passes=passes)
    emit(even, folder / "even")
    plans = {
        OURS: (cut_twice(loaded, folder), folder / OURS),
        "equal layers": (even, folder / "even"),
    }
    with torch.no_grad():
        want = model(x).numpy()
    runs = {}
    for label, (plan, at) in plans.items():
        stages = json.loads(FORMATS["onnxruntime-genai"](plan, at))["model"]["decoder"]["pipeline"]
        fed = {n: v.numpy() for n, v in loaded.example_inputs.items()}
        runs[label], got = pipeline(stages, at, fed)
        check(want, got, f"{name} in onnxruntime, {label}")
    return runs


def pipeline(
    stages: Sequence[Mapping[str, Any]], folder: Path, fed: Mapping[str, np.ndarray]
) -> tuple[Run, np.ndarray]:
    """Stages of a genai configuration, each in a thread on a core of its own; what they yield."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    parts = [part for stage in stages for part in stage.values()]
    sessions = [onnxruntime.InferenceSession(folder / p["filename"], options) for p in parts]
    cores = sorted(os.sched_getaffinity(0))

    def step(k: int, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: values[name] for name in parts[k]["inputs"]}
        made = sessions[k].run(parts[k]["outputs"], given)
        return {**values, **dict(zip(parts[k]["outputs"], made, strict=True))}

    def run(count: int) -> tuple[float, float]:
        between: list[Queue[Mapping[str, np.ndarray]]] = [Queue(2) for _ in parts[1:]]
        busy = [0.0] * len(parts)

        def work(k: int) -> None:
            os.sched_setaffinity(0, {cores[k % len(cores)]})
            for _ in range(count):
                values = step(k, between[k - 1].get() if k else fed)
                if k + 1 < len(parts):
                    between[k].put(values)
            busy[k] = time.thread_time()

        threads = [Thread(target=work, args=(k,)) for k in range(len(parts))]
        begin = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return time.perf_counter() - begin, max(busy)

    values: Mapping[str, np.ndarray] = fed
    for k in range(len(parts)):
        values = step(k, values)
    return run, values[parts[-1]["outputs"][-1]]


def check(want: np.ndarray, got: np.ndarray, where: str) -> None:
    """See that a cut model computes what the whole one does."""
    error = float(np.abs(want - got).max() / np.abs(want).max())
    if not error <= 1e-4:
        raise SystemExit(f"{where}: off by {error:.2g} of the largest output")


def training(name: str, tool: str) -> dict[str, Run]:
    """The exported split and the tool's own, on these two ranks."""
    chosen, cell = workload(name), Cell(name, "1f1b", ours=False)
    model, x, y = chosen.make_seeded(MICROBATCHES)
    graph = trace(
        model, (x[: chosen.rows],), loss=Loss(chosen.loss, y[: chosen.rows]),
        source=Source("memory", ""),
    )  # fmt: skip
    plan = plan_training(graph, x[: chosen.rows], y[: chosen.rows])
    text = export.FORMATS[tool](export.split_layers(plan))
    steps = {}
    if tool == "torch":
        found: dict[str, Any] = {}
        exec(text, found)
        cuts = {OURS: list(found["SPLIT"]), "equal layers": cell.choose_cuts(model)}
        for label, cut in cuts.items():
            steps[label] = theirs(cell, cut, copy.deepcopy(model), x, y)
    else:
        for label, how in {OURS: text, **dict(zip(METHODS, METHODS, strict=True))}.items():
            layers = layers_of(copy.deepcopy(model))
            assert layers is not None
            steps[label] = deepspeed_step(name, layers, x, y, how, LR)
    return {label: partial(time_steps, step) for label, step in steps.items()}


def time_steps(step: Step, count: int) -> tuple[float, float]:
    """Seconds of as many steps, and processor seconds of the busier rank."""
    begin = time.process_time()
    seconds = time_step(step, count)[0] * count
    busy = torch.tensor(time.process_time() - begin)
    dist.all_reduce(busy, dist.ReduceOp.MAX)
    return seconds, float(busy)


def plan_training(graph: Graph, x: Tensor, y: Tensor) -> Plan:
    """The plan of a training graph by measured costs, the same on both ranks."""
    names = [i.name for i in graph.inputs_of(InputKind.INPUT)]
    costs = node_costs(graph, dict(zip(names, (x, y), strict=True)))
    return make_plan(graph, parse_cluster(TWO), passes=parse_pipeline(PASSES), costs=costs)


def compare(cell: str, runs: Mapping[str, Run], rows: int, options: argparse.Namespace) -> None:
    """Runs in turn, and a line for each of the defaults."""
    first = max(run(2)[0] for run in runs.values()) / 2
    count = options.repeats or max(2, round(options.seconds / first))
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for window in range(options.windows):
        for name in list(runs)[:: 1 - 2 * (window % 2)]:
            took[name].append(runs[name](count))
    for name, found in took.items():
        pairs = list(zip(took[OURS], found, strict=True))
        low, middle, high = quartiles([b[0] / a[0] for a, b in pairs])
        busy = statistics.median(b[1] / a[1] for a, b in pairs)
        speed = rows * count / statistics.median(s for s, _ in found)
        least = min(s for s, _ in found) / min(s for s, _ in took[OURS])
        ratios = f"{middle:6.2f} ({low:.2f} to {high:.2f}) {least:7.2f} {busy:9.2f}"
        say(f"{cell:22} {name:24} {speed:9.1f} {ratios if name != OURS else ''}".rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--windows", type=positive, default=16)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a window of inference")
    args = parser.parse_args()
    cells = [cell.split(":") for cell in args.cells.split(",")]
    there = {"openvino": _openvino.find_openvino(), "deepspeed": find_deepspeed()}
    warnings.simplefilter("ignore")
    if is_rank():
        pin()
        args.repeats = 2
        with process_group(device="cpu"):
            for name, tool in cells:
                rows = workload(name).rows * MICROBATCHES
                compare(f"{name} {tool}", training(name, tool), rows, args)
        return 0
    args.repeats = 0
    torch.set_num_threads(1)
    say(HEAD)
    for name, tool in cells:
        if not there.get(tool, True):
            say(f"{name} {tool}: not installed")
        elif tool not in TRAINING:
            with tempfile.TemporaryDirectory(prefix="pipec-exports-") as folder:
                make = openvino if tool == "openvino" else onnx_stages
                runs = make(name, Path(folder))
                compare(f"{name} {tool}", runs, workload(name).rows, args)
    ranks = [f"{name}:{tool}" for name, tool in cells if tool in TRAINING and there.get(tool, True)]
    options = ("--cells", ",".join(ranks), "--windows", str(args.windows))
    return launch("benchmarks.exports", 2, *options) if ranks else 0


if __name__ == "__main__":
    sys.exit(main())
