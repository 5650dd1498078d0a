"""The error tree: every user mistake ends in one `PipecError` with what, where, got, want, hint.

```text
error: unit 'GBs' is not known
  where: cluster.toml, links[0].bandwidth
  got:   12 GBs
  want:  a number and one of B/s, KB/s, MB/s, GB/s, Gb/s
  hint:  write "12 GB/s"
```
"""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint at the name that is nearest to an unknown one, or what else may help."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def find_near(path: Path, otherwise: str = "check the path") -> str:
    """A hint at the file or folder that may be meant by a path where there is none."""
    folder = path.parent
    try:
        names = [p.name for p in folder.iterdir() if p != path][:5000]
    except FileNotFoundError:
        return f"there is no folder {folder} either"
    except OSError:  # a file in its place, or a folder that may not be read
        return otherwise
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {folder / near[0]}?" if near else otherwise


def first_line(error: BaseException) -> str:
    """The first line of an error's message, its class where it has none; at most 300 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def list_lines(lines: Sequence[object], most: int = 20) -> str:
    """Some facts of an error, each on a line of its own; of more than ``most`` only how many."""
    shown = [*map(str, lines[:most])]
    if len(lines) > most:
        shown.append(f"(+{len(lines) - most} more)")
    return "".join(f"\n    {line}" for line in shown)


class PipecError(Exception):
    """A mistake in the input or a limit that was reached, described in full.

    Args:
        what: One sentence that says what went wrong.
        where: File, line, node, stage or option that is at fault.
        got: What was found there.
        want: What would have been accepted.
        hint: One thing to try next.

    Example:
        >>> print(PipecError("no such device", got="vcu999", hint="run `pipec devices`"))
        no such device
          got:   vcu999
          hint:  run `pipec devices`
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        got: object = None,
        want: object = None,
        hint: str | None = None,
    ) -> None:
        if isinstance(got, OSError) and got.strerror:
            name = got.filename if isinstance(got.filename, str | Path) else None
            if name and isinstance(got, FileNotFoundError):
                hint = hint or find_near(Path(name))
            shown = name is None or str(name) == str(where)
            got = got.strerror.lower() + ("" if shown else f": {name}")
        self.what, self.where, self.got, self.want, self.hint = what, where, got, want, hint
        facts = {"where": where, "got": got, "want": want, "hint": hint}
        lines = [f"  {name + ':':<7}{fact}" for name, fact in facts.items() if fact is not None]
        super().__init__("\n".join([what, *lines]))

    def at(self, where: object) -> Self:
        """The same mistake, found at another place."""
        return type(self)(self.what, where=where, got=self.got, want=self.want, hint=self.hint)


class FrontendError(PipecError):
    """A model that cannot be read or traced."""


class NoLossError(FrontendError):
    """A model that is to be trained and has no loss."""


class GraphError(PipecError):
    """A graph that breaks a rule of the IR."""


class ClusterError(PipecError):
    """A device or cluster description that cannot be understood."""


class CostError(PipecError):
    """A cost file or cost model that does not fit the graph."""


class PartitionError(PipecError):
    """A cut that does not exist: limits that nothing fits, or a malformed cost graph."""


class ScheduleError(PipecError):
    """A schedule that is malformed, illegal, or deadlocks."""


class PassError(PipecError):
    """A pass that is unknown, wrongly configured, or broke the plan."""


class PlanError(PipecError):
    """A plan that cannot be loaded, or whose parts do not belong together."""


class BackendError(PipecError):
    """A plan that a backend cannot emit or run."""
