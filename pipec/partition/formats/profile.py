"""PipeDream profiles (``graph.txt`` of Narayanan et al., SOSP'19).

One line per node, then one tab-indented line per edge; times in milliseconds, sizes in bytes::

    node1 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=3.0, \
activation_size=4096.0, parameter_size=1728.0
        node1 -- node2
"""

import re

from pipec.errors import PartitionError
from pipec.partition.costgraph import Value, cost_graph
from pipec.partition.formats.workload import ACCELERATOR, Workload

_NODE = re.compile(r"^(?P<name>\S+) -- (?:(?P<what>.*) -- )?(?P<costs>forward_compute_time=.*)$")
_EDGE = re.compile(r"^\s+(?P<tail>\S+) -- (?P<head>\S+)$")
_COST = re.compile(r"(?P<name>\w+)=(?P<number>\[[^]]*\]|[^,\s]+)")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def parse_profile(text: str, where: str) -> Workload:
    """Reads a profile: work is forward plus backward time, every node sends its activation.

    Input nodes cost nothing: their times in a profile are those of the data loader.

    Args:
        text: The file.
        where: Name of the file, for messages.

    Raises:
        PartitionError: The line that is malformed.
    """
    names: dict[str, int] = {}
    costs: list[list[float]] = []
    consumers: dict[int, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{where}, line {number}"
        node, edge = _NODE.match(line), _EDGE.match(line)
        if node:
            if node["name"] in names:
                raise PartitionError("two nodes have the same name", where=place, got=node["name"])
            names[node["name"]] = len(names)
            row = _costs(node["costs"], place)
            given = (node["what"] or "").startswith("Input")
            costs.append([0.0] * len(row) if given else row)
        elif edge:
            for end in (edge["tail"], edge["head"]):
                if end not in names:
                    raise PartitionError("an edge needs an unknown node", where=place, got=end)
            consumers.setdefault(names[edge["tail"]], []).append(names[edge["head"]])
        elif line.strip():
            raise PartitionError(
                "this line is neither a node nor an edge",
                where=place,
                got=line[:80],
                want="'name -- description -- forward_compute_time=..., backward_compute_time=..., "
                "activation_size=..., parameter_size=...' or a tab and 'name -- name'",
            )
    size = [row[2] for row in costs]
    graph = cost_graph(
        list(names),
        {ACCELERATOR: [(row[0] + row[1]) / 1000 for row in costs]},
        [Value(u, v, bytes=size[u], gradient_bytes=size[u]) for u, v in consumers.items()],
        weight_bytes=[row[3] for row in costs],
        activation_bytes=size,
    )
    return Workload(graph, priced=False)


def _costs(text: str, where: str) -> list[float]:
    every = [(match["name"], match["number"]) for match in _COST.finditer(text)]
    found, row = dict(every), list[float]()
    if len(found) < len(every):
        raise PartitionError("the node has a field twice", where=where, got=text[:100])
    for field in _FIELDS:
        if field not in found:
            raise PartitionError(f"the node lacks '{field}'", where=where, got=text[:100])
        # several outputs are written [1.0; 2.0]
        parts = [part for part in re.split(r"[\[\];,\s]+", found[field]) if part]
        try:
            number = sum(map(float, parts))
        except ValueError:
            number = -1.0
        if not parts or not 0 <= number < float("inf"):
            raise PartitionError(f"'{field}' must be >= 0", where=where, got=found[field])
        row.append(number)
    return row
