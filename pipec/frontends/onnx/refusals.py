"""The ways in which a node can be run, and those in which the interpreter says no.

`Refused` lets the interpreter try the next way. Any other exception in a lowering is a mistake and
is never taken for a refusal: a broad fallback would hide it behind an opaque node that computes the
right numbers and has no gradient.
"""

from enum import StrEnum


class Way(StrEnum):
    """How a node was run; a node that needed several counts as the last of them."""

    STRUCTURAL = "structural"
    FOLDED = "folded"
    NATIVE = "native"
    FUNCTION = "function"
    ORT = "ort"
    REFERENCE = "reference"


def worst(ways: set[Way]) -> Way:
    """The last of the ways in the order above; `Way.STRUCTURAL` of none.

    Example:
        >>> worst({Way.FOLDED, Way.ORT, Way.NATIVE})
        <Way.ORT: 'ort'>
    """
    return max(ways, key=list(Way).index, default=Way.STRUCTURAL)


class Refused(Exception):  # noqa: N818 - a way is refused, which is no error
    """This way of running a node does not apply.

    Args:
        reason: Why, to end in the user's error message.
        final: No other way may be tried: it would compute something else than the file says.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.final = reason, final


class NeedKnown(Refused):
    """A number is needed where the value is traced.

    Args:
        value: The traced tensor.
    """

    def __init__(self, value: object) -> None:
        super().__init__("it needs a value at compile time that is only known at run time")
        self.value = value


class Demand(Exception):  # noqa: N818 - a request, not an error
    """The evaluation must start again with some names known from the beginning.

    Args:
        names: Initialisers or graph inputs.
    """

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names
