"""The division of a board between forward and backward against every division by one share."""

import dataclasses

import pytest

from pipec.autodiff.differentiate import differentiate
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.fifo import busiest
from pipec.backends.fpga.search import Board, Search
from pipec.backends.fpga.training.kernels import networks_of
from pipec.backends.fpga.training.phases import phases_of
from pipec.cluster.cluster import parse_cluster
from pipec.errors import BackendError
from tests.fpga.training.models import MODELS
from tests.sampling import ALL

STEPS = 16 if ALL else 8
NEVER = 1 << 60


def part(share: float) -> Board:
    """A part of a VCU118; a memory controller takes none of it."""
    device = parse_cluster("1xvcu118").devices[0]
    assert device.fpga is not None
    fabric = dataclasses.replace(
        device.fpga,
        dsp=int(device.fpga.dsp * share),
        lut=int(device.fpga.lut * share),
        bram36=int(device.fpga.bram36 * share),
        uram=int(device.fpga.uram * share),
        hard_memory=True,
    )
    return Board(dataclasses.replace(device, fpga=fabric))


def interval(network: Network, board: Board) -> int:
    """Cycles of the busiest engine of the best fold; `NEVER` if none fits."""
    try:
        return busiest(Search(network, board).best())[0]
    except BackendError:
        return NEVER


def by_size(kernel: tuple[float, Network]) -> float:
    return kernel[0]


@pytest.mark.parametrize(("name", "share"), [("mlp", 0.16), ("deep", 0.2)])
def test_folding_both_together_beats_every_division(name: str, share: float) -> None:
    graph = MODELS[name]()
    ((forward, backward),) = networks_of([phases_of(differentiate(graph, [graph])[0])])
    both = Network(
        (*forward.layers, *backward.layers),
        (*forward.inputs, *backward.inputs),
        (*forward.outputs, *backward.outputs),
    )
    together = interval(both, part(share))
    for own in (share * k / STEPS for k in range(1, STEPS)):
        kernels = ((own, forward), (share - own, backward))
        # one that is no faster is enough, most often that of the smaller part
        assert any(
            interval(kernel, part(size)) >= together
            for size, kernel in sorted(kernels, key=by_size)
        )
    halves = [interval(kernel, part(share / 2)) for kernel in (forward, backward)]
    assert together < max(halves) < NEVER
