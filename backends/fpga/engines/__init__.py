"""Every kind of engine: one file each says all that is known of it (`base.Nest`).

All files of this folder are imported, so that a new one is known by being here.
"""

from importlib import import_module
from pkgutil import iter_modules

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
