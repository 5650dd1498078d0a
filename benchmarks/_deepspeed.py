"""DeepSpeed's PipelineModule on the CPU: two ranks of its own, where it is installed.

torchrun --nproc-per-node 2 -m benchmarks._deepspeed transformer parameters
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks._ranks import ROOT, pin, say
from benchmarks._uneven import workload

SITE = ROOT / ".bench" / "deepspeed"
MICROBATCHES, STEPS, LR = 8, 12, 0.01
METHODS = ("uniform", "parameters")
PATIENCE = 180


def deepspeed_speed(model: str) -> str:
    """A line with samples/s for each way in which it cuts, or why there is none."""
    path = os.pathsep.join(filter(None, (str(ROOT), str(SITE), os.environ.get("PYTHONPATH"))))
    if not SITE.is_dir() and importlib.util.find_spec("deepspeed") is None:
        return f"{model:26} deepspeed not installed"
    environment = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu"}
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(SITE.parent / "extensions")}
    parts = []
    for method in METHODS:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "-m", "benchmarks._deepspeed", model, method]
        parts.append(f"{method} {_run(command, environment)}")
    return f"{model:26} deepspeed (by itself) " + ", ".join(parts)


def _run(command: list[str], environment: dict[str, str]) -> str:
    """What one run says of its speed, or the last error that it showed."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer in {PATIENCE} s"
    found = [line for line in done.stdout.splitlines() if line.startswith("SPEED ")]
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    return found[0][6:] if found else f"failed: {(errors or ['no result'])[-1][:120]}"


def layers_of(model: nn.Module) -> list[object]:
    """The benchmark's models as a list of layers."""
    first = [getattr(model, n) for n in ("embed", "stem", "patches") if hasattr(model, n)]
    layers = model.layers
    assert isinstance(layers, nn.ModuleList)
    pool: list[object] = [] if hasattr(model, "embed") else [lambda x: x.mean((2, 3))]
    return [*first, *layers, *pool, model.head]


def main(name: str, method: str) -> None:
    """Median samples/s of one rank pair."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    pin()
    chosen = workload(name)
    # all-reduces through shared memory: built from C++ on first use, and no part of a pipeline
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo")
    model, x, y = chosen.seeded(MICROBATCHES)
    net = PipelineModule(
        layers_of(model), num_stages=2, loss_fn=chosen.loss, partition_method=method
    )
    config = {
        "train_batch_size": len(x),
        "train_micro_batch_size_per_gpu": chosen.rows,
        "optimizer": {"type": "SGD", "params": {"lr": LR}},
        "steps_per_print": 10**9,
    }
    parameters = [p for p in net.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=net, model_parameters=parameters, config=config)

    def data() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for k in range(0, len(x), chosen.rows):
                yield x[k : k + chosen.rows], y[k : k + chosen.rows]

    feed, took = data(), []
    for _ in range(STEPS):
        torch.distributed.barrier()
        begin = time.perf_counter()
        engine.train_batch(data_iter=feed)
        torch.distributed.barrier()
        took.append(time.perf_counter() - begin)
    rows = len(x)
    say(f"SPEED {rows / statistics.median(took[2:]):.1f} best {rows / min(took):.1f} samples/s")
    say(json.dumps({"seconds": took}))


if __name__ == "__main__":
    main(*sys.argv[1:])
