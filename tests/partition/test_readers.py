"""Both file formats are read; every malformed file gets one message that names the place."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipec.errors import PartitionError
from pipec.partition.formats.workload import read_workload


def node(number: int, **other: Any) -> dict[str, Any]:
    base = {"id": number, "supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": 2.0}
    return {**base, "isBackwardNode": 0, "size": 8.0, **other}


def edge(tail: int, head: int, cost: float = 0.5) -> dict[str, Any]:
    return {"sourceId": tail, "destId": head, "cost": cost}


def problem(nodes: list[Any], edges: list[Any], **other: Any) -> dict[str, Any]:
    head = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100.0}
    return {**head, "nodes": nodes, "edges": edges, **other}


def read(tmp_path: Path, content: object) -> Any:
    path = tmp_path / "graph"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_workload(path)


def test_json(tmp_path: Path) -> None:
    nodes = [node(7, colorClass=3), node(9, supportedOnFpga=False), node(4, colorClass=3)]
    work = read(tmp_path, problem(nodes, [edge(7, 9), edge(7, 4), edge(9, 4, 1.0)]))
    assert work.graph.names == ("7", "9", "4")
    assert work.graph.work.tolist() == [[2.0, float("inf"), 2.0], [4.0, 4.0, 4.0]]
    assert work.graph.group.tolist() == [0, -1, 0]
    assert work.graph.seconds.tolist() == [0.5, 1.0]
    assert [d.kind for d in work.devices()] == ["accelerator", "accelerator", "cpu"]
    assert [d.kind for d in work.devices(accelerators=1, cpus=0)] == ["accelerator"]


PROFILE = (
    "node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, "
    "activation_size=0.0, parameter_size=0.000\n"
    "node2 -- LSTM(4, 4) -- forward_compute_time=1.5, backward_compute_time=2.5, "
    "activation_size=[100.0; 28.0], parameter_size=64.000\n"
    "\tnode1 -- node2\n"
)


def test_profile(tmp_path: Path) -> None:
    graph = read(tmp_path, PROFILE).graph
    assert graph.names == ("node1", "node2")
    assert graph.work.tolist() == [[0.0, 0.004]]
    assert graph.edges().tolist() == [[0, 1]]
    assert graph.activation_bytes.tolist() == [0.0, 128.0]
    assert graph.weight_bytes.tolist() == [0.0, 64.0]


def without(field: str) -> dict[str, Any]:
    return {k: v for k, v in node(1).items() if k != field}


BAD = {
    "empty": ("", "empty"),
    "truncated": (json.dumps(problem([node(1)], []))[:-9], "line 1, column"),
    "no nodes": (problem([], []), "no nodes"),
    "no edges": ({"nodes": [node(1)], "maxFPGAs": 1, "maxCPUs": 0}, "field `edges`"),
    "no time": (problem([without("fpgaLatency")], []), r"nodes\[0\]"),
    "no id": (problem([without("id")], []), r"nodes\[0\]"),
    "twice": (problem([node(1), node(1)], []), "same id"),
    "twice, as number and text": (problem([node(1), node(2, id="1")], []), "same id"),
    "too long": ('{"maxFPGAs": ' + 5000 * "9" + "}", "malformed"),
    "text": (problem([node(1, fpgaLatency="2 ms")], []), "got `str`"),
    "negative": (problem([node(1, fpgaLatency=-1.0)], []), ">= 0"),
    "nan": (problem([node(1, size=float("nan"))], []), ">= 0"),
    "negative edge": (problem([node(1), node(2)], [edge(1, 2, -1)]), r"edges\[0\]"),
    "nowhere": (problem([node(1)], [edge(1, 5)]), "5"),
    "two prices": (problem([node(1), node(2)], [edge(1, 2, 1), edge(1, 2, 2)]), "1.0 and 2"),
    "cycle": (problem([node(1), node(2)], [edge(1, 2), edge(2, 1)]), "1 -> 2 -> 1"),
    "loop": (problem([node(1)], [edge(1, 1)]), "1 -> 1"),
    "back": (problem([node(1, isBackwardNode=1), node(2)], [edge(1, 2)]), "1 -> 2"),
    "count": (problem([node(1)], [], maxFPGAs=1.5), "Expected `int`"),
    "list": ([1, 2], "`object`"),
    "profile line": (PROFILE + "node3 -- Linear(", "line 4"),
    "profile field": (PROFILE.replace(", parameter_size=64.000", ""), "line 2"),
    "profile field twice": (
        PROFILE.replace("parameter_size=", "parameter_size=1, parameter_size="),
        "twice",
    ),
    "profile number": (PROFILE.replace("1.5", "fast"), "fast"),
    "profile edge": (PROFILE + "\tnode2 -- node9\n", "node9"),
    "profile cycle": (PROFILE + "\tnode2 -- node1\n", "node1 -> node2 -> node1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    with pytest.raises(PartitionError, match=message):
        read(tmp_path, content)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="cannot read"):
        read_workload(tmp_path / "absent.json")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_does_not_hide_json(tmp_path: Path, mark: str) -> None:
    # Some editors write the mark; the brace behind it tells the format.
    path = tmp_path / "cost.json"
    path.write_text(mark + '{"nodes": 1}', encoding="utf-8")
    with pytest.raises(PartitionError) as caught:
        read_workload(path)
    assert "neither a node nor an edge" not in str(caught.value)
