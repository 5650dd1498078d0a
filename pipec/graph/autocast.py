"""Autocast around what runs or traces a graph: a graph says all of its casts itself."""

import torch

from pipec.errors import PlanError
from pipec.graph.tensor_type import dtype_text


def autocast_dtype(kind: str) -> str:
    """Name of the dtype that autocast casts to on a kind of device; empty where it is off."""
    return dtype_text(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else ""


def refuse_autocast(kind: str, doing: str, hint: str) -> None:
    """Refuse autocast that the caller has switched on.

    Args:
        kind: Kind of device, ``cpu`` or ``cuda``.
        doing: What goes on inside.
        hint: What to write instead; ``{dtype}`` stands for that of autocast.

    Raises:
        PlanError: It is on.
    """
    if dtype := autocast_dtype(kind):
        raise PlanError(
            "autocast is on around pipec, and would be put on top of the graph's own casts",
            got=f"torch.autocast({kind!r}, torch.{dtype})",
            want=f"no autocast where {doing}",
            hint=hint.format(dtype=dtype),
        )
