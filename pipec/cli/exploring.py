"""Running a search that says how far it is: what ``explore`` and ``compile`` share."""

from rich.console import Console

from pipec.explore.explore import Exploration
from pipec.explore.search import Search
from pipec.plan.model import Plan


def run_watched(search: Search, console: Console) -> tuple[Exploration, Plan]:
    """Run a search; how far it is is shown on ``console``."""
    with console.status("predicting") as status:
        return search.run(
            lambda done, total: status.update(
                f"predicting: {done} of {total}" if done < total else "planning"
            )
        )
