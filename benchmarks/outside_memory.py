"""What a plan promises of a rank's memory, beside what malloc gives out: two ranks on a CPU.

``python -m benchmarks.outside_memory chain gpipe,zbv`` compiles ``malloc_count.c``, preloads it
into two ranks, and trains under each schedule: as it is, with offload, and with recompute, both to
75 % of the plain peak. A row has the predicted and the counted peak of both ranks. Counted is from
outside: every block of malloc, the kernels' own scratch included; the host arena, which is mapped,
is not. Models: ``chain``, ``attention``, ``convolutions``.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.compiler.profile import Profiler
from pipec.errors import PassError
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Source
from pipec.plan.model import Plan
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Batch, Settings
from pipec.runtime.host_memory import keep_freed_memory
from tests.autodiff.chain import Case
from tests.autodiff.zoo import floats, seeded
from tests.runtime.pipelines import batches

SCHEDULES = {"gpipe": 2, "1f1b": 2, "interleaved": 4, "zb-h1": 2, "zbv": 4, "pipedream": 2}
"""Schedule to its stages on two ranks."""
MICROBATCHES, SHARE = 6, 0.75
WAYS = ("plain", "offload", "recompute")
Row = tuple[list[float], list[int]]
"""Predicted and counted bytes of both ranks."""


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


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With a momentum, so that there is state."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def counted(model: str, schedules: list[str]) -> dict[str, dict[str, Row]]:
    """Schedule and way to predicted and counted peaks; a way that is refused is not there."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "malloc_count.so"
        source = Path(__file__).with_name("malloc_count.c")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += ["-m", __name__ if __name__ != "__main__" else "benchmarks.outside_memory"]
        more = {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PIPEC_IS_COUNTED": "1"}
        ran = subprocess.run(
            [*command, model, ",".join(schedules)],
            env=os.environ | more, capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: dict[str, dict[str, Row]] = json.loads(ran.stdout)
    return found


def peak_of_malloc(plan: Plan, batch: Batch) -> int:
    """Most bytes of malloc in the second of two rounds, above those without a pipeline."""
    library = ctypes.CDLL(None)
    library.malloc_live.restype = library.malloc_peak.restype = ctypes.c_long
    gc.collect()
    before = library.malloc_live()
    pipeline = DistributedPipeline(plan, batch, Settings(sgd), device="cpu")
    pipeline.round()
    gc.collect()
    library.malloc_forget_peak()
    pipeline.round()
    found: int = library.malloc_peak() - before
    return found


def plans(case: Case, schedule: str) -> tuple[dict[str, Plan], Batch]:
    """The plan of a schedule, whose stages are measured, by the ways that can be had."""
    args, target = case.batch(0)
    graph = trace(seeded(case), args, loss=Loss(case.loss, target), source=Source("memory", ""))
    batch = batches(case, graph)
    told = f"{schedule} microbatches={MICROBATCHES}"
    cut = f"partition{{stages={SCHEDULES[schedule]} schedule={told}}}"
    first = f"simplify,annotate-cost,{cut},insert-comm,differentiate,time-stages"
    last = f"schedule{{generator={told}}},simulate"
    base = make_plan(graph, parse_cluster("2xcpu"), passes=parse_pipeline(first))
    plain = run_passes(parse_pipeline(last), base)
    base = Profiler(plain, batch, Settings(sgd)).measure(0.0).on(base, "cpu")
    found = {"plain": run_passes(parse_pipeline(last), base)}
    assert found["plain"].timeline is not None
    limit = SHARE * max(found["plain"].timeline.peak_bytes)
    for way in WAYS[1:]:
        passes = f"insert-{way}{{memory-limit={limit} generator={told}}},{last}"
        try:
            found[way] = run_passes(parse_pipeline(passes), base)
        except PassError:  # it says by itself that no choice fits
            continue
    return found, batch


def measured(model: str, schedules: list[str]) -> dict[str, dict[str, Row]]:
    """What both ranks find, on rank 0."""
    found: dict[str, dict[str, Row]] = {}
    for schedule in schedules:
        ways, batch = plans(MODELS[model], schedule)
        found[schedule] = {}
        for way, plan in ways.items():
            peaks: list[int] = [0, 0]
            dist.all_gather_object(peaks, peak_of_malloc(plan, batch))
            assert plan.timeline is not None
            found[schedule][way] = list(plan.timeline.peak_bytes), peaks
    return found


def rank(model: str, schedules: list[str]) -> None:
    """What a rank does."""
    torch.set_num_threads(1)
    keep_freed_memory()
    with process_group(device="cpu"):
        found = measured(model, schedules)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)


def main(models: list[str], schedules: list[str]) -> None:
    """Print a table per model."""
    for model in models:
        print(f"{model:13} {'':10}   predicted MB      counted MB     counted above predicted")
        for schedule, ways in counted(model, schedules).items():
            for way, (want, got) in ways.items():
                pair = "   ".join("  ".join(f"{b / 1e6:6.2f}" for b in row) for row in (want, got))
                off = "  ".join(f"{g / w - 1:+6.1%}" for w, g in zip(want, got, strict=True))
                print(f"{schedule:13} {way:10} {pair}   {off}", flush=True)


if __name__ == "__main__":
    given = [a.split(",") for a in sys.argv[1:]]
    models, schedules = given + [list(MODELS), list(SCHEDULES)][len(given) :]
    if os.environ.get("PIPEC_IS_COUNTED"):
        rank(models[0], schedules)
    else:
        main(models, schedules)
