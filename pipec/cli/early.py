"""What can be refused before torch is imported: a path that is not there, reported at once."""

import difflib
import re
from itertools import pairwise
from pathlib import Path

from pipec.errors import PipecError

MODELS = frozenset({"compile", "explore"})
PLANS = frozenset({"diff", "export", "inspect", "opt", "report", "run", "verify"})
_MODEL_FILE = re.compile(r"(.+\.py)(:\w*)?|.+\.onnx|.+\.pt2")
_NAME_OTHER_FILES = frozenset({"-o", "--output", "--loss"})


def check_first(command: str, words: list[str]) -> None:
    """Refuse a path that is not there: right behind the command, or a model's behind options.

    Args:
        command: Name of the subcommand.
        words: What follows it.

    Raises:
        PipecError: There is no such model or plan; near names are suggested.
    """
    if not words or "--help" in words or "-h" in words:
        return
    if command in MODELS or command == "profile":
        _check_model(words)
    elif command in PLANS and not words[0].startswith("-"):
        if command == "opt" and Path(words[0]).is_file():
            return  # a text
        _check_plan(Path(words[0]))


def _check_plan(path: Path) -> None:
    if (path / "plan.json").is_file():
        return
    if path.is_dir():
        got, hint = "no plan.json in it", "name the directory that was given to -o"
    else:
        got, hint = None, _near(path) or "compile a model first: pipec compile MODEL -o out"
    want = "a directory that `pipec compile -o` wrote"
    raise PipecError("no plan here", where=path, got=got, want=want, hint=_find_plan(path) or hint)


def _check_model(words: list[str]) -> None:
    options = words[0].startswith("-")
    named = [
        word
        for before, word in pairwise(["", *words])
        if _MODEL_FILE.fullmatch(word) and before not in _NAME_OTHER_FILES
    ]
    for text in named[:1] if options else words[:1]:
        file = re.fullmatch(r"(.+\.py)(:\w*)?", text)
        path = Path(file[1] if file else text)
        if path.exists() or (":" in text and not file):  # a front end may know other places
            return
        raise PipecError(
            "no such model file",
            got=str(path),
            want="MODEL.onnx, MODEL.pt2, path/file.py:factory or package.module:factory",
            hint=_near(path) or "check the path",
        )


def _find_plan(path: Path) -> str | None:
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
