"""What can be refused before torch is imported: a path that is not there, answered at once."""

import difflib
import re
from pathlib import Path

from pipec.errors import PipecError

MODELS = frozenset({"compile", "explore"})
PLANS = frozenset({"diff", "export", "inspect", "opt", "report", "run", "verify"})


def check_first(command: str, words: list[str]) -> None:
    """Refuse a path that is not there, where it stands right behind the command.

    Args:
        command: Name of the subcommand.
        words: What follows it.

    Raises:
        PipecError: There is no such model or plan; near names are suggested.
    """
    if not words or words[0].startswith("-") or "--help" in words or "-h" in words:
        return
    if command == "opt" and Path(words[0]).is_file():
        return  # a text
    if command in PLANS:
        _check_plan(Path(words[0]))
    elif command in MODELS or command == "profile":
        _check_model(words[0])


def _check_plan(path: Path) -> None:
    if not path.is_dir():
        raise PipecError(
            "no plan here",
            where=path,
            want="a directory that `pipec compile -o` wrote",
            hint=_above(path) or _near(path) or "compile a model first: pipec compile MODEL -o out",
        )
    if not (path / "plan.json").is_file():
        raise PipecError(
            "no plan here",
            where=path,
            got="no plan.json in it",
            want="a directory that `pipec compile -o` wrote",
            hint=_above(path) or "name the directory that was given to -o",
        )


def _check_model(text: str) -> None:
    file = re.fullmatch(r"(.+\.py)(:\w*)?", text)
    path = Path(file[1] if file else text)
    if path.exists() or (not file and re.fullmatch(r"\w+(\.\w+)*:\w+", text)):
        return
    if file or path.suffix in (".onnx", ".pt2"):
        raise PipecError("no such model file", got=str(path), hint=_near(path) or "check the path")


def _above(path: Path) -> str | None:
    """The plan that a path is in."""
    found = (p for p in path.parents if (p / "plan.json").is_file())
    return next((f"did you mean {p}?" for p in found), None)


def _near(path: Path) -> str | None:
    """A name in the same folder that may be meant."""
    folder = path.parent
    names = [p.name for p in folder.iterdir() if p != path][:5000] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {folder / near[0]}?"
    return None if folder.is_dir() else f"there is no folder {folder} either"
