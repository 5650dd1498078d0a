"""Files of Python that a user names: a model's factory, a loss, a data function."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_of(path: Path, kind: str) -> ModuleType:
    """Run a file as a module, its neighbours importable, as ``python path/file.py`` has them.

    Args:
        path: The file; it is there.
        kind: What it is for, part of the module's name.

    Raises:
        Exception: Whatever the file raises.
    """
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"pipec_{kind}_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path.resolve())
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
