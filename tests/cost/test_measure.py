"""Measured costs: every node is run, the file fits only its own graph."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from pipec.cli.profile import command
from pipec.cost.count import count
from pipec.cost.file import load_costs, save_costs
from pipec.cost.measure import Measuring, measure, measure_costs
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.frontends.torch_module import from_module
from pipec.frontends.trace import Loss, trace
from pipec.graph.ir import Graph, Source
from tests.frontends.torch.zoo import make

FACTORY = "tests.frontends.torch.factories:classifier"
QUICK = Measuring(warmup=0, repeats=1)


def costs(graph: Graph) -> CostTable:
    return CostTable(count(graph), {"cpu": dict.fromkeys(count(graph), 1e-6)}, {"cpu": "measured"})


@pytest.mark.parametrize("name", ["bert", "mixtral", "resnet"])
def test_every_node_of_a_model_is_measured(name: str) -> None:
    loaded = from_module(*make(name))
    seen: list[str] = []
    seconds = measure(loaded.graph, loaded.example_inputs, QUICK, seen.append)
    calls = loaded.graph.calls
    assert list(seconds) == seen == [n.name for n in calls]
    assert all(s.forward >= 0 and s.backward == 0 for s in seconds.values())
    assert all(seconds[n.name].forward > 0 for n in calls if "linear" in n.name or "conv" in n.name)
    assert all(seconds[n.name].forward == 0 for n in calls if n.name.startswith("transpose"))


def test_backwards_are_measured_where_a_model_trains() -> None:
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 8, 3))
    loss = Loss(lambda out: out.square().mean() + out.argmax(1).to(out.dtype).mean())
    graph = trace(
        module.train(), (torch.randn(4, 3, 32, 32),), loss=loss, source=Source("memory", "")
    )
    table = measure_costs(graph, {graph.inputs[-1].name: torch.randn(4, 3, 32, 32)}, "cpu", QUICK)
    backward = table.backward_of("cpu")
    assert backward == table.backward["cpu"]
    assert all(backward[n.name] > 0 for n in graph.calls if "conv" in n.name or "relu" in n.name)
    assert all(backward[n.name] == 0 for n in graph.calls if "argmax" in n.name)
    first, second = (n.name for n in graph.calls if "conv" in n.name)
    assert table.nodes[first].backward == 1
    assert table.nodes[second].backward == 2
    assert CostTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_weights_without_data_are_made_up() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    loaded = from_module(module, torch.zeros(3, dtype=torch.int64))
    assert len(measure(loaded.graph, loaded.example_inputs, QUICK)) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there() -> None:
    loaded = from_module(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(CostError, match="no usable GPU"):
        measure(loaded.graph, loaded.example_inputs, Measuring("cuda"))


def test_a_missing_input() -> None:
    loaded = from_module(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(CostError, match="has no example"):
        measure(loaded.graph, {}, QUICK)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    graph = from_module(nn.Linear(2, 2), torch.ones(1, 2)).graph
    save_costs(tmp_path / "costs.json", costs(graph), graph, "here")
    assert load_costs(tmp_path / "costs.json", graph) == costs(graph)


def test_a_file_fits_only_its_graph(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    graph = from_module(nn.Linear(2, 2), torch.ones(1, 2)).graph
    save_costs(path, costs(graph), graph)
    other = from_module(nn.Linear(2, 2), torch.ones(3, 2)).graph
    with pytest.raises(CostError, match=r"another graph[^§]*float32\[1, 2\][^§]*float32\[3, 2\]"):
        load_costs(path, other)
    data = json.loads(path.read_text())
    measured = data["seconds"]
    for row in ({}, {"linear": -1.0}, {"linear": float("inf")}, {"linear": float("nan")}):
        path.write_text(json.dumps({**data, "seconds": {"cpu": row}}))
        with pytest.raises(CostError, match=r"no time for every node on cpu[^§]*node linear"):
            load_costs(path, graph)
    path.write_text(json.dumps({**data, "seconds": measured, "method": {}}))
    with pytest.raises(CostError, match=r"on cpu[^§]*method"):
        load_costs(path, graph)


@pytest.mark.parametrize(
    ("place", "got"), [((), "acumulate"), (("stages", "cpu", "key"), "stages.cpu.key.acumulate")]
)
def test_an_entry_that_means_nothing_is_refused(
    tmp_path: Path, place: tuple[str, ...], got: str
) -> None:
    """A name that is misspelt would be read as if it were not there."""
    path = tmp_path / "costs.json"
    graph = from_module(nn.Linear(2, 2), torch.ones(1, 2)).graph
    save_costs(path, costs(graph), graph)
    data = {**json.loads(path.read_text()), "stages": {"cpu": {"key": {"F": 1.0}}}}
    path.write_text(json.dumps(data))
    assert load_costs(path, graph).stages["cpu"]["key"].F == 1
    row = data
    for name in place:
        row = row[name]
    row["acumulate"] = 1.0
    path.write_text(json.dumps(data))
    with pytest.raises(CostError, match=rf"means nothing[^§]*got: +{got}"):
        load_costs(path, graph)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        (5000 * "[", "cannot be read"),
        (5000 * "9", "cannot be read"),
        ("[]", "no cost file"),
        ('{"format": "pipec.costs", "version": 9}', "another version"),
        ('{"format": "pipec.costs", "version": 1}', "malformed"),
    ],
)
def test_damage_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    graph = from_module(nn.Linear(2, 2), torch.ones(1, 2)).graph
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(CostError, match=message):
        load_costs(tmp_path / "costs.json", graph)


def test_the_command_writes_what_compile_reads(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    result = CliRunner().invoke(command, [FACTORY, "-o", str(path), "--repeats", "1"])
    assert result.exit_code == 0, result.output
    assert "Linear" in result.output
    from pipec.frontends.base import LoadOptions
    from pipec.frontends.load import load

    table = load_costs(path, load(FACTORY, LoadOptions(training=True)).graph)
    assert table.method == {"cpu": "measured"}
