"""DSPs of floating point: operators are counted by clang, when all loops but pipelined are gone."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.hls_check.compiled import parse
from benchmarks.hls_check.stages import stages_in
from pipec.backends.fpga.arithmetic import arithmetic
from pipec.backends.fpga.designs import designs_of
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from tests.fpga.design.models import graph_of


class Scores(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x.transpose(-1, -2) * 0.3


MODELS = {
    "depthwise": (nn.Conv2d(24, 24, 3, padding=1, groups=24), (1, 24, 9, 9)),
    "convolution": (nn.Conv2d(3, 8, 3, bias=False), (1, 3, 9, 9)),
    "narrow": (nn.Linear(40, 3), (5, 40)),
    "wide": (nn.Linear(6, 64), (5, 6)),
    "scores": (Scores(), (1, 12, 16)),
    "mean": (nn.AvgPool2d(3), (1, 8, 9, 9)),
    "global mean": (nn.AdaptiveAvgPool2d(1), (1, 8, 9, 9)),
    "few rows": (nn.Linear(7, 2, bias=False), (5, 7)),
}


@pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")
@pytest.mark.parametrize("name", MODELS)
def test_adders_and_multipliers_are_priced(tmp_path: Path, name: str) -> None:
    model, shape = MODELS[name]
    plan = make_plan(graph_of(model.eval(), torch.randn(shape)), parse_cluster("1xzcu102"), "fpga")
    (design,), cost = designs_of(plan), arithmetic("float32")
    emit(plan, tmp_path / "out")
    (stage,) = stages_in(tmp_path / "out")
    ops = Counter(i.op for function in parse(stage / "src").functions for i in function)
    found = ops["fadd"] * cost.add_dsp + ops["fmul"] * cost.mul_dsp
    priced = sum(e.nest.logic("float32")[0] for e in design.engines)
    assert found == priced
