"""A compiler toolkit for pipeline-parallel training and inference of deep networks.

```python
import pipec

plan = pipec.compile(model, inputs, devices="4xh100", schedule="1f1b")
plan.stages[1].module        # what stage 1 computes
print(plan.timeline)         # who works when
pipec.draw(plan, "plan.svg") # the same as a picture
plan.report("plan.html")     # one page to look at
plan.save("out")             # what `pipec verify out` and `pipec run out` take
```

Names are imported when they are used first; ``import pipec`` alone takes milliseconds.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipec.api.checking import partition as partition
    from pipec.api.checking import schedule as schedule
    from pipec.api.checking import verify as verify
    from pipec.api.drawing import draw as draw
    from pipec.api.planning import compile as compile  # noqa: A004
    from pipec.api.planning import explore as explore
    from pipec.api.planning import load as load
    from pipec.api.registering import register as register
    from pipec.api.reporting import report as report
    from pipec.cluster.cluster import Cluster as Cluster
    from pipec.compiler.backend import Backend as Backend
    from pipec.compiler.pass_base import Pass as Pass
    from pipec.errors import PipecError as PipecError
    from pipec.frontends.base import Frontend as Frontend
    from pipec.pipeline.pipeline import Pipeline as Pipeline
    from pipec.plan.model import Fact as Fact
    from pipec.plan.model import Plan as Plan
    from pipec.plan.model import Stage as Stage
    from pipec.plan.model import StageTiming as StageTiming
    from pipec.schedule.action import Action as Action
    from pipec.schedule.schedule import Schedule as Schedule

    __version__: str

_VERBS = {
    "explore": "planning",
    "partition": "checking",
    "report": "reporting",
    "schedule": "checking",
}
"""Functions that have the name of a package: the package itself can be called."""

_HOMES = {
    "compile": "api.planning",
    "load": "api.planning",
    "verify": "api.checking",
    "draw": "api.drawing",
    "register": "api.registering",
    "Action": "schedule.action",
    "Backend": "compiler.backend",
    "Cluster": "cluster.cluster",
    "Fact": "plan.model",
    "Frontend": "frontends.base",
    "Pass": "compiler.pass_base",
    "PipecError": "errors",
    "Pipeline": "pipeline.pipeline",
    "Plan": "plan.model",
    "Schedule": "schedule.schedule",
    "Stage": "plan.model",
    "StageTiming": "plan.model",
}
"""Name to the module that defines it."""

__all__ = ["__version__", *sorted([*_HOMES, *_VERBS])]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """A public name, imported now."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pipec")
    if name in _VERBS:
        return importlib.import_module(f"pipec.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'pipec' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"pipec.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)


class _CallablePackage(ModuleType):
    """A package that can be called: ``pipec.schedule("1f1b", stages=4, microbatches=8)``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _function(self)(*args, **options)

    @property
    def __wrapped__(self) -> Any:
        """The function, for `inspect.signature`."""
        return _function(self)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The function's, for `help`."""
        found: str | None = _function(self).__doc__
        return found


def _function(package: ModuleType) -> Any:
    name = package.__name__.removeprefix("pipec.")
    return getattr(importlib.import_module(f"pipec.api.{_VERBS[name]}"), name)


class _RootModule(ModuleType):
    """The module ``pipec``: its packages that are verbs too can be called once imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _VERBS and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _RootModule
