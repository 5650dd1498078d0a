"""Trainings under limits: refused, or right and within the limit; freedom is never a loss."""

import re

import pytest

from benchmarks import mincut
from pipec.compiler import refine
from tests.residency.trials import PASSES, planned, timed, tried

# all models and schedules: python -m benchmarks offload_training


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is right within limits, and never slower, is so after a search of any length."""
    monkeypatch.setattr(refine, "WORK", 8_000)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zbv"])
def test_limits_hold_and_more_freedom_is_never_slower(schedule: str) -> None:
    found = {how: tried("dropout between", schedule, how, 0.85) for how in PASSES}
    accepted = [t for t in found.values() if t.refused is None]
    if schedule == "zb-h1":  # I yields what the last stage's late W reads, whatever leaves
        told = [t.refused or "1f1b with 4 microbatches fits" for t in found.values()]
        assert all("1f1b with 4 microbatches fits" in text for text in told)
        plain = timed(planned("dropout between", schedule), schedule, 4).timeline
        assert plain is not None
        least = [int(n.replace(",", "")) for n in re.findall(r"got: +([\d,]+) bytes", str(told))]
        assert least
        assert max(least) <= max(plain.peak_bytes)  # the plan as it is was tried too
    else:
        assert accepted
    assert all(t.verdict == "ok" for t in accepted)
    assert found["both"].seconds <= min(t.seconds for t in found.values())


def test_what_f_keeps_is_not_taken_from_i_where_one_op_gives_both() -> None:
    """A layer norm's result is kept and its statistics are computed again, by I for W too."""
    assert tried("attention", "zbv", "recompute", 0.9).verdict == "ok"


def test_what_fits_by_offload_alone_fits_where_values_may_be_computed_again_too() -> None:
    """A stage that only computes again has no room for what its own problem finds at first."""
    found = {how: tried("attention", "gpipe", how, 0.45) for how in ("offload", "both")}
    assert [t.verdict for t in found.values()] == ["ok", "ok"]
    assert found["both"].seconds <= found["offload"].seconds


def test_the_models_input_alone_is_kept_where_it_serves_several_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them is as large as the input, so that neither alone gains anything."""
    monkeypatch.setattr(mincut, "LAYERS", 1)
    nbytes = mincut.BATCH * mincut.LENGTH * mincut.WIDTH * 4
    one = mincut.work()
    held, again = mincut.ours(one, nbytes)
    assert held == nbytes
    assert 0 < again < one.forward_seconds
