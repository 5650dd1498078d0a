"""Engines in super logic regions: within every budget, as few wires as a search over all finds."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.backends.fpga import regions
from pipec.backends.fpga.design import DdrPort, Floorplan, StageDesign, Stream
from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.scripts import floorplan_xdc, scripts
from pipec.backends.fpga.engines.base import Engine
from pipec.backends.fpga.engines.map import Map
from pipec.backends.fpga.engines.parts import Resources
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.memory import DDR_SHELL, LINK_SHELL
from pipec.backends.fpga.regions import HANDSHAKE_WIRES, SLACK, floorplan
from pipec.backends.fpga.search import Board, Search
from pipec.backends.fpga.stagejson import stage_record
from pipec.backends.fpga.timing import stage_timing
from pipec.cluster.cluster import parse_cluster
from pipec.cluster.device import Device, FpgaResources, Region
from pipec.cluster.presets import PRESETS, preset
from tests.fpga.design.models import graph_of, made
from tests.fpga.design.staged import within

THIRD = Region(1 / 3, 1 / 3, 1 / 3, 1 / 3)
PER_REGION = 100.0
"""DSPs that a region of `board` may use."""


def board(dies: int = 3, wires: int = 1_000_000) -> FpgaResources:
    """A fabric whose DSPs alone bind."""
    share = Region(*[1 / dies] * 4)
    dsp = round(PER_REGION * dies / (0.7 + SLACK))
    return FpgaResources("part", 10**9, 10**9, 10**6, 10**6, dsp, regions=(share,) * dies,
                         crossings=wires)  # fmt: skip


def chain(dsps: list[float], lanes: list[int]) -> StageDesign:
    """Engines in a row, ``lanes[k]`` elements from engine k to the next one."""
    names = [f"e{k}" for k in range(len(dsps))]
    streams = {
        f"s{k}": Stream(f"s{k}", 1, n, n, producer=names[k], consumer=names[k + 1])
        for k, n in enumerate(lanes)
    }
    engines = tuple(
        Engine(name, Map(1, 1, 1, ()), (), (), resources=Resources(dsp=dsp))
        for name, dsp in zip(names, dsps, strict=True)
    )
    return StageDesign("stage0", engines, streams, (), ())


def wires(design: StageDesign, where: dict[str, int], dies: int) -> tuple[int, ...]:
    found = [0] * (dies - 1)
    for s in design.streams.values():
        a, b = sorted((where[str(s.producer)], where[str(s.consumer)]))
        for k in range(a, b):
            found[k] += s.token_bits + HANDSHAKE_WIRES
    return tuple(found)


cases = st.integers(2, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(1.0, 90.0), min_size=n, max_size=n),
        st.lists(st.integers(1, 16), min_size=n - 1, max_size=n - 1),
    )
)


@settings(max_examples=120, deadline=None)
@given(cases)
def test_regions_hold_what_any_assignment_could_hold(
    case: tuple[list[float], list[int]],
) -> None:
    """Against all assignments: within budget whenever one is; never more than the most wires."""
    design, dies = chain(*case), 3
    plan = floorplan(design, board(dies), LINK_SHELL)
    names, dsps = [e.name for e in design.engines], case[0]
    good = []
    for choice in itertools.product(range(dies), repeat=len(dsps)):
        load = [0.0] * dies
        for dsp, region in zip(dsps, choice, strict=True):
            load[region] += dsp
        if max(load) <= PER_REGION:
            found = wires(design, dict(zip(names, choice, strict=True)), dies)
            good.append(sum(found))
    if not good:
        assert isinstance(plan, list) or any(len(at) > 1 for at in plan.regions.values())
        return
    assert isinstance(plan, Floorplan)
    where = {name: at[0] for name, at in plan.regions.items() if len(at) == 1}
    if len(where) < len(names):  # packed so tightly that an engine was taken apart
        assert max(dsps) > 0.4 * PER_REGION
        return
    assert plan.wires == wires(design, where, dies)
    for k, used in enumerate(plan.used):
        inside = sum(d for n, d in zip(names, dsps, strict=True) if where[n] == k)
        assert used.dsp == pytest.approx(inside)
        assert used.dsp <= plan.limits[k].dsp * 1.002
    assert min(good) <= sum(plan.wires) <= 2 * min(good) + 600


def test_what_fits_one_region_lies_in_one() -> None:
    plan = floorplan(chain([30, 40, 20], [16, 16]), board(), LINK_SHELL)
    assert isinstance(plan, Floorplan)
    assert len(set(plan.regions.values())) == 1
    assert plan.wires == (0, 0)


def test_an_engine_larger_than_a_region_lies_in_several() -> None:
    plan = floorplan(chain([20, 170, 20], [4, 4]), board(), LINK_SHELL)
    assert isinstance(plan, Floorplan)
    assert len(plan.regions["e1"]) > 1
    assert isinstance(floorplan(chain([20, 310, 20], [4, 4]), board(), LINK_SHELL), list)


def test_a_boundary_carries_so_many_wires() -> None:
    design = chain([90, 90, 90], [16, 16])  # 514 wires over each boundary
    assert isinstance(floorplan(design, board(wires=800), LINK_SHELL), Floorplan)
    assert isinstance(floorplan(design, board(wires=700), LINK_SHELL), list)


def test_four_halves_fit_three_regions_taken_apart() -> None:
    plan = floorplan(chain([60, 60, 60, 60], [4, 4, 4]), board(), LINK_SHELL)
    assert isinstance(plan, Floorplan)
    assert any(len(at) > 1 for at in plan.regions.values())
    assert max(used.dsp for used in plan.used) <= PER_REGION * 1.002


def test_engines_change_places_where_no_move_alone_helps() -> None:
    plan = floorplan(chain([54, 50, 49, 45], [1, 1, 1]), board(dies=2), LINK_SHELL)
    assert isinstance(plan, Floorplan)
    assert plan.regions == {"e0": (0,), "e1": (1,), "e2": (1,), "e3": (0,)}


def test_who_reads_memory_lies_near_its_port() -> None:
    fabric = dataclasses.replace(board(), memory_ports=3, memory_regions=(0, 1, 2))
    for bank in range(3):
        design = dataclasses.replace(
            chain([30, 40, 20], [2, 2]),
            ddr=(DdrPort("gmem0", "e1", 512, 1, 1.0, bank=f"DDR[{bank}]"),),
        )
        plan = floorplan(design, dataclasses.replace(fabric, bram36=10**6, lut=10**9), LINK_SHELL)
        assert isinstance(plan, Floorplan)
        assert plan.regions["e1"] == (bank,)


@pytest.mark.parametrize("kind", ["vcu118", "vcu129", "u250", "u280", "u55c"])
def test_budgets_of_regions_add_up(kind: str) -> None:
    fabric = preset(kind).fpga
    assert fabric is not None
    assert len(fabric.regions) == {"vcu118": 3, "vcu129": 4, "u250": 4, "u280": 3, "u55c": 3}[kind]
    for name in ("dsp", "lut", "bram36", "uram"):
        assert sum(getattr(r, name) for r in fabric.regions) == pytest.approx(1.0)
    plan = floorplan(chain([1, 1], [1]), fabric, LINK_SHELL)
    assert isinstance(plan, Floorplan)
    total = sum(limit.lut for limit in plan.limits)
    assert total == pytest.approx(fabric.lut * (fabric.logic_limit + SLACK) - LINK_SHELL.lut)
    assert DDR_SHELL.lut > 0
    cluster = parse_cluster(f"1x{kind}")
    assert type(cluster).from_json(json.loads(json.dumps(cluster.to_json()))) == cluster


def test_a_full_board_is_within_every_region() -> None:
    """A design that uses all DSPs that it may: budgets kept, said in record, report and scripts."""
    model, x = made("resnet")
    device: Device = PRESETS["vcu118"]
    design = Search(lower(graph_of(model, x)), Board(device)).best()
    plan = design.floorplan
    assert set(plan.regions) == {e.name for e in design.engines}
    assert sum(u.dsp for u in plan.used) == pytest.approx(
        sum(e.resources.dsp for e in design.engines)
    )
    assert all(within(u, n) for u, n in zip(plan.used, plan.limits, strict=True))
    record = json.loads(json.dumps(stage_record(design)))
    assert [e["regions"] for e in record["engines"]] == [
        list(plan.regions[e.name]) for e in design.engines
    ]
    assert record["regions"]["wires"] == list(plan.wires)
    assert any("SLR2" in note for note in stage_timing(design, device).notes)
    text = scripts(design, 1e-4, Site())["floorplan.xdc"]
    assert text == floorplan_xdc(design)
    single = [e for e, at in plan.regions.items() if len(at) == 1]
    assert text.count("USER_SLR_ASSIGNMENT") == len(single)
    assert text.count("is larger than a region") == len(plan.regions) - len(single)


def test_a_board_too_full_for_its_regions_is_folded_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("resnet")
    network, device = lower(graph_of(model, x)), Board(PRESETS["vcu118"])
    free = Search(network, device).best()
    monkeypatch.setattr(regions, "SLACK", -0.22)
    tight = Search(network, device).best()
    assert tight.interval > free.interval
    assert all(
        within(u, n) for u, n in zip(tight.floorplan.used, tight.floorplan.limits, strict=True)
    )


def test_a_chip_of_one_die_has_no_floorplan() -> None:
    fabric = preset("zcu102").fpga
    assert fabric is not None
    design = chain([1, 1], [1])
    plan = floorplan(design, fabric, LINK_SHELL)
    assert isinstance(plan, Floorplan)
    assert plan.regions == {}
    assert "floorplan.xdc" not in scripts(design, 1e-4, Site())
