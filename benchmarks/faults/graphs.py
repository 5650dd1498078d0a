"""What can be wrong with the graph of a stage: ``graphs/<key>/F.json``, ``B``, ``I`` and ``W``."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Change = tuple[str, str, tuple[Any, ...], object]
"""Kind of the fault, where, the keys of what changes in the file, and what is there then."""

SYMMETRIC = ("aten.add.", "aten.mul.")


def graph_changes(path: Path) -> Iterator[Change]:
    """Every fault of one file, types as they were; some change nothing that is computed."""
    graph: Json = json.loads(path.read_text("utf-8"))
    types = {f"%{row['node']}": row["type"] for row in graph["inputs"]}
    types |= {f"%{row['name']}": row.get("type") for row in graph["nodes"]}
    stands_for = dict[str, str]()
    for k, node in enumerate(graph["nodes"]):
        name, reads = f"%{node['name']}", [a for a in node["args"] if isinstance(a, str)]
        for kind, args in _wrong_args(node, types):
            yield kind, node["name"], ("nodes", k, "args"), args
        for read in reads:
            if read in stands_for:
                args = [stands_for[read] if a == read else a for a in node["args"]]
                yield "an op left out", read[1:], ("nodes", k, "args"), args
        if same := [r for r in reads if types.get(r) == types[name]]:
            stands_for[name] = same[0]
    for side in ("inputs", "outputs"):
        for a, b in combinations(range(len(graph[side])), 2):
            rows = [*graph[side]]
            nodes, kinds = ([rows[k][key] for k in (a, b)] for key in ("node", "kind"))
            if kinds[0] == kinds[1] and types[f"%{nodes[0]}"] == types[f"%{nodes[1]}"]:
                rows[a], rows[b] = ({**rows[k], "name": rows[a + b - k]["name"]} for k in (a, b))
                where = f"{nodes[0]}, {nodes[1]}"
                yield f"two {kinds[0].replace('_', ' ')}s swapped", where, (side,), rows


def _wrong_args(node: Json, types: dict[str, str]) -> Iterator[tuple[str, list[Any]]]:
    args: list[Any] = node["args"]
    if len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        alike = args[0] != args[1] and types[args[0]] == types[args[1]]
        if alike and not node["target"].startswith(SYMMETRIC):
            yield "two operands swapped", [args[1], args[0], *args[2:]]
    for k, a in enumerate(args):
        if isinstance(a, float) and abs(a) > 1e-3:
            yield "a number doubled", [*args[:k], 2 * a, *args[k + 1 :]]
