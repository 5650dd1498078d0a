"""How the property tests draw their examples, and where the suite keeps what is the user's.

`make test` draws the same examples each time, so that a run can be repeated; `make fuzz` draws
new ones (HYPOTHESIS_PROFILE=fuzz), to find what the fixed ones miss.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from functools import wraps
from types import SimpleNamespace

import pytest
from hypothesis import settings

from pipec.backends.fpga import toolchain

_STATE = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = _STATE.name  # plans of tests are no plans of the user's

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# With all of torch in memory, looking for cycles took a tenth of the processor time.
gc.set_threshold(50_000)


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What one process of the tests has compiled is there for all of them."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "compiled"
    folder.mkdir(exist_ok=True)

    @wraps(toolchain._directory.__wrapped__)
    def shared() -> SimpleNamespace:
        return SimpleNamespace(name=str(folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "_directory", shared)
        yield


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
