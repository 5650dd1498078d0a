"""Checkpoints on disk: what is damaged, of another model or half written is not gone on with."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipec.errors import PipecError, PlanError
from pipec.runtime.checkpoint import Checkpoints
from pipec.runtime.runner import LocalPipeline
from pipec.runtime.train import train
from tests.autodiff.chain import Case, worst
from tests.autodiff.zoo import CASES, floats, seeded
from tests.runtime.pipelines import staged
from tests.runtime.test_checkpoint import pipeline


def test_weights_of_a_checkpoint_are_safetensors_by_their_names(tmp_path: Path) -> None:
    case = CASES["mlp"]
    run = pipeline(case, staged(case, seeded(case), 3), "1f1b")
    train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors))
    found = load_file(tmp_path / "round-2/0.safetensors")
    weights = {n.removeprefix("weights/"): w for n, w in found.items() if n.startswith("weights/")}
    assert worst(weights, run.state_dict()) == 0


class Phased(nn.Module):
    """Trains complex numbers, in double precision too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        self.second = nn.Parameter(torch.randn(6, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.view_as_real(x * self.first).sum(-1)
        return torch.view_as_real(y * self.second).sum(-1).float()


def test_complex_weights_come_back(tmp_path: Path) -> None:
    case = Case(Phased, nn.functional.mse_loss, lambda k: ((torch.randn(2, 6),), torch.ones(2, 6)))
    plan = staged(case, seeded(case), 2)
    first, second = (pipeline(case, plan, "1f1b") for _ in range(2))
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    assert Checkpoints(tmp_path, second.executors).resume() == 1
    assert all(torch.equal(second.state_dict()[n], w) for n, w in first.state_dict().items())


def test_a_checkpoint_that_cannot_be_written_is_told_of_and_training_goes_on(
    tmp_path: Path,
) -> None:
    case, told = CASES["mlp"], list[str]()
    run = pipeline(case, staged(case, seeded(case), 3), "1f1b")
    checkpoints = Checkpoints(tmp_path / "saved", run.executors, tell=told.append)
    (tmp_path / "saved").rmdir()
    (tmp_path / "saved").touch()
    train(run, 2, checkpoints=checkpoints, every=1)
    assert [line.count("\n") for line in told] == [0, 0]
    assert all("cannot be written" in line and "round-" in line for line in told)
    failed = [checkpoints.failed]
    (tmp_path / "saved").unlink()
    checkpoints.save()
    checkpoints.wait()
    assert [*failed, checkpoints.failed] == [True, False]
    assert checkpoints.complete() == [2]


def test_a_directory_is_of_one_run_at_a_time(tmp_path: Path) -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 3)
    run = pipeline(case, plan, "1f1b")
    hold = "import sys, time, pathlib, pipec.files as f; l = f.Lock(pathlib.Path(sys.argv[1]));"
    hold += "print(flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        with pytest.raises(PlanError, match="another process writes here"):
            train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors))
        assert Checkpoints(tmp_path, run.executors).complete() == []
        assert train(run, 0, checkpoints=Checkpoints(tmp_path, run.executors)) == []
    finally:
        other.kill()
        other.communicate()
    train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors))
    both = [Checkpoints(tmp_path, run.executors) for _ in range(2)]
    for one in both:
        one.claim()
    assert both[0].complete() == [2]


def test_newer_checkpoints_of_another_run_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 2)
    old, new, again = (pipeline(case, plan, "1f1b") for _ in range(3))
    train(old, 3, checkpoints=Checkpoints(tmp_path, old.executors, keep=3), every=1)
    new.round()
    saved = Checkpoints(tmp_path, new.executors)
    with pytest.raises(PlanError, match=r"another run has saved a newer one here: .*round-3"):
        saved.save()
    assert saved.complete() == [1, 2, 3]
    (tmp_path / "round-3" / "0.safetensors").write_bytes(b"")
    saved = Checkpoints(tmp_path, again.executors, tell=lambda _: None)
    assert saved.resume() == 2  # and now it may write over what it has passed over
    train(again, 3, checkpoints=saved)
    assert saved.complete() == [2, 3]


def test_a_half_written_checkpoint_does_not_count(tmp_path: Path) -> None:
    case = CASES["mlp"]
    plan = staged(case, seeded(case), 3)
    run = pipeline(case, plan, "1f1b")
    train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors))
    (tmp_path / "round-9.part").mkdir()
    assert Checkpoints(tmp_path, run.executors).complete() == [2]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    for name in ("mlp", "cnn"):
        case = CASES[name]
        run = pipeline(case, staged(case, seeded(case), 3), "1f1b")
        checkpoints = Checkpoints(tmp_path, run.executors)
        if name == "cnn":
            with pytest.raises(PipecError, match="of another model"):
                checkpoints.resume()
        else:
            train(run, 1, checkpoints=checkpoints)


