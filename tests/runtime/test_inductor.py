"""Graphs of stages made fast by torch.compile's own compiler, down to machine code.

Compiled are one product and one elementwise node, forward and backward: the C++ compiler is what
takes time here. Other tests put cheaper compilers into its place.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from tests.autodiff.chain import Case, worst
from tests.runtime.pipelines import batches, scheduled, staged


def data(k: int) -> tuple[tuple[Tensor, ...], Tensor]:
    generator = torch.Generator().manual_seed(k)
    return (torch.randn(4, 8, generator=generator),), torch.randn(4, 3, generator=generator)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_stages_of_machine_code_train_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes
    monkeypatch.setattr("torch._inductor.config.cpp.simdlen", 1)  # no programs that try vectors
    torch.manual_seed(0)
    case = Case(lambda: nn.Sequential(nn.Linear(8, 3), nn.Tanh()), F.mse_loss, data)
    plan = staged(case, case.model(), 1)
    order = scheduled(plan, "1f1b", 2)

    def run(settings: Settings) -> tuple[list[float], dict[str, Tensor]]:
        pipeline = LocalPipeline(plan, batches(case, plan.graph), settings, schedule=order)
        return pipeline.run(2), pipeline.state_dict()

    losses, weights = run(Settings(sgd))
    fast = Settings(sgd, compiled=lambda graph: torch.compile(graph, dynamic=False))
    found, other = run(fast)
    kernels = [p for p in tmp_path.rglob("*.cpp") if "kernel(" in p.read_text()]
    assert sum(p.with_suffix(".so").exists() for p in kernels) >= 2, "F and B were not compiled"
    assert found == pytest.approx(losses, rel=1e-5)
    assert worst(other, weights) < 1e-5
