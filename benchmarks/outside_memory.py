"""What a plan promises of a rank's memory, beside what malloc or CUDA's allocator gives out.

``python -m benchmarks.outside_memory chain gpipe,zbv`` compiles ``malloc_count.c``, preloads it
into a process, cuts the model and forks two ranks, which measure its stages and train under each
schedule: as it is, with offload, and with recompute, both to 75 % of the plain peak. A row has the
predicted and the counted peak of both ranks. Counted is from outside: every block of malloc, the
kernels' own scratch included; the host arena, which is mapped, is not. Twelve models.

``python -m benchmarks.outside_memory all all cuda``: two ranks that share a GPU; counted are the
active bytes of each rank's caching allocator, kernels' scratch included. What cuBLAS keeps for
itself, 32 MiB on Hopper, is there before and in neither figure.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from benchmarks._models import WORKLOADS
from pipec.cli.profile import this_kind
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.profile import Profiler
from pipec.errors import PassError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from pipec.runtime.allocations import CudaAllocator
from pipec.runtime.device import device_of, split_gpu_blocks
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.host_memory import keep_freed_memory
from tests.autodiff.chain import Case
from tests.autodiff.zoo import floats, seeded
from tests.runtime.pipelines import batches

SCHEDULES = {"gpipe": 2, "1f1b": 2, "interleaved": 4, "zb-h1": 2, "zbv": 4, "pipedream": 2}
"""Schedule to its stages on two ranks."""
MICROBATCHES, SHARE = 6, 0.75
ROWS = {"cpu": 8, "cuda": 32}
"""Samples of a microbatch of the models of other benchmarks."""
_AT_ONCE = 7
WAYS = ("plain", "offload", "recompute")
Row = tuple[list[float], list[int]]
"""Predicted and counted bytes of both ranks."""
Jobs = Mapping[str, Sequence[str]]
"""The schedules of each model."""
Made = dict[str, dict[str, tuple[Plan, Batch]]]
"""Plans that are cut, and the data, by model and schedule."""


def chain() -> nn.Module:
    """Linear layers whose activations weigh sixteen times what their weights do."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)]
    return nn.Sequential(*blocks, nn.Linear(64, 3))


def convolutions() -> nn.Module:
    """Convolutions with BatchNorm."""
    wide = [(3, 16), *[(16, 16)] * 5]
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
        for a, b in wide
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))


class Attended(nn.Module):
    """Encoder layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[
            nn.TransformerEncoderLayer(32, 2, 128, 0.1, "gelu", batch_first=True) for _ in range(4)
        ])  # fmt: skip
        self.head = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Three logits of a sequence."""
        found: torch.Tensor = self.head(self.layers(x).mean(1))
        return found


MODELS = {
    "chain": Case(chain, nn.functional.cross_entropy, floats(4096, 64)),
    "attention": Case(Attended, nn.functional.cross_entropy, floats(64, 32, 32)),
    "convolutions": Case(convolutions, nn.functional.cross_entropy, floats(16, 3, 32, 32)),
}


def workload(name: str, rows: int) -> Case:
    """A model of the other benchmarks, with so many samples in a microbatch."""
    work = WORKLOADS[name]

    def batch(k: int) -> tuple[tuple[torch.Tensor, ...], object]:
        torch.manual_seed(k)
        x, y = work.data(rows)
        return (x,), y

    return Case(work.make, work.loss, batch)


class Half(nn.Module):
    """A model under autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the model, in float32."""
        with torch.autocast("cpu", torch.bfloat16):
            found: torch.Tensor = self.model(x)
        return found.float()


def autocast_model(make: Callable[[], nn.Module]) -> nn.Module:
    """The model under autocast."""
    return Half(make())


