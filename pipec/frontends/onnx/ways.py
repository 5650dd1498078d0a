"""The ways in which a node can be run, best first."""

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
