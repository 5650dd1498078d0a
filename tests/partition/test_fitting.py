"""Memory: the least limit that fits is told, and is what brute force finds."""

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pipec.cli.partition import command
from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, cost_graph
from pipec.partition.devices import Device
from pipec.partition.fitting import fit_memory
from pipec.partition.machine import make_machine
from pipec.partition.solve import solve_contiguous
from tests.partition.brute import best_cut
from tests.partition.strategies import graphs


@given(graphs(most=5, classes=("fast",)), st.integers(1, 3))
def test_a_cut_fits_exactly_from_the_limit_that_is_told(graph: CostGraph, k: int) -> None:
    devices = [Device("fast", 1.0)] * k
    fit = fit_memory(graph, make_machine(graph, devices, exactly=False))

    def fits(limit: float) -> bool:
        return best_cut(graph, [Device("fast", limit)] * k, exactly=False) < inf

    assert fits(fit.enough + 1e-6)
    assert fit.least <= 1e-6 or not fits(fit.least - 1e-3)
    assert fit.least == pytest.approx(fit.enough)


@given(graphs(most=5, classes=("fast",)), st.integers(1, 3), st.integers(0, 20))
def test_solved_or_told(graph: CostGraph, k: int, limit: int) -> None:
    devices = [Device("fast", float(limit))] * k
    optimum = best_cut(graph, devices, exactly=False)
    if optimum < inf:
        cut = solve_contiguous(graph, devices, exactly=False)
        assert cut.max_load == pytest.approx(optimum, abs=1e-6)
        assert max(cut.memory_bytes) <= limit + 1e-6
    else:
        with pytest.raises(PartitionError, match="with less none does"):
            solve_contiguous(graph, devices, exactly=False)


def test_a_limit_of_nothing_holds_nothing() -> None:
    graph = cost_graph("a", {"fast": [0.0]}, [], activation_bytes=[1.0])
    with pytest.raises(PartitionError, match="with less none does"):
        solve_contiguous(graph, [Device("fast", 0.0)], exactly=False)


def _node(number: int, **fields: object) -> dict[str, object]:
    usual = {"cpuLatency": 2.0, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 10.0}
    return {"id": number, "supportedOnFpga": 1, **usual, **fields}


def _edge(tail: int, head: int, cost: float = 0.1) -> dict[str, object]:
    return {"sourceId": tail, "destId": head, "cost": cost}


def _workload(**fields: object) -> dict[str, object]:
    return {
        "maxFPGAs": 2,
        "maxCPUs": 0,
        "maxSizePerFPGA": 100.0,
        "nodes": [_node(n) for n in range(4)],
        "edges": [_edge(n, n + 1) for n in range(3)],
        **fields,
    }


PROFILE = (
    "a -- forward_compute_time=1, backward_compute_time=2, activation_size=3, parameter_size=4"
)
BAD: list[tuple[dict[str, Any] | str, list[str], str]] = [
    (_workload(edges=[_edge(0, 1), _edge(1, 0)]), [], "0 -> 1 -> 0"),
    (_workload(edges=[_edge(2, 2)]), [], "2 -> 2"),
    (_workload(nodes=[_node(0, fpgaLatency=-1)], edges=[]), [], ">= 0"),
    (_workload(nodes=[_node(0, fpgaLatency=float("nan"))], edges=[]), [], ">= 0"),
    (_workload(nodes=[_node(0, fpgaLatency=10**400)], edges=[]), [], "out of range"),
    (_workload(nodes=[_node(0, supportedOnFpga=0)], edges=[]), ["--devices", "1"], "finite time"),
    (_workload(edges=[_edge(0, 1, -1.0)]), [], ">= 0"),
    (_workload(edges=[_edge(0, 9)]), [], "node that is not there"),
    (_workload(nodes=[], edges=[]), [], "no nodes"),
    (_workload(maxFPGAs=float("inf")), [], "maxFPGAs"),
    (_workload(), ["--devices", "0"], "no devices"),
    (_workload(), ["--devices", "1000000000"], "at most 4"),
    (_workload(), ["--devices", "-1"], "between 0"),
    (_workload(), ["--memory", "15"], "20 bytes on each: with that a cut fits"),
    (_workload(), ["--chunks", "0"], "at least 1"),
    (_workload(), ["--time-limit", "-1"], "at least 0"),
    (_workload(maxFPGAs=9), [], "as the file says"),
    ("", [], "empty"),
    ('{"nodes": [', [], "not complete JSON"),
    ("[" * 100_000, [], "nested too deeply"),
]


@pytest.mark.parametrize(("workload", "options", "told"), BAD)
def test_bad_input_is_one_error(
    tmp_path: Path, workload: dict[str, Any] | str, options: list[str], told: str
) -> None:
    path = tmp_path / "workload.json"
    path.write_text(workload if isinstance(workload, str) else json.dumps(workload))
    result = CliRunner().invoke(command, [str(path), "--json", *options])
    assert isinstance(result.exception, PartitionError)
    assert told in str(result.exception)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (json.dumps(_workload()), "--bandwidth 0"),
        (json.dumps(_workload()), "--workers 4"),
        (PROFILE, "--devices 3 --planner pipedream --workers 2"),
        (PROFILE, "--time-limit 3 --planner pipedream --workers 2"),
        (PROFILE, "--cpus 1 --planner pipedream --workers 2"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path: Path, text: str, options: str) -> None:
    path = tmp_path / "workload"
    path.write_text(text)
    result = CliRunner().invoke(command, [str(path), *options.split()])
    assert result.exit_code == 2
    assert f"{options.split(maxsplit=1)[0]}: " in result.output


def test_one_value_with_many_readers(tmp_path: Path) -> None:
    """A fan-out of 2,000: one value, paid once per device."""
    nodes = [_node(n, size=0) for n in range(2001)]
    fan = _workload(nodes=nodes, edges=[_edge(0, n) for n in range(1, 2001)])
    path = tmp_path / "fan.json"
    path.write_text(json.dumps(fan))
    result = CliRunner().invoke(command, [str(path), "--json", "--time-limit", "1"])
    found = json.loads(result.stdout)
    assert found["lower_bound"] <= found["max_load"] <= found["lower_bound"] * 1.01
