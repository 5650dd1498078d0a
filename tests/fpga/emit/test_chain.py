"""Stages as processes joined by pipes: any order of writing, failures that end the others."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipec.backends.fpga.csim.run import CSimulation, load_stages, stream
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.steps import Step
from pipec.backends.fpga.toolchain import run_command
from pipec.errors import BackendError
from pipec.plan.model import ValueChannel
from tests.fpga.emit.harness import Case, design_of, rng

ROWS, LANES = 2_000, 16
"""Of a frame: more bytes than a pipe holds."""
LIMIT = 60.0
"""Seconds after which a process that waits for ever is given up."""


def add(name: str) -> list[Case]:
    """Two inputs, x0 and x1, and their sum y0."""
    x = rng().normal(size=(ROWS, LANES)).astype(np.float32)
    nest = Map(ROWS, LANES, LANES, (Step("add", "stream"),))
    return [Case(name, nest, [(x, LANES), (x, LANES)], [(2 * x, LANES)])]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[CSimulation]:
    """Stage 0 yields a_y0; stage 1 adds something to what it is sent."""
    folders = [tmp_path_factory.mktemp(name) for name in "ab"]
    for folder, name in zip(folders, "ab", strict=True):
        write_stage(design_of(add(name)), folder, golden=None)
    return load_stages(folders)


def frames(count: int) -> list[dict[str, torch.Tensor]]:
    names = ("a_x0", "a_x1", "b_x1")
    return [{n: torch.randn(ROWS, LANES) for n in names} for _ in range(count)]


def linked(value: str = "a_y0") -> ValueChannel:
    return ValueChannel(f"s0.s1.{value}", value, 0, 1, 4 * ROWS * LANES, (ROWS, LANES), "float32")


def renamed(stage: CSimulation, old: str, new: str) -> CSimulation:
    """The stage with an input called after the value that it is sent."""
    wires = tuple(
        replace(w, port=replace(w.port, value=new)) if w.port.value == old else w
        for w in stage.wires
    )
    return CSimulation(stage.stage, stage.binary, wires)


def test_frames_stream_through_pipes(stages: list[CSimulation]) -> None:
    chain = [stages[0], renamed(stages[1], "b_x0", "a_y0")]
    played = frames(3)
    found = stream(chain, [linked()], played)
    assert [set(outputs) for outputs in found] == [{"b_y0"}] * 3
    for values, outputs in zip(played, found, strict=True):
        assert torch.equal(outputs["b_y0"], values["a_x0"] + values["a_x1"] + values["b_x1"])


def test_an_input_that_comes_first_is_read_first(stages: list[CSimulation], tmp_path: Path) -> None:
    (stage, _), (values,) = stages, frames(1)
    wires = {w.port.value: w for w in stage.wires}
    for name in ("a_x0", "a_x1"):
        os.mkfifo(tmp_path / wires[name].file)

    def send() -> None:
        for name in ("a_x1", "a_x0"):  # the other way round than the stage names them
            data = stage.tokens(values, wires[name]).tobytes()
            (tmp_path / wires[name].file).write_bytes(data)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert run_command(stage.command(tmp_path, 1), timeout=LIMIT).returncode == 0
    sender.join()
    (found,) = stage.read_frames(tmp_path, wires["a_y0"])
    assert torch.equal(found, values["a_x0"] + values["a_x1"])


def test_a_stage_that_fails_ends_the_others(stages: list[CSimulation], tmp_path: Path) -> None:
    broken = CSimulation(tmp_path / "nowhere", Path("/bin/false"), stages[0].wires)
    behind = renamed(stages[1], "b_x0", "a_y0")
    with pytest.raises(BackendError, match="while all stages ran") as caught:
        stream([broken, behind], [linked()], frames(2))
    assert "nowhere" in str(caught.value)
    with pytest.raises(BackendError, match="while all stages ran"):
        stream(
            [stages[0], CSimulation(tmp_path / "nowhere", Path("/bin/false"), behind.wires)],
            [linked()], frames(2),
        )  # fmt: skip


def test_what_pipes_cannot_join_is_refused(stages: list[CSimulation]) -> None:
    behind = renamed(stages[1], "b_x0", "a_y0")
    both = ValueChannel("s0.s2.a_y0", "a_y0", 0, 2, 4 * ROWS * LANES, (ROWS, LANES), "float32")
    with pytest.raises(BackendError, match="a pipe has one reader"):
        stream([stages[0], behind, behind], [linked(), both], frames(1))
    with pytest.raises(BackendError, match="has no value"):
        stream([stages[0], behind], [], frames(1))
