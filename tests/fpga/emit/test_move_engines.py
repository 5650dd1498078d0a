"""Every engine that moves data against numpy, through emission, g++ and a run."""

from pathlib import Path

import numpy as np
import pytest

from pipec.backends.fpga.engines.gear import Dwc
from pipec.backends.fpga.engines.memory import Gather, Load, beat_lanes
from pipec.backends.fpga.engines.parts import Memory
from pipec.backends.fpga.engines.perm import Perm
from pipec.backends.fpga.engines.route import Concat, Const, Fork, Repeat, Slice
from pipec.backends.fpga.engines.tiles import ceil_div
from tests.fpga.emit.harness import Array, Case, check, rng

pytestmark = pytest.mark.usefixtures("compiled_for_users")


def dwc_case(name: str, rows: int, before: tuple[int, int], after: tuple[int, int]) -> Case:
    """``rows`` rows of ``before`` (channels, lanes) to rows of ``after``."""
    x = rng(len(name)).normal(size=(rows, before[0]))
    y = x.reshape(-1, after[0])
    unit = np.lcm(before[0], after[0])
    nest = Dwc(int(x.size // unit), int(unit // before[0]), *before, int(unit // after[0]), *after)
    return Case(name, nest, [(x, before[1])], [(y, after[1])])


def test_width_converters(tmp_path: Path) -> None:
    cases = [
        dwc_case("up", 3, (8, 2), (8, 4)),
        dwc_case("down", 3, (8, 4), (8, 1)),
        dwc_case("padded", 3, (10, 4), (10, 3)),
        dwc_case("coprime", 4, (7, 3), (7, 2)),
        dwc_case("regroup", 6, (4, 3), (12, 5)),
        dwc_case("split", 2, (12, 5), (4, 3)),
        dwc_case("odd", 6, (10, 4), (15, 2)),
    ]
    check(cases, tmp_path / "stage")


def perm_case(
    name: str, blocks: int, sizes: tuple[int, ...], order: tuple[int, ...], lanes: tuple[int, int],
    backwards: tuple[int, ...] = (),
) -> Case:  # fmt: skip
    x = rng(len(name)).normal(size=(blocks, *sizes))
    y = np.flip(x, tuple(k + 1 for k in backwards)).transpose(0, *(axis + 1 for axis in order))
    channels = sizes[-1], y.shape[-1]
    nest = Perm(blocks, sizes, order, channels[0], lanes[0], channels[1], lanes[1], backwards)
    x, y = x.reshape(-1, channels[0]), y.reshape(-1, channels[1])
    return Case(name, nest, [(x, lanes[0])], [(y, lanes[1])])


def test_permutations(tmp_path: Path) -> None:
    cases = [
        perm_case("transpose", 1, (4, 6), (1, 0), (3, 2)),
        perm_case("blocks", 3, (4, 5), (1, 0), (2, 3)),
        perm_case("heads", 2, (5, 2, 3), (1, 0, 2), (3, 2)),
        perm_case("shuffle", 4, (3, 4), (1, 0), (4, 3)),
        perm_case("four", 1, (2, 3, 2, 5), (3, 1, 0, 2), (5, 1)),
        perm_case("turned", 2, (2, 5, 6), (0, 1, 2), (3, 3), (1,)),
        perm_case("turned, large", 1, (2, 800, 6), (0, 1, 2), (3, 3), (1,)),
        perm_case("turned, swapped", 2, (3, 4), (1, 0), (4, 3), (0,)),
        perm_case("large", 2, (67, 73), (1, 0), (5, 5)),
    ]
    check(cases, tmp_path / "stage")


def test_routing(tmp_path: Path) -> None:
    g = rng()
    a, b, c = g.normal(size=(4, 6)), g.normal(size=(4, 3)), g.normal(size=(2, 6))
    cube = g.normal(size=(2, 5, 4))
    cases = [
        Case("fork", Fork(8, 3), [(a, 3)], [(a, 3)] * 3),
        Case("channels", Concat(4, (2, 1)), [(a, 3), (b, 3)], [(np.concatenate([a, b], 1), 3)]),
        Case("rows", Concat(1, (4, 8)), [(c, 3), (a, 3)], [(np.concatenate([c, a]), 3)]),
        Case(
            "slice",
            Slice(2, 5, 1, 5, 2, 2),
            [(cube.reshape(10, 4), 2)],
            [(cube[:, 1:5:2].reshape(4, 4), 2)],
        ),
        Case("first", Slice(1, 4, 0, 1, 1, 2), [(a, 3)], [(a[:1], 3)]),
        Case(
            "repeat",
            Repeat(2, 2, 3),
            [(a, 6)],
            [(np.repeat(a.reshape(2, 1, 2, 6), 3, axis=1).reshape(-1, 6), 6)],
        ),
    ]
    check(cases, tmp_path / "stage")


def padded(table: Array, lanes: int) -> Array:
    rows, channels = table.shape
    cf = ceil_div(channels, lanes)
    full = np.zeros((rows, cf * lanes))
    full[:, :channels] = table
    return full.reshape(rows, cf, lanes)


def test_constants_and_lookups(tmp_path: Path) -> None:
    g = rng()
    table = g.normal(size=(9, 10))
    index = g.integers(0, 9, size=(5, 1))
    rows, entries = [(table[index[:, 0]], 4)], {"table": padded(table, 4)}
    constant = g.normal(size=(3, 5))
    words = {"table": padded(constant, 2).reshape(-1, 2)}
    cases = [
        Case("const", Const(3, 5, 2), [], [(constant, 2)], words),
        Case("embed", Gather(5, 10, 4, 9), [(index, 1)], rows, entries),
        Case(
            "embed_three", Gather(5, 10, 3, 9), [(index, 1)],
            [(table[index[:, 0]], 3)], {"table": padded(table, 3)},
        ),
    ]  # fmt: skip
    check(cases, tmp_path / "stage")


def test_loads_from_memory(tmp_path: Path) -> None:
    """Words narrower, as wide as, and wider than a beat of at most 16 elements."""
    cases = []
    for lanes in (3, 8, 16, 20, 48):
        words = rng(lanes).normal(size=(7, lanes))
        out = [(np.tile(words, (2, 1)), lanes)]
        nest = Load(7, lanes, 2, beat_lanes(lanes, "float32"))
        cases.append(Case(f"load{lanes}", nest, [], out, {"weight": words}, Memory.DDR))
    check(cases, tmp_path / "stage")
