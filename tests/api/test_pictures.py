"""A stage's graph for other tools: networkx, GraphML, Graphviz."""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest
import torch
from torch import nn

import pipec


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.one(x).relu()) + x * y
        return found


@pytest.fixture(scope="module")
def stage() -> pipec.Stage:
    return pipec.compile(Residual(), (torch.zeros(2, 8),) * 2, "1xcpu").stages[0]


def test_the_view_has_every_value_and_every_reader(stage: pipec.Stage) -> None:
    view = stage.graph.networkx()
    assert sorted(data["op"] for _, data in view.nodes(data=True)) == [
        "aten.add.Tensor",
        "aten.linear.default",
        "aten.linear.default",
        "aten.mul.Tensor",
        "aten.relu.default",
        "placeholder",
        "placeholder",
    ]
    assert all(data["bytes"] == 2 * 8 * 4 for _, data in view.nodes(data=True))
    ops = nx.get_node_attributes(view, "op")
    longest = [ops[n].removeprefix("aten.") for n in nx.dag_longest_path(view)]
    assert longest == [
        "placeholder",
        "linear.default",
        "relu.default",
        "linear.default",
        "add.Tensor",
    ]
    assert view.number_of_edges() == 7


def test_graphml_is_read_back_by_networkx(stage: pipec.Stage, tmp_path: Path) -> None:
    view = stage.graph.networkx()
    again = nx.read_graphml(pipec.draw(stage, tmp_path / "stage.graphml"))
    assert {n: again.nodes[n] for n in again} == {n: view.nodes[n] for n in view}
    assert set(again.edges) == set(view.edges)


def test_dot_names_inputs_ops_and_readers(stage: pipec.Stage, tmp_path: Path) -> None:
    text = pipec.draw(stage, tmp_path / "stage.dot").read_text()
    assert '"x" [label="x", shape=ellipse];' in text
    assert 'label="aten.relu.default\\n' in text
    assert text.count(" -> ") == 7
    assert text.count("shape=ellipse") == 2


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_graphviz_draws_every_node_and_edge(stage: pipec.Stage, tmp_path: Path) -> None:
    drawn = ElementTree.parse(pipec.draw(stage, tmp_path / "stage.svg"))
    kinds = [part.get("class") for part in drawn.iter() if part.get("class")]
    view = stage.graph.networkx()
    assert kinds.count("node") == view.number_of_nodes()
    assert kinds.count("edge") == view.number_of_edges()
    titles = {t.text for t in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert set(view.nodes) <= titles
