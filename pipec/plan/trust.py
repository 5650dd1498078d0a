"""Whether code that a plan names may run: only of plans that this user compiled, or trusts.

A plan is data. But to compare it with its model, the model's own file is run, and an FPGA stage's
C++ is compiled and run. So every compilation notes the digest of its ``plan.json``, which has the
hashes of all files beside it, in the user's own folder of states; of any other plan nothing runs
without ``--trust``.

```text
$XDG_STATE_HOME/pipec/compiled      ~/.local/state/pipec/compiled: a SHA-256 per line
```
"""

import os
from pathlib import Path

from pipec.errors import PipecError, PlanError
from pipec.files import write_file
from pipec.plan.manifest import PLAN, sha256_of

_MOST = 10_000
"""Plans that are remembered; the oldest are forgotten first."""


def remember(directory: Path) -> None:
    """Note that this user has compiled the plan in a directory; nothing if there is no home."""
    try:
        file = _ledger()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = file.read_text(encoding="ascii").split() if file.is_file() else []
        lines = [*known, sha256_of(directory / PLAN)][-_MOST:]
        write_file(file, "\n".join(lines) + "\n")
    except (PipecError, OSError, RuntimeError, UnicodeError):
        return  # then `--trust` is needed


def is_own(directory: Path) -> bool:
    """Whether this user has compiled the plan in a directory."""
    try:
        return sha256_of(directory / PLAN) in _ledger().read_text(encoding="ascii").split()
    except (OSError, RuntimeError, UnicodeError):
        return False


def check_trusted(directory: Path, what: str | None, *, trust: bool) -> None:
    """Refuse to run what a plan of somebody else names; None is nothing.

    Raises:
        PlanError: The plan is not this user's own.
    """
    if what is None or trust or is_own(directory):
        return
    raise PlanError(
        "this plan was not compiled here, and it would run code",
        where=directory,
        got=what,
        hint="read it, then give --trust; or --model FILE, a model that you trust",
    )


def _ledger() -> Path:
    folder = os.environ.get("XDG_STATE_HOME")
    base = Path(folder) if folder else Path.home() / ".local" / "state"
    return base / "pipec" / "compiled"
