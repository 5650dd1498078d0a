"""DeepSpeed's PipelineModule on the CPU, within two ranks that others made, where it is installed.

It wants no other torch, so keep it apart: ``pip install --target .bench/deepspeed --no-deps
deepspeed hjson py-cpuinfo msgpack psutil pydantic pydantic-core annotated-types typing-inspection
einops tqdm packaging``.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._models import Cnn, Transformer
from benchmarks._ranks import ROOT
from benchmarks._uneven import DenseNet, TinyYolo, Vgg, workload

SITE = ROOT / ".bench" / "deepspeed"
METHODS = ("uniform", "parameters")
"""Its settings ``partition_method`` that look at a model."""


def find_deepspeed() -> bool:
    """Whether DeepSpeed can be imported, also from where the docstring says."""
    if SITE.is_dir() and str(SITE) not in sys.path:
        sys.path.append(str(SITE))
    return importlib.util.find_spec("deepspeed") is not None


def layers_of(model: nn.Module) -> list[object] | None:
    """The layers of a benchmark's model, or None where it is no chain of layers."""
    match model:
        case Transformer():
            return [model.embed, *model.layers, model.head]
        case Cnn():
            return [model.stem, *model.layers, lambda x: x.mean((2, 3)), model.head]
        case TinyYolo() | Vgg():
            return [*model.layers]
        case DenseNet():
            pooled = nn.Sequential(model.norm, nn.ReLU())
            return [*model.layers, pooled, lambda x: x.mean((2, 3)), model.head]
    return None


def deepspeed_step(
    name: str, layers: list[object], x: Tensor, y: Tensor, method: str, lr: float
) -> Callable[[], float | None]:
    """A step of SGD over all rows; its loss is that of the last rank.

    The method is one of `METHODS`, or what ``pipec export --to deepspeed`` prints.
    """
    os.environ |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(SITE.parent / "extensions")}
    import deepspeed
    from deepspeed.pipe import PipelineModule

    chosen = workload(name)
    # all-reduces through shared memory: built from C++ on first use, and no part of a pipeline
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    config = {
        "train_batch_size": len(x),
        "train_micro_batch_size_per_gpu": chosen.rows,
        "optimizer": {"type": "SGD", "params": {"lr": lr}},
        "steps_per_print": 10**9,
    }
    with redirect_stdout(sys.stderr):  # it prints how it cuts
        deepspeed.init_distributed("gloo", verbose=False)
        if method in METHODS:
            net = PipelineModule(layers, num_stages=2, loss_fn=chosen.loss, partition_method=method)
        else:
            found: dict[str, Any] = {}
            exec(method, found)
            assert found["PARTS"][-1] == len(layers)
            net = found["Cut"](layers, num_stages=2, loss_fn=chosen.loss)
        parameters = [p for p in net.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(model=net, model_parameters=parameters, config=config)

    def data() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for k in range(0, len(x), chosen.rows):
                yield x[k : k + chosen.rows], y[k : k + chosen.rows]

    feed = data()
    last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1

    def step() -> float | None:
        loss = float(engine.train_batch(data_iter=feed))
        return loss if last else None

    return step
