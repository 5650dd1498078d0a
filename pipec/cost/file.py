"""Cost files: measured seconds per node, written by ``pipec profile`` and read by ``--costs``.

```json
{"format": "pipec.costs", "version": 1, "machine": "x86_64, 2 threads",
 "ops": {"linear": "aten.linear.default float32[2, 8]"}, "nodes": {"linear": [256, ...]},
 "seconds": {"cpu": {"linear": 1.2e-5}}, "method": {"cpu": "measured"}}
```

``ops`` says what every node was, so that a file is never used for another graph.
"""

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from torch import fx

from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.files import read_data, write_file
from pipec.graph.ir import Graph, op_name, tensors

FORMAT, VERSION = "pipec.costs", 1


def save_costs(path: Path, table: CostTable, graph: Graph, machine: str = "") -> None:
    """Write a cost file.

    Raises:
        PipecError: The file cannot be written.
    """
    ops = {n.name: _signature(n) for n in graph.calls}
    head = {"format": FORMAT, "version": VERSION, "machine": machine, "ops": ops}
    write_file(path, json.dumps({**head, **table.to_json()}, indent=1) + "\n")


def load_costs(path: Path, graph: Graph) -> CostTable:
    """Read a cost file for a graph.

    Raises:
        CostError: The file cannot be read, or was measured on another graph.
    """
    try:
        data: Any = json.loads(read_data(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CostError(
            "the cost file cannot be read", where=path, got=error, hint="`pipec profile` writes one"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CostError("this is no cost file", where=path, want="what `pipec profile -o` writes")
    if data.get("version") != VERSION:
        raise CostError(
            "the cost file has another version", where=path, got=data.get("version"), want=VERSION
        )
    table = CostTable.from_json(data)
    head = dict.fromkeys(("format", "version", "machine", "ops"))
    if unread := next(_unread(data, head | to_builtins(table)), None):
        raise CostError("the cost file has an entry that means nothing", where=path, got=unread)
    _same_graph(data.get("ops"), graph, path)
    for kind, row in [*table.seconds.items(), *table.backward.items()]:
        name = next((n.name for n in graph.calls if not 0 <= row.get(n.name, -1) < inf), None)
        if name or kind not in table.method:
            raise CostError(
                f"the cost file has no time for every node on {kind}",
                where=f"{path}, {f'node {name}' if name else 'method'}",
                got=row.get(name or "", "none"),
                want="seconds, 0 or more, and the method by which they were found",
            )
    return table


def _unread(given: object, kept: object, where: str = "") -> Iterator[str]:
    """Names in a record that what was read of it does not have."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            place = f"{where}.{name}" if where else name
            yield from _unread(value, kept[name], place) if name in kept else [place]


def _same_graph(ops: object, graph: Graph, path: Path) -> None:
    measured = ops if isinstance(ops, dict) else {}
    wanted = {n.name: _signature(n) for n in graph.calls}
    if measured == wanted:
        return
    name = next(k for k in [*wanted, *measured] if wanted.get(k) != measured.get(k))
    raise CostError(
        "the costs were measured on another graph",
        where=f"{path}, node {name}",
        got=measured.get(name, "no such node"),
        want=wanted.get(name, "no such node"),
        hint="measure again with `pipec profile` and the same --shape, --training and --target",
    )


def _signature(node: fx.Node) -> str:
    """Op and result of a node: ``aten.relu.default float32[2, 8]``."""
    types = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors(node))
    return " ".join([op_name(node), *types])
