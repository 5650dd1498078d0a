"""What waits in FIFOs while layers that stream their weights gather blocks of vectors."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipec.backends.fpga.banks import blocks_of
from pipec.backends.fpga.cycles import network_of, steady_state
from pipec.backends.fpga.demand import (
    Choice,
    Demand,
    Demands,
    Group,
    Option,
    Room,
    Shortage,
    bits_beside,
    fit,
)
from pipec.backends.fpga.engines.network import Network
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.fifo import deepen_fifos
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.memory import Item
from pipec.backends.fpga.search import Board, Search, bound_interval, deep_fifos
from pipec.cluster.presets import PRESETS
from tests.fpga.design.models import graph_of
from tests.fpga.design.staged import within
from tests.sampling import some

VCU118 = PRESETS["vcu118"]


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def bottlenecks() -> Network:
    model = nn.Sequential(*[Bottleneck(512, 128) for _ in range(4)]).eval()
    return lower(graph_of(model, torch.zeros(1, 512, 7, 7)))


def small_board(block_rams: int) -> Board:
    """A quarter of a VCU118's DSPs, half of its LUTs, few block RAMs, no UltraRAM.

    That is beside its second memory controller.
    """
    assert VCU118.fpga is not None
    fabric = dataclasses.replace(
        VCU118.fpga,
        dsp=VCU118.fpga.dsp // 4 + 128,  # adders beside the products
        # 33,256, 11 ways of 2,506, ends of streams of 3,329, of 70 %
        lut=VCU118.fpga.lut * 9 // 20 + 47_508 + 39_378 + 4_756,
        uram=0,
        bram36=block_rams + 124,  # 99.5, of 80 %
    )
    return Board(dataclasses.replace(VCU118, kind="small", fpga=fabric))


def test_what_skips_a_residual_block_goes_past_its_layers() -> None:
    found = bits_beside(bottlenecks())
    inside = [found[name] for name in ("conv2d", "conv2d_1", "conv2d_2")]
    assert inside == [512 * 7 * 7 * 32] * 3


def test_nothing_goes_past_the_layers_of_a_chain() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    network = lower(graph_of(model, torch.zeros(1, 64)))
    assert set(bits_beside(network).values()) == {0}


@pytest.mark.parametrize("vectors", [1, 7, 49])
def test_what_waits_is_about_what_fifos_hold(vectors: int) -> None:
    """Between half and twice the bits by which FIFOs become deeper when all layers stream."""
    network, target = bottlenecks(), 400_000
    demands = Demands(network, "float32", {layer.node: 0 for layer in network.layers})
    streamed = dict.fromkeys(blocks_of(network), vectors)
    designs = [deepen_fifos(demands.design(target, chosen)) for chosen in ({}, streamed)]
    bits = [sum(i.bits for i in deep_fifos(design)) for design in designs]
    options = [o for g in demands.at(target).groups for o in g.options if o.block == vectors]
    thought = sum(item.bits for o in options for item in o.fifos)
    assert 0.5 <= (bits[1] - bits[0]) / thought <= 2.0
    assert steady_state(*network_of(designs[1])).interval == designs[1].interval


@pytest.mark.parametrize("block_rams", some(2, [500, 561, 700]))
def test_memory_for_what_waits_follows_the_choice(block_rams: int) -> None:
    """Where FIFOs of the first choice do not fit, one with smaller blocks does at that pace."""
    network, board = bottlenecks(), small_board(block_rams)
    design = Search(network, board).best()
    assert design.ddr
    assert within(design.resources, design.limits)
    assert design.interval <= 1.105 * bound_interval(network, board)


def test_dear_memory_makes_small_buffers() -> None:
    """At a lower price of memory ports weights are read more often, and less waits of each."""
    network, board, target = bottlenecks(), small_board(620), 400_000
    demand = Demands(network, "float32", {layer.node: 0 for layer in network.layers}).at(target)
    room = board.room(board.limits)
    waits, slots = [], []
    for price in (0.1, 100.0):
        choice = demand.find_cheapest(room, price)
        assert choice is not None
        waiting = [sum(item.bits for item in o.fifos) for o in choice if o.block]
        waits.append(sum(waiting) / len(waiting))
        slots.append(sum(o.sum_fixed(room.period)[-1] for o in choice))
    assert waits[0] < waits[1]
    assert slots[0] > slots[1]


def test_options_are_chosen_whole_where_shares_of_them_do_not_fit() -> None:
    """Four tables of two block RAMs each; LUTs stream 3.9 of them: three are streamed.

    In shares the fourth one is streamed by more than half, at any price.
    """
    chip = Option(items=[Item("table", "weight", 72, 1024)])
    streamed = Option(1, Resources(lut=200.0), rates=[1e-6], ported=1)
    groups = tuple(Group(0, f"y{k}", (chip, streamed)) for k in range(4))
    demand = Demand(groups, np.zeros(1, dtype=np.bool_))
    most = np.array([0.0, 780.0, 3.25, 0.0, 64.0, 1e6])
    room = Room(most, 0, np.zeros(6), lut_memory=780.0, period=64)
    lacks = fit([chip] * 4, room)
    assert isinstance(lacks, Shortage)
    choices = list[Choice]()

    def attempt(choice: Choice) -> Choice | Shortage:
        choices.append(choice)
        found = fit(choice, room)
        return found if isinstance(found, Shortage) else choice

    found = demand.choose(room, attempt, lacks)
    assert not isinstance(found, Shortage)
    assert [o.block for o in found].count(1) == 3
    assert all(isinstance(fit(c, room), Shortage) for c in choices[:-1])
    assert len(choices) > 1
    tight = dataclasses.replace(room, most=np.array([0.0, 599.0, 3.25, 0.0, 64.0, 1e6]))
    assert isinstance(demand.choose(tight, lambda c: fit(c, tight), lacks), Shortage)
