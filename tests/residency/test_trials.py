"""Trainings under limits: refused, or right and within the limit; freedom is never a loss."""

import pytest

from tests.residency.trials import PASSES, tried

# all models and schedules: python -m benchmarks offload_training


SHARES = {"1f1b": 0.85, "gpipe": 0.85, "zb-h1": 0.9, "zbv": 0.85}
"""Schedule to the limit; zb-h1 keeps what I yields for a W that comes late, whatever leaves."""


@pytest.mark.parametrize("schedule", SHARES)
def test_limits_hold_and_more_freedom_is_never_slower(schedule: str) -> None:
    found = {how: tried("dropout between", schedule, how, SHARES[schedule]) for how in PASSES}
    accepted = [t for t in found.values() if t.refused is None]
    assert accepted
    assert all(t.verdict == "ok" for t in accepted)
    assert found["both"].seconds <= min(t.seconds for t in found.values())
