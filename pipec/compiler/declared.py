"""Options that a target declares: fields of a frozen dataclass, on the command line and in Python.

```python
@dataclass(frozen=True)
class MyOptions(Options):
    unroll: int = option(1, "How often inner loops are unrolled.", least=1)
```
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """Options of a target: none. A subclass adds fields, each made by `option`."""


def option(
    default: object,
    text: str,
    *,
    explored: bool = False,
    least: float | None = None,
    bare: str | None = None,
) -> Any:
    """A field of `Options`.

    Args:
        default: Its value where the option is not given.
        text: What `--help` says of it.
        explored: Whether it changes what `pipec explore` predicts, which then takes it too.
        least: The smallest number that is allowed.
        bare: The value where the option is given without one.
    """
    meta = {"help": text, "explored": explored, "least": least, "bare": bare}
    return dataclasses.field(default=default, metadata=meta)


def defaults(options: type[Options], given: Mapping[str, object]) -> dict[str, object]:
    """Every option by name: as given, or its default."""
    return {f.name: given.get(f.name, f.default) for f in dataclasses.fields(options)}
