"""ResNet-18 beside FINN's folding rule: its recorded figures, and never more units or cycles."""

import math
from functools import lru_cache

import pytest

from benchmarks.fpga_peers import Layer, chain, finn_interval, graph_of, our_interval, our_units
from examples.resnet import resnet18
from pipec.backends.fpga.engines.base import Layer as Folded
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.timing import mac_units
from pipec.graph.ir import Graph
from tests.fpga.design.staged import within


@lru_cache
def graph() -> Graph:
    return graph_of(resnet18)


def dense() -> list[Folded]:
    return [y for y in lower(graph(), "int8").layers if isinstance(y.nest, Mvu)]


@pytest.mark.parametrize(
    ("target", "width", "interval", "units"),
    [
        (3_000_000, 36.0, 2_458_624, 989),
        (500_000, 36.0, 614_656, 3_953),
        (100_000, math.inf, 75_264, 33_464),
    ],
)
def test_same_units_shorter_interval(target: int, width: float, interval: int, units: int) -> None:
    """The figures are those of FINN+ 1.6.1's SetFolding on the same 21 layers."""
    layers = list(map(Layer.of, dense()))
    assert len(layers) == 21
    assert finn_interval(layers, target, width) == (interval, units)
    ours, used = our_interval(dense(), units)
    assert used <= units
    assert ours * 1.2 < interval
    at_theirs = our_units(dense(), interval)
    assert at_theirs is not None
    assert at_theirs <= units


def test_four_u280_are_near_the_bound_of_all_their_dsps() -> None:
    designs, bound, _ = chain(graph(), "4xu280", "int8")
    interval = max(d.interval for d in designs)
    assert interval <= 1.18 * bound
    assert all(within(d.resources, d.limits) for d in designs)
    work = sum(e.nest.macs for d in designs for e in d.engines if isinstance(e.nest, Mvu))
    assert sum(map(mac_units, designs)) * interval >= work
