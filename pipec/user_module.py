"""Code that is not ours: files that a user names (a factory, a loss, a data function), plug-ins."""

import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType

import torch

from pipec.errors import FrontendError, PipecError

_OWN = str(Path(__file__).resolve().parent)
_TORCH = str(Path(torch.__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")


class _Source(SourceFileLoader):
    """Compiles a file each time: Python's compiled one may be of a second ago, of as many bytes."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def module_of(path: Path, kind: str) -> ModuleType:
    """Run a file as a module, its neighbours importable, as ``python path/file.py`` has them.

    Raises:
        Exception: Whatever the file raises.
    """
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"pipec_{kind}_{path.stem}"
    loader = _Source(name, str(path.resolve()))
    found = importlib.util.spec_from_file_location(name, path.resolve(), loader=loader)
    assert found is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    loader.exec_module(module)
    return module


@contextmanager
def user_code(
    doing: str, hint: str | None = None, error: type[PipecError] = FrontendError
) -> Iterator[None]:
    """Turn whatever a user's code raises inside the block into one error.

    What it prints goes to standard error: standard output is for results, such as JSON.

    The error names the innermost line that is neither pipec's nor torch's. This is the one place
    that catches everything: code that is not ours may raise anything.

    Args:
        doing: What was attempted, ``the factory raised`` for example.
        hint: What to try.
        error: The error.

    Raises:
        PipecError: The block raised something other than a `PipecError`; it is an ``error``.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except PipecError:
        raise
    except (Exception, SystemExit) as raised:
        text = str(raised).strip().split("\n\n")[0] or "no message"
        raise error(
            doing, where=_culprit(raised), got=f"{type(raised).__name__}: {text}", hint=hint
        ) from None


def _culprit(error: BaseException) -> str | None:
    """File and line of the innermost frame of the user's own code, if there is one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(extract_tb(error.__traceback__)):
        file = frame.filename
        standard = file.startswith(_STANDARD) and "site-packages" not in file
        if not standard and not file.startswith((_OWN, _TORCH, "<")):
            return f"{file}:{frame.lineno} in {frame.name}"
    return None
