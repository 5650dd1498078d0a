"""Rules of weight versions."""

import pytest

from pipec.errors import ScheduleError
from pipec.schedule.endless import updates_per_round, window
from pipec.schedule.lower import lower
from pipec.schedule.registry import generate
from pipec.schedule.versions import VersionRule


@pytest.mark.parametrize("every", [-1, 1 << 31, 1 << 64])
def test_updates_that_no_table_holds_are_refused(every: int) -> None:
    with pytest.raises(ScheduleError, match="cannot update every"):
        VersionRule("stash", every)


def test_a_round_updates_stages_that_have_no_backward_of_their_own_too() -> None:
    name = "pipefb{backward_stages=1}"
    found = window(lambda count: lower(generate(name, 2, count)), microbatches=2)
    assert updates_per_round(found).tolist() == [2, 2]
