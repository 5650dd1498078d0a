"""DSPs of floating point: operators are counted by clang, when all loops but pipelined are gone."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.hls_check.compiled import parse
from benchmarks.hls_check.stages import stages_in
from pipec.backends.fpga.arithmetic import arithmetic, step_cost
from pipec.backends.fpga.designs import designs_of
from pipec.backends.fpga.engines.norm import ROW_OPS
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from tests.fpga.design.models import graph_of
from tests.fpga.emit.harness import row_unit, write_row_unit
from tests.sampling import each


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


needs_clang = pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")


def operators_in(stage: Path) -> float:
    """DSPs of all operators of floating point in a stage."""
    cost, found = arithmetic("float32"), Counter[str]()
    for i in (i for function in parse(stage / "src").functions for i in function):
        found[i.callee.removeprefix("@llvm.").removesuffix(".f32") or i.op] += 1
    adders = found["fadd"] + found["fsub"]
    called = sum(found[op] * step_cost(op, "float32")[0] for op in ("exp", "log", "pow"))
    return adders * cost.add_dsp + found["fmul"] * cost.mul_dsp + called


@needs_clang
@pytest.mark.parametrize("name", MODELS)
def test_adders_and_multipliers_are_priced(tmp_path: Path, name: str) -> None:
    model, shape = MODELS[name]
    plan = make_plan(graph_of(model.eval(), torch.randn(shape)), parse_cluster("1xzcu102"), "fpga")
    (design,) = designs_of(plan)
    emit(plan, tmp_path / "out")
    (stage,) = stages_in(tmp_path / "out")
    assert operators_in(stage) == sum(e.nest.logic("float32")[0] for e in design.engines)


@needs_clang
@pytest.mark.parametrize(
    ("op", "shape"), each(ROW_OPS, [(1, 30), (3, 9), (4, 64), (4, 20)], times=2)
)
def test_row_units_are_priced(tmp_path: Path, op: str, shape: tuple[int, int]) -> None:
    """What sums up a row has 1 to 8 results in turn; a row of two to some power has no divider."""
    nest = row_unit(op, *shape, 200.0)
    write_row_unit(nest, tmp_path)
    assert operators_in(tmp_path) == nest.logic("float32")[0]
