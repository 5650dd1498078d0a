"""Costs of stages and messages: lines between sizes, records, the way through a file and back."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipec.cost.count import count
from pipec.cost.file import load_costs, save_costs
from pipec.cost.stage import MessageCost, StageCost
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.frontends.torch_module import from_module

COST = MessageCost((100, 200), (5.0, 7.0), (1.0, 1.5), (0.5, 1.0), slots=2)


@given(st.integers(0, 1000))
def test_the_parts_of_a_message_add_up_to_one_way(nbytes: int) -> None:
    whole = COST.sending(nbytes) + COST.on_the_way(nbytes) + COST.receiving(nbytes)
    one_way = 5.0 + 2.0 * (max(nbytes, 100) - 100) / 100
    assert whole == pytest.approx(one_way)


def test_ends_that_take_longer_than_the_way_leave_nothing_for_it() -> None:
    cost = replace(COST, one_way=(1.0, 2.0))
    assert cost.on_the_way(150) == 0.0
    assert replace(COST, nbytes=(100,), one_way=(5.0,), send=(1.0,), receive=(1.0,)).sending(9) == 1


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_a_measured_all_reduce_passes_the_bytes_of_a_ring_on(members: int, nbytes: int) -> None:
    slow = MessageCost((0, 8), (0.0,) * 2, (0.0,) * 2, (0.0,) * 2, sums=(2.0, 10.0))  # 2 + n
    ring = 2 * (members - 1) / members * nbytes
    assert slow.all_reduce(nbytes, members) == pytest.approx(2 * (members - 1) + ring)
    assert slow.all_reduce(nbytes, 1) == 0.0
    assert COST.all_reduce(nbytes, members) is None


def table() -> CostTable:
    stage = StageCost(1.0, 2.0, 0.5, 1.5, 0.1, 0.2, 0.3, 64, {"B": 5, "first B": 3})
    return CostTable({}, {}, {}, {"cpu": {"key": stage}}, {"cpu": COST})


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert CostTable.from_json(table().to_json()) == table()
    graph = from_module(nn.Linear(2, 2), torch.ones(1, 2)).graph
    nodes = {"cpu": dict.fromkeys(count(graph), 1e-6)}
    whole = replace(table(), nodes=count(graph), seconds=nodes, method={"cpu": "measured"})
    save_costs(tmp_path / "costs.json", whole, graph)
    assert load_costs(tmp_path / "costs.json", graph) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"stages": {"cpu": {"key": {"F": -1.0}}}},
        {"stages": {"cpu": {"key": {"F": float("inf")}}}},
        {"stages": {"cpu": {"key": {"G": 1.0}}}},
        {"messages": {"cpu": {**asdict(COST), "send": [1.0]}}},
        {"messages": {"cpu": {"nbytes": []}}},
        {"messages": {"cpu": {**asdict(COST), "sums": [1.0]}}},
        {"messages": {"cpu": {**asdict(COST), "slots": None}}},
        {"messages": {"cpu": {**asdict(COST), "slots": -1}}},
        {"messages": {"cpu": {**asdict(COST), "send": [-1.0, 1.0]}}},
        {"messages": {"cpu": {**asdict(COST), "one_way": [5.0, float("nan")]}}},
        {"messages": {"cpu": {**asdict(COST), "receive": [0.5, float("inf")]}}},
        {"messages": {"cpu": {**asdict(COST), "nbytes": [200, 100]}}},
        {"messages": {"cpu": {**asdict(COST), "nbytes": [100, 100]}}},
    ],
)
def test_a_malformed_record_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CostError, match="malformed"):
        CostTable.from_json({**table().to_json(), **change})
