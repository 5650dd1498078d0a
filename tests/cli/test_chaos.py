"""Commands that are killed, starved or raced lose nothing and leave nothing: `make chaos`."""

import pytest

from benchmarks.chaos import World, build, try_cases

GROUPS, EACH = 3, 10


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", "set by build")
        return build(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_is_lost_and_nothing_is_left(world: World, group: int) -> None:
    assert not try_cases(world, range(group * EACH, (group + 1) * EACH))