def test_a_model_with_the_same_weights_is_another_model_all_the_same(tmp_path: Path) -> None:
    def made(activation: type[nn.Module]) -> LocalPipeline:
        case = Case(
            lambda: nn.Sequential(nn.Linear(8, 8), activation(), nn.Linear(8, 3)),
            nn.functional.cross_entropy,
            floats(4, 8),
        )
        return pipeline(case, staged(case, seeded(case), 2), "1f1b")

    first = made(nn.Tanh)
    train(first, 1, checkpoints=Checkpoints(tmp_path, first.executors))
    with pytest.raises(PipecError, match="of another model"):
        Checkpoints(tmp_path, made(nn.ReLU).executors).resume()
    assert Checkpoints(tmp_path, made(nn.Tanh).executors).resume() == 1


def test_a_renamed_checkpoint_is_refused(saved: tuple[LocalPipeline, Path]) -> None:
    run, place = saved
    place.rename(place.with_name("round-7"))
    with pytest.raises(PipecError, match=r"of another round(.|\n)*round-7: 1: want 7"):
        Checkpoints(place.parent, run.executors).resume()


@pytest.mark.parametrize("harm", ["damaged", "renamed", "unsealed"])
def test_the_newest_good_checkpoint_is_used_and_the_bad_one_told(harm: str, tmp_path: Path) -> None:
    case, told = CASES["dropout"], list[str]()
    plan = staged(case, seeded(case), 2)
    whole, first, second = (pipeline(case, plan, "1f1b") for _ in range(3))
    train(whole, 5)
    train(first, 4, checkpoints=Checkpoints(tmp_path, first.executors, keep=2), every=2)
    newest = tmp_path / "round-4"
    if harm == "damaged":
        file = newest / "0.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    elif harm == "renamed":
        newest.rename(tmp_path / "round-30")
    else:
        (newest / "sha256.json").write_text("{}")
    checkpoints = Checkpoints(tmp_path, second.executors, keep=1, tell=told.append)
    train(second, 5, checkpoints=checkpoints, every=1)  # also before the round of the bad one
    assert worst(second.state_dict(), whole.state_dict()) == 0
    assert len(told) == 1
    assert told[0].startswith("going on from round-2: ")
    assert "\n" not in told[0]
    assert 5 in checkpoints.complete()
    assert checkpoints.resume() == 5 if harm != "renamed" else True


def test_what_is_kept_counts_only_what_can_be_read(tmp_path: Path) -> None:
    case = CASES["mlp"]
    run = pipeline(case, staged(case, seeded(case), 2), "1f1b")
    train(run, 2, checkpoints=Checkpoints(tmp_path, run.executors), every=1)
    for left in (2, 9):  # unreadable ones, one of them newer than all that this run will write
        (tmp_path / f"round-{left}").mkdir(exist_ok=True)
        (tmp_path / f"round-{left}" / "sha256.json").write_text("{")
    checkpoints = Checkpoints(tmp_path, run.executors)
    run.round()
    checkpoints.save()
    checkpoints.wait()
    assert checkpoints.complete() == [1, 2, 3, 9]
    assert checkpoints.resume() == 3


@pytest.fixture
def saved(tmp_path: Path) -> tuple[LocalPipeline, Path]:
    """A pipeline, and its checkpoint."""
    case = CASES["mlp"]
    run = pipeline(case, staged(case, seeded(case), 2), "1f1b")
    train(run, 1, checkpoints=Checkpoints(tmp_path, run.executors))
    return run, tmp_path / "round-1"


@pytest.mark.parametrize("file", ["sha256.json", "0.safetensors"])
def test_no_flipped_byte_goes_unseen(file: str, saved: tuple[LocalPipeline, Path]) -> None:
    run, place = saved
    whole = (place / file).read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        flipped = bytes([whole[at] ^ 1])
        (place / file).write_bytes(whole[:at] + flipped + whole[at + 1 :])
        with pytest.raises(PipecError, match=rf"(is damaged|has no digests)(.|\n)*{file}"):
            Checkpoints(place.parent, run.executors).resume()
    (place / file).unlink()
    with pytest.raises(PipecError, match=r"[Nn]o such file"):
        Checkpoints(place.parent, run.executors).resume()
    (place / file).write_bytes(whole)
    assert Checkpoints(place.parent, run.executors).resume() == 1


BEFORE = '{"files": {"0/__0_0.distcp": "51ab"}, "round": 1, "model": "8d10", "seal": "77e1"}'
"""What was written beside checkpoints of torch.distributed.checkpoint."""


@pytest.mark.parametrize("seal", [None, "{", "{}", BEFORE])
def test_a_checkpoint_without_digests_is_refused(
    seal: str | None, saved: tuple[LocalPipeline, Path]
) -> None:
    run, place = saved
    (place / "sha256.json").unlink()
    if seal is not None:
        (place / "sha256.json").write_text(seal)
    with pytest.raises(PipecError, match=r"has no digests"):
        Checkpoints(place.parent, run.executors).resume()
