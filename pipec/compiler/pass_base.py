"""What a pass is: a frozen dataclass from plan to plan, whose fields are its options."""

import dataclasses
import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from pipec.errors import PassError
from pipec.options import format_options, value_of
from pipec.plan.model import Fact, Plan


@dataclass(frozen=True)
class Pass(ABC):
    """Valid plan in, valid plan out; anything goes between.

    A subclass is a frozen dataclass. Its fields are its options, on the command line too:

    ==================  =======================================
    dataclass field     ``--passes`` text
    ==================  =======================================
    ``stages: int = 4`` ``partition{stages=4}``
    ``route: str``      ``insert-comm{route=relay}``
    ``exact: bool``     ``partition{exact=false stages=2}``
    ==================  =======================================

    Attributes:
        name: Name on the command line.
        requires: Facts that must hold before it runs.
        provides: Facts that hold after it ran.

    Example:
        >>> import pipec, torch
        >>> class CountNodes(pipec.Pass):
        ...     name = "count-nodes"
        ...     def run(self, plan):
        ...         return plan.replace(options={**plan.options, "nodes": len(plan.graph.calls)})
        >>> passes = ["default", CountNodes()]
        >>> plan = pipec.compile(torch.nn.Linear(4, 2), torch.zeros(1, 4), "1xv100", passes=passes)
        >>> plan.options["nodes"]
        1
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()

    @abstractmethod
    def run(self, plan: Plan) -> Plan:
        """The new plan; the very same object where nothing changed."""

    def __str__(self) -> str:
        """The pass as ``--passes`` text, options that differ from their defaults spelled out."""
        given = {
            f.name.replace("_", "-"): getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }
        return format_options(self.name, given)

    @classmethod
    def from_text(cls, options: typing.Mapping[str, str]) -> Self:
        """A pass from options as text.

        Raises:
            PassError: An unknown option, a value of the wrong type, or a missing option.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        hints = typing.get_type_hints(cls)
        values: dict[str, object] = {}
        for key, text in options.items():
            field = key.replace("-", "_")
            if field not in fields:
                known = ", ".join(f.replace("_", "-") for f in fields) or "none"
                raise PassError(f"pass {cls.name} has no such option", got=key, want=known)
            where = f"{cls.name}{{{key}=...}}"
            values[field] = value_of(hints[field], text, where, PassError)
        missing = [
            name
            for name, f in fields.items()
            if f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
            and name not in values
        ]
        if missing:
            raise PassError(f"pass {cls.name} wants an option", want=", ".join(missing))
        return cls(**values)
