"""How the property tests draw their examples, and where the suite keeps what is the user's.

`make test` draws the same examples each time, so that a run can be repeated; `make fuzz` draws
new ones (HYPOTHESIS_PROFILE=fuzz), to find what the fixed ones miss.
"""

import gc
import os
import tempfile

import pytest
from hypothesis import settings

_STATE = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = _STATE.name  # plans of tests are no plans of the user's

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# With all of torch in memory, looking for cycles took a tenth of the processor time.
gc.set_threshold(50_000)


def pytest_collection_finish() -> None:
    """What has been imported until now stays: nobody looks through it for cycles."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Behind a file, what it leaves in caches stays too: a search took a second in the end."""
    if nextitem is None:  # the end would look once more
        gc.freeze()
    elif nextitem.path != item.path:
        gc.collect()
        gc.freeze()
