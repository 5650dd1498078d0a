"""Real processes under torchrun: the bits of one process, and what happens when one dies."""

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipec.plan.model import Plan
from pipec.runtime.builders import data_from_spec, optimizer_from_text
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline
from tests.autodiff.zoo import floats
from tests.runtime import jobs
from tests.runtime.pipelines import emitted
from tests.runtime.processes import alone, elastic, launch

ROOT = Path(__file__).parents[2]
BINARIES = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BINARIES}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}
DATA = """
import torch


def batch(number):
    g = torch.Generator().manual_seed(number)
    return {"input": torch.randn(4, 8, generator=g), "target": torch.randint(3, (4,), generator=g)}
"""


def run(*args: str | Path, check: bool = True) -> str:
    done = subprocess.run(
        list(map(str, args)), env=ENVIRONMENT, cwd=ROOT, text=True, timeout=400, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_processes_give_the_bits_of_one_process(world: int, tmp_path: Path) -> None:
    jobs.prepared(world, tmp_path)
    found = elastic(jobs.compared, world, tmp_path, ranks=world)[0]
    assert len(found) == len(jobs.RUNS[world])
    # with several ranks an all-reduce may add in another order
    assert all(error <= 1e-6 for error in found.values()), found


def test_messages_need_no_tags_where_every_link_has_a_group() -> None:
    found = elastic(jobs.with_a_group_per_link, ranks=2)
    assert found == {0: {"rank 0": 0.0}, 1: {"rank 1": 0.0}}


def test_a_schedule_can_be_exchanged_between_rounds() -> None:
    assert elastic(jobs.warmed_up, ranks=2) == {0: {"error": 0.0}, 1: {}}


def test_outputs_of_all_stages_meet_on_the_first_rank(tmp_path: Path) -> None:
    model = jobs.inference_plan(tmp_path / "out")
    found = elastic(jobs.inferred, tmp_path / "out", ranks=2)
    assert found[1] is None
    x = torch.stack([floats(4, 16)(k)[0][0] for k in range(6)])
    want = model(x)
    assert found[0].keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(found[0][name], value.detach())


def test_no_rank_holds_the_whole_model(tmp_path: Path) -> None:
    state = jobs.deep("cpu").state_dict()
    nbytes = sum(w.nbytes for w in state.values())
    for k, parts in enumerate([list(state)[:5], list(state)[5:]]):
        save_file({n: state[n] for n in parts}, tmp_path / f"{k}.safetensors")
    for taken, same in elastic(jobs.lazily, tmp_path, ranks=2).values():
        assert same
        assert nbytes / 2 <= taken < 0.75 * nbytes


def test_torchs_schedules_run_our_stages_and_its_runtime_our_csv() -> None:
    found = elastic(jobs.torchs_own_schedules, ranks=2)[0]
    assert len(found) == 4 + 2 * len(jobs.TORCH)
    assert all(error <= 1e-6 for error in found.values()), found


def test_torchs_wrappers_replicate_and_shard_our_stages() -> None:
    found = elastic(jobs.replicated, ranks=4)[0]
    assert found.keys() == jobs.WRAPPED.keys()
    assert all(error <= 1e-5 for error in found.values()), found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    (place / "data.py").write_text(DATA)
    return place


@pytest.fixture(scope="module")
def plan(place: Path) -> Plan:
    return emitted(place / "out", devices=2)


def test_the_command_starts_its_ranks_and_saves_the_models_state_dict(
    place: Path, plan: Plan
) -> None:
    saved, log, optimizer = place / "a.safetensors", place / "log", "adamw:lr=0.01"
    spec = f"{place}/data.py:batch"
    process = launch(
        ["run", place / "out", "--rounds", "2", "--optimizer", optimizer, "--data", spec,
         "--save", saved, "--metrics", log], place / "said", ROOT
    )  # fmt: skip
    process.join(240)
    out = (place / "said").read_text()
    assert process.exitcode == 0, out
    assert "step 1  loss" in out
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [0, 1]
    alone = LocalPipeline(plan, data_from_spec(spec), Settings(optimizer_from_text(optimizer)))
    alone.run(2)
    first, second = load_file(saved), alone.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert {"0.weight", "1.running_mean", "1.num_batches_tracked", "4.bias"} <= first.keys()


@pytest.mark.usefixtures("plan")
def test_the_emitted_script_trains(place: Path) -> None:
    script = place / "out" / "train.py"
    script.write_text(script.read_text().replace("ROUNDS = 100", "ROUNDS = 2"))
    elastic(jobs.script, [str(script)], place / "said", place, ranks=2)
    assert "step 1  loss" in (place / "said").read_text()
    assert (place / "trained.safetensors").is_file()


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize("option", ["--rounds", "--trace"])
def test_ranks_with_other_options_are_named(option: str, place: Path, tmp_path: Path) -> None:
    odd = {"--rounds": "3", "--trace": str(tmp_path / "trace.json")}[option]
    words = ["run", f"{place}/out", "--timeout", "60"]
    assert alone(jobs.command, tmp_path, [words, [*words, option, odd]], ranks=2) == [1, 1]
    for rank in (0, 1):
        said = (tmp_path / f"says{rank}").read_text()
        assert f"the ranks do not agree on {option}" in said
        assert f"; rank 1: {odd}" in said


def _launched(place: Path, folder: Path, *options: str) -> tuple[BaseProcess, list[str]]:
    """A launcher that has come to its first step, and the processes that it has started."""
    log = folder / "log"
    words = ["run", f"{place}/out", "--data", f"{place}/data.py:batch", "--rounds", "1000000"]
    process = launch([*words, *options, "-q", "--metrics", log], folder / "said", ROOT, forks=True)
    deadline = time.monotonic() + 240
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert log.exists()
    return process, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


@pytest.mark.usefixtures("plan")
def test_a_rank_that_is_stopped_is_named_by_the_launcher_within_the_timeout(
    place: Path, tmp_path: Path
) -> None:
    timeout, busy, victim = 8, 6, 1  # the seconds that a busy machine may need beyond
    process, ranks = _launched(place, tmp_path, "--timeout", str(timeout))
    os.kill(int(ranks[victim]), signal.SIGSTOP)
    begin = time.monotonic()
    process.join(240)
    assert time.monotonic() - begin < timeout + busy  # ranks alone were waited for 10 s more
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 1
    assert f"where: rank {1 - victim}, round " in said
    assert "got:   waiting for " in said
    assert f"hint:  rank {victim}: no sign of life" in said
    assert not any(map(_lives, ranks))


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_leaves_no_ranks(
    number: signal.Signals, place: Path, tmp_path: Path
) -> None:
    process, children = _launched(place, tmp_path)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(240)
    deadline = time.monotonic() + 240
    while any(map(_lives, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in children if _lives(pid)]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert len(children) == 2
    assert not left


def _lives(number: str) -> bool:
    """Whether a process runs still: one that has ended may wait for its parent."""
    try:
        return " Z " not in Path(f"/proc/{number}/stat").read_text().partition(")")[2][:4]
    except OSError:
        return False


@pytest.mark.usefixtures("plan")
def test_a_rank_that_is_alone_says_how_to_start(place: Path) -> None:
    script = place / "out" / "train.py"
    out = run(sys.executable, script, check=False)
    assert "this process is no rank of a group" in out
    assert "torchrun --nproc-per-node" in out