def models_on(device: str) -> dict[str, Case]:
    """Twelve models."""
    found = MODELS | {name: workload(name, ROWS[device]) for name in WORKLOADS}
    for name in ("transformer", "llama", "vgg"):
        case = found[name]
        found[f"{name}-bf16"] = Case(partial(autocast_model, case.model), case.loss, case.batch)
    return found


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With a momentum, so that there is state."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def collect(jobs: Jobs, device: str = "cpu") -> dict[str, dict[str, dict[str, Row]]]:
    """Predicted and counted peaks by model, schedule, and way; a way that is refused is absent."""
    name = __name__ if __name__ != "__main__" else "benchmarks.outside_memory"
    command = [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        more = {"OMP_NUM_THREADS": "1", "PIPEC_IS_COUNTED": "1"}
        if device == "cpu":
            library = Path(folder) / "malloc_count.so"
            source = Path(__file__).with_name("malloc_count.c")
            subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
            more["LD_PRELOAD"] = str(library)
        else:
            command += ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
            command += ["--rdzv-endpoint", "127.0.0.1:0", "--rdzv-backend", "c10d"]
        ran = subprocess.run(
            [*command, "-m", name, json.dumps(jobs), "", device],
            env=os.environ | more, capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: dict[str, dict[str, dict[str, Row]]] = json.loads(ran.stdout)
    return found


class Malloc:
    """The bytes that `malloc_count.c` counts."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        for name in ("malloc_live", "malloc_peak"):
            getattr(self._library, name).restype = ctypes.c_long

    def reset(self) -> int:
        """Forget the peak; the bytes that are held now."""
        self._library.malloc_forget_peak()
        return int(self._library.malloc_live())

    @property
    def peak(self) -> int:
        """Most bytes since."""
        return int(self._library.malloc_peak())


def outside_peak(plan: Plan, batch: Batch, device: str) -> int:
    """Most bytes held in the second of two rounds, above those without a pipeline."""
    counter = Malloc() if device == "cpu" else CudaAllocator(torch.device(device))
    torch.ones(1, 1, device=device).mm(torch.ones(1, 1, device=device))  # cuBLAS takes its own
    gc.collect()
    before = counter.reset()
    pipeline = DistributedPipeline(plan, batch, Settings(sgd), device=device)
    pipeline.round()
    gc.collect()
    counter.reset()
    pipeline.round()
    return counter.peak - before


def cut(case: Case, schedule: str, device: str) -> tuple[Plan, Batch]:
    """The plan of a schedule, without one yet, and the data."""
    args, target = case.batch(0)
    graph = trace(seeded(case), args, loss=Loss(case.loss, target), source=Source("memory", ""))
    part = f"partition{{stages={SCHEDULES[schedule]} schedule={_generator(schedule)}}}"
    first = f"simplify,annotate-cost,{part},insert-comm,differentiate,time-stages"
    cluster = parse_cluster(f"2x{this_kind(device)}")
    return make_plan(graph, cluster, passes=parse_pipeline(first)), batches(case, graph)


def _generator(schedule: str) -> str:
    return f"{schedule} microbatches={MICROBATCHES}"


def plans(base: Plan, batch: Batch, schedule: str, device: str) -> dict[str, Plan]:
    """The plans of a schedule, whose stages are measured, by the ways that can be had."""
    generator = _generator(schedule)
    last = f"schedule{{generator={generator}}},simulate"
    plain = run_passes(parse_pipeline(last), base)
    profiler = Profiler(plain, batch, Settings(sgd), compute=device_of(device))
    base = profiler.measure(0.0).apply(base, this_kind(device))
    found = {"plain": run_passes(parse_pipeline(last), base)}
    assert found["plain"].timeline is not None
    limit = SHARE * max(found["plain"].timeline.peak_bytes)
    for way in WAYS[1:]:
        passes = f"insert-{way}{{memory-limit={limit} generator={generator}}},{last}"
        try:
            found[way] = run_passes(parse_pipeline(passes), base)
        except PassError:  # it says by itself that no choice fits
            continue
    return found


def measure_peaks(made: Made, device: str) -> dict[str, dict[str, dict[str, Row]]]:
    """The peaks of both ranks, on rank 0."""
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for model, schedule in ((m, s) for m in made for s in made[m]):
        base, batch = made[model][schedule]
        ways = plans(base, batch, schedule, device)
        rows = found.setdefault(model, {}).setdefault(schedule, {})
        outside_peak(ways["plain"], batch, device)  # kernels keep what they compile from now on
        for way, plan in ways.items():
            peaks: list[int] = [0, 0]
            dist.all_gather_object(peaks, outside_peak(plan, batch, device))
            assert plan.timeline is not None
            rows[way] = list(plan.timeline.peak_bytes), peaks
    return found


def rank(made: Made, device: str, names: Mapping[str, str]) -> None:
    """Run one rank."""
    os.environ |= names
    with process_group(device=device):
        found = measure_peaks(made, device)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)


def run_ranks(jobs: Jobs, device: str) -> None:
    """Run the ranks: on a GPU this is one, on CPUs two are forked, so that models are cut once."""
    torch.set_num_threads(1)
    keep_freed_memory()
    split_gpu_blocks()
    models = models_on(device)
    made = {m: {s: cut(models[m], s, device) for s in schedules} for m, schedules in jobs.items()}
    if device != "cpu":
        rank(made, device, {})
        return
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    names["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    fork = get_context("fork")
    ranks = [
        fork.Process(target=rank, args=(made, device, {**names, "RANK": str(r)})) for r in (0, 1)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


def rows_of(schedule: str, ways: dict[str, Row]) -> Iterator[str]:
    """The rows of a model under one schedule."""
    for way, (want, got) in ways.items():
        pair = "   ".join("  ".join(f"{b / 1e6:6.2f}" for b in row) for row in (want, got))
        off = "  ".join(f"{g / w - 1:+6.1%}" for w, g in zip(want, got, strict=True))
        yield f"{schedule:13} {way:10} {pair}   {off}"


def summary(found: Sequence[dict[str, dict[str, Row]]], schedules: Sequence[str]) -> Iterator[str]:
    """Per schedule and way the figures of all models and ranks together."""
    yield "counted above predicted    lowest  median  highest   above 2 %"
    for schedule, way in product(schedules, WAYS):
        those = [ways[way] for model in found for ways in [model.get(schedule, {})] if way in ways]
        off = [g / w - 1 for want, got in those for w, g in zip(want, got, strict=True)]
        if off:
            three = f"{min(off):+8.1%} {median(off):+7.1%} {max(off):+8.1%}"
            yield f"{schedule:13} {way:10} {three} {sum(x > 0.02 for x in off):5} of {len(off)}"
    yield "really saved, of promised  lowest  median  highest  below 95 %"
    for schedule, way in product(schedules, WAYS[1:]):
        pairs = [m[schedule] for m in found if way in m.get(schedule, {})]
        part = [share for ways in pairs for share in _saved(ways["plain"], ways[way])]
        if part:
            three = f"{min(part):8.1%} {median(part):7.1%} {max(part):8.1%}"
            yield f"{schedule:13} {way:10} {three} {sum(x < 0.95 for x in part):5} of {len(part)}"


def _saved(plain: Row, less: Row) -> Iterator[float]:
    """What each rank saved of what was promised, where that is at least 5 % of the plain peak."""
    for want, got, at, reached in zip(*plain, *less, strict=True):
        if want - at >= 0.05 * want:
            yield (got - reached) / (want - at)


def main(models: list[str], schedules: list[str], device: str) -> None:
    """Print a table per model, and one of all; what shares a GPU only shares its time."""
    parts = [schedules] if device == "cpu" else [[s] for s in schedules]
    found = list[dict[str, dict[str, Row]]]()
    with ThreadPoolExecutor(1 if device == "cpu" else _AT_ONCE) as pool:
        rows = pool.map(lambda job: collect(job, device), [{m: p} for m in models for p in parts])
        for model in models:
            print(f"{model:13} {'':10}   predicted MB      counted MB     counted above predicted")
            for _ in parts:
                found.append(next(rows)[model])
                for schedule, ways in found[-1].items():
                    print(*rows_of(schedule, ways), sep="\n", flush=True)
    print(*summary(found, schedules), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for word, default in (("models", "all"), ("schedules", "all"), ("device", "cpu")):
        parser.add_argument(word, nargs="?", default=default)
    options = parser.parse_args()
    if os.environ.get("PIPEC_IS_COUNTED"):
        run_ranks(json.loads(options.models), options.device)
        sys.exit()
    known = models_on(options.device)
    models = list(known) if options.models == "all" else options.models.split(",")
    schedules = list(SCHEDULES) if options.schedules == "all" else options.schedules.split(",")
    main(models, schedules, options.device)
