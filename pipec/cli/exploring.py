"""Running a search with a progress bar: what ``explore`` and ``compile`` share."""

from rich.console import Console
from rich.progress import Progress

from pipec.explore.explore import Exploration
from pipec.explore.search import Search
from pipec.plan.model import Plan


def watched(search: Search, console: Console) -> tuple[Exploration, Plan]:
    """Run a search; how far it is is shown on ``console``."""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("predicting", total=None)

        def watch(done: int, total: int) -> None:
            """Move the bar; what comes behind the last candidate is the plan."""
            doing = "predicting" if done < total else "planning"
            bar.update(task, completed=done, total=total, description=doing)

        return search.run(watch)
