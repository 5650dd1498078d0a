"""What kinds of engines are tested by, they say themselves: sanitizers, intervals and depths."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.hls_check.compiled import intervals, parse
from benchmarks.hls_check.found import names_in
from pipec.backends.fpga.banks import ddr_ports
from pipec.backends.fpga.csim import build as csim_build
from pipec.backends.fpga.emit.stage import Golden, write_stage
from pipec.backends.fpga.engines.base import Nest
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.compiler.sizes import run_graph
from tests.fpga.design.models import SAMPLES, graph_of, made

needs_clang = pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang-14")


def written(kind: str, directory: Path) -> Path:
    """The stage of a kind's sample, a few lanes wide."""
    model, x = made(kind)
    graph = graph_of(model, x)
    design = design_at(lower(graph), 80, name="stage")
    design = size_fifos(replace(design, ddr=ddr_ports(design)))
    inputs = {design.inputs[0].value: x}
    write_stage(design, directory, Golden(inputs, run_graph(graph, inputs)))
    return directory


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.usefixtures("compiled_for_users")
def test_sanitizers_find_nothing(kind: str, tmp_path: Path) -> None:
    stage = written(kind, tmp_path / "stage")
    command = [
        "make",
        "-s",
        "asan",
        "CXXFLAGS=" + " ".join(("-std=c++17", "-O0", *csim_build.FLAGS)),
    ]
    done = subprocess.run(command, cwd=stage, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    older = ["g++", "-std=c++14", "-fsyntax-only", *csim_build.FLAGS, *csim_build.INCLUDES]
    done = subprocess.run(
        [*older, *csim_build.SOURCES], cwd=stage, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_clang
@pytest.mark.parametrize("kind", SAMPLES)
def test_loops_reach_their_interval_within_their_depth(kind: str, tmp_path: Path) -> None:
    """And once more one stage short: that is noticed."""
    stage = written(kind, tmp_path / "stage")
    found = intervals(stage)
    assert [i for i in found if not i.ok] == []
    mine = [i for i in found if i.engine.endswith(f"_{kind}")]
    assert mine
    types = stage / "src" / "types.h"
    text = types.read_text()
    for loop in mine:
        old = re.compile(rf"(struct {loop.engine} \{{[^}}]*? DEPTH = )\d+")
        text = old.sub(rf"\g<1>{loop.depth - 1}", text)
    types.write_text(text)
    short = {i.engine: i.short for i in intervals(stage) if not i.ok}
    assert short == {i.engine: 1 for i in mine}


@needs_clang
@pytest.mark.parametrize("kind", SAMPLES)
def test_counters_are_priced_as_they_are(kind: str, tmp_path: Path) -> None:
    """Integer additions of the loops in clang's IR, as `Nest.additions` says within a factor."""
    stage = written(kind, tmp_path / "stage")
    counted = []
    for function in parse(stage / "src").functions:
        marks = [i for i in function if i.callee == "@pipec_pipeline"]
        words = [n for n in names_in(function.name) if n not in ("engine", "detail")]
        if marks and words[:1] == [Nest.KINDS[kind].function or kind]:
            around = [sum(mark.block in loop.blocks for loop in function.loops) for mark in marks]
            inside = {label for loop in function.loops for label in loop.blocks}
            adds = [i for i in function if i.block in inside and i.op in ("add", "sub")]
            counted.append(len(adds) + max(around) - 1)
    assert counted
    assert max(counted) / 2 <= Nest.KINDS[kind].additions <= 2 * max(counted)
