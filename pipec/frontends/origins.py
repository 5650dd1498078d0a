"""Where a node came from, read off what `torch.export` notes on it."""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import PurePath

import torch
from torch import fx

from pipec.graph.eager import call_of
from pipec.graph.ir import Origin, op_name

OriginOf = Callable[[fx.Node], Origin | None]
"""Gives the origin of an exported node; None where the default should decide."""

_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')
_INTERNAL = (PurePath(torch.__file__).parent, PurePath(__file__).parents[1])
_CALL_NUMBER = re.compile(r"@\d+$")


def module_origin(node: fx.Node, prefix: str = "") -> Origin:
    """The innermost module that computed ``node``, and the line of its source.

    ``prefix`` is left out in front of paths.
    """
    eager = call_of(node)
    if eager is not None:
        return Origin(eager.name, type(eager.module).__name__)
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = next(reversed(stack.values()), ("", ""))
    path = _CALL_NUMBER.sub("", path)
    inside = f"{path}.".startswith(prefix)
    name = path[len(prefix) :] if inside else path
    op = kind if isinstance(kind, str) else kind.__qualname__
    known = bool(op) and (inside or bool(path))
    return Origin(
        name=name,
        op=op.rsplit(".", 1)[-1] if known else op_name(node),
        location=source_line(node.meta.get("stack_trace") or ""),
    )


@cache
def source_line(trace: str) -> str | None:
    """File and line of the innermost frame that is the user's, below its import root.

    Example:
        >>> source_line('File "/home/me/unknown/net.py", line 7, in forward')
        'net.py:7'
    """
    for file, line in reversed(_FRAME.findall(trace)):
        if not any(PurePath(file).is_relative_to(folder) for folder in _INTERNAL):
            return f"{_relative(file)}:{line}"
    return None


@cache
def _relative(file: str) -> str:
    """``file`` below the nearest entry of ``sys.path``; its bare name where there is none."""
    path = PurePath(file)
    roots = [r for entry in sys.path if entry and path.is_relative_to(r := PurePath(entry))]
    root = max(roots, key=lambda r: len(r.parts), default=path.parent)
    return path.relative_to(root).as_posix()
