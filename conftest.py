"""What every test and every example leaves as it was."""

from collections.abc import Iterator

import pytest

from pipec import registry


@pytest.fixture(autouse=True)
def _only_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone behind it, whichever test runs next in this process."""
    added = {group: dict(found) for group, found in registry._added.items()}
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_added", added)
        yield
