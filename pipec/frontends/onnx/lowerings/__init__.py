"""One small torch function per ONNX op, by family; importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

LOADED = tuple(import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
"""The modules of lowerings."""
