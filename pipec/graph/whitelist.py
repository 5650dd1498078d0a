"""Which ops a file may name: loading a graph runs no code and touches no file.

An op is admitted by a name of the form ``namespace.op.overload`` and only if

- its namespace is ``aten``, ``prims`` or ``pipec``, or one that the user named,
- it is an op of torch's dispatcher. TorchScript's own operators (``aten.save``, which writes a
  pickle to any path) hang in the same ``torch.ops`` tree and are none,
- it mutates nothing, and opens nothing (``aten.from_file``),
- it stands in the table of ops whose arguments are known to be checked (`pipec.graph.arguments`),
  or the user named its namespace.

``getitem`` is the one function that is no op. No module is imported for a file's sake: a namespace
exists because the user's own import defined it.
"""

import operator
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import torch

import pipec.graph.comm
import pipec.graph.eager
import pipec.graph.quantised  # noqa: F401 - these define ops
from pipec.errors import GraphError
from pipec.graph.arguments import table
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.torch_private import OpOverload, in_dispatcher, is_mutable

GETITEM = "getitem"
"""How a file writes `operator.getitem`."""

_NAME = re.compile(r"([A-Za-z]\w*)\.(\w+)\.(\w+)", re.ASCII)
_OPENS_OR_PRINTS = frozenset({"aten::from_file", "aten::_print"})


def resolve(
    name: str, allowed: Collection[str] = (), *, where: str | None = None
) -> Callable[..., Any]:
    """The op that a file calls ``name``.

    Raises:
        GraphError: The name is not admitted.

    Example:
        >>> str(resolve("aten.mm.default"))
        'aten.mm.default'
    """
    if name == GETITEM:
        return operator.getitem
    match = _NAME.fullmatch(name)
    if match is None:
        raise GraphError("not the name of an op", got=name, want="namespace.op.overload")
    namespace, op, overload = match.groups()
    if namespace not in OWN_NAMESPACES and namespace not in allowed:
        raise GraphError(
            f"the graph uses ops of {namespace!r}, which is not allowed",
            where=where,
            got=name,
            want=", ".join(sorted({*OWN_NAMESPACES, *allowed})),
            hint=f"if you trust its author: --allow-namespace {namespace}=MODULE, where MODULE is "
            "the Python module that defines these ops",
        )
    found = _lookup(namespace, op, overload)
    if name not in table() and namespace not in {"pipec", *allowed}:
        raise GraphError(
            "an op outside pipec's table of ops that check their arguments",
            where=where,
            got=name,
            hint=f"if you trust the plan's author: --allow-namespace {namespace}",
        )
    return found


@lru_cache(maxsize=4096)
def _lookup(namespace: str, op: str, overload: str) -> OpOverload:
    where = f"{namespace}.{op}.{overload}"
    if where == "pipec.onnx.default":
        import pipec.graph.opaque  # noqa: F401 - defines the op; costs the import of onnx
    found = getattr(getattr(getattr(torch.ops, namespace), op, None), overload, None)
    if not isinstance(found, OpOverload) or not in_dispatcher(found):
        hint = None
        if namespace not in OWN_NAMESPACES:
            hint = f"name the module that defines it: --allow-namespace {namespace}=MODULE"
        raise GraphError("torch has no such op", got=where, hint=hint)
    if is_mutable(found) or found.name() in _OPENS_OR_PRINTS:
        raise GraphError("an op with a side effect may not occur in a graph", got=where)
    return found
