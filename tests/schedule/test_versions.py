"""Rules of weight versions."""

import pytest

from pipec.errors import ScheduleError
from pipec.schedule.versions import VersionRule


@pytest.mark.parametrize("every", [-1, 1 << 31, 1 << 64])
def test_updates_that_no_table_holds_are_refused(every: int) -> None:
    with pytest.raises(ScheduleError, match="cannot update every"):
        VersionRule("stash", every)
