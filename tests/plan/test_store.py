"""Plans on disk: byte-for-byte round trips, and every kind of damage is found."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from pipec.api.checking import verify
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.errors import GraphError, PipecError, PlanError
from pipec.graph.serialize import dumps, graph_to_json
from pipec.plan.manifest import read_manifest, write_manifest
from pipec.plan.model import Plan
from pipec.plan.store import load_plan, write_plan
from pipec.plan.weights import StoredWeights, write_weights
from tests.plans import chain, cut, files, tied
from tests.toys import Builder, aten, mlp


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A compiled plan with one relayed value and two equal stages."""
    emit(cut(mlp(8), 4, 8, 12, route="relay"), tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    "plan",
    [
        cut(mlp(), 2, 5),
        cut(mlp(8), 4, 8, 12, route="relay"),
        cut(chain(), 4, 8),
        cut(tied(), 1, 2),
        cut(mlp()),
        make_plan(mlp(6), parse_cluster("2xvcu129,1xh100"), "torch", options={"note": "é"}),
    ],
    ids=["direct", "relay", "equal", "tied", "one stage", "all passes"],
)
def test_round_trip_is_byte_for_byte(tmp_path: Path, plan: Plan) -> None:
    emit(plan, tmp_path / "a")
    back = load_plan(tmp_path / "a")
    emit(back, tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for mine, theirs in zip(plan.stages, back.stages, strict=True):
        assert dumps(graph_to_json(mine.graph)) == dumps(graph_to_json(theirs.graph))
        assert mine.key == theirs.key
    assert (back.channels, back.placement, back.partition) == (
        plan.channels,
        plan.placement,
        plan.partition,
    )
    assert (back.costs, back.timing, back.options) == (plan.costs, plan.timing, plan.options)
    assert back.cluster == plan.cluster
    for name, weight in plan.graph.weights.items():
        assert torch.equal(back.graph.weights[name], weight)


def test_equal_stages_share_one_graph_and_keep_their_names(tmp_path: Path) -> None:
    plan = cut(chain(8), 4, 8, 12)
    emit(plan, tmp_path / "out")
    keys = [s.key for s in plan.stages]
    assert keys[1] == keys[2]
    assert len(list((tmp_path / "out" / "graphs").iterdir())) == 3
    shared = (tmp_path / "out" / "graphs" / keys[1] / "F.py").read_text()
    assert "channel='s0.s1.tanh1'" in shared
    third = load_plan(tmp_path / "out").stages[2].graph
    assert [n.name for n in third.calls][1:3] == ["linear4", "tanh4"]
    assert list(third.weights) == ["blocks.4.weight", "blocks.5.weight"]


def test_a_flipped_byte_is_found_in_every_file(out: Path) -> None:
    for name in files(out):
        path = out / name
        good = path.read_bytes()
        for at in {0, len(good) // 2, len(good) - 2}:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(PlanError) as caught:
                load_plan(out)
            assert Path(name).name in str(caught.value)
        path.write_bytes(good)
    load_plan(out)


def test_missing_foreign_and_outside_files(out: Path, tmp_path: Path) -> None:
    good = files(out)
    for name in good:
        (out / name).unlink()
        with pytest.raises(PlanError, match=r"No such file|no plan here"):
            load_plan(out)
        (out / name).write_bytes(good[name])
    other = cut(chain(), 4, 8)
    emit(other, tmp_path / "other")
    weights = "stage1/weights.safetensors"
    shutil.copy(tmp_path / "other" / weights, out / weights)
    with pytest.raises(PlanError, match=rf"{weights}: changed, or from another plan"):
        load_plan(out)
    (out / weights).write_bytes(good[weights])
    record = read_manifest(out)
    for bad in ("/etc/passwd", "../secret"):
        rewrite(out, {**record, "files": {bad: "0" * 64}})
        with pytest.raises(PlanError, match="outside its directory"):
            load_plan(out)


def rewrite(out: Path, record: dict[str, object]) -> None:
    """Forge a manifest with a right digest."""
    from pipec.plan import manifest

    whole = {**record, "digest": manifest._digest(record)}
    (out / "plan.json").write_text(dumps(whole))


@pytest.mark.parametrize("key", ["stages", "channels", "cluster", "placement", "weights", "source"])
@pytest.mark.parametrize("junk", [None, 3, [1], {"x": 1}, "text"])
def test_a_forged_record_is_an_error_of_ours(out: Path, key: str, junk: object) -> None:
    rewrite(out, {**read_manifest(out), key: junk})
    if (key, junk) == ("placement", None):
        load_plan(out)
        return
    with pytest.raises(PipecError):
        load_plan(out)


def test_a_stage_whose_training_graphs_are_elsewhere(out: Path) -> None:
    record = read_manifest(out)
    for key in ("0123456789ab", record["stages"][0]["key"]):
        stages = [{**row, "training": key} for row in record["stages"]]
        rewrite(out, {**record, "stages": stages})
        with pytest.raises(PlanError, match=rf"damaged[^§]*no such file[^§]*: \S+{key}"):
            load_plan(out)


@pytest.mark.parametrize(
    "junk", [None, 3, [1], {"x": 1}, {"kind": 1, "location": 2}, {"kind": "onnx"}]
)
def test_verify_refuses_a_forged_source(out: Path, junk: object) -> None:
    rewrite(out, {**read_manifest(out), "source": junk})
    with pytest.raises(PlanError, match="what it was made of"):
        verify(out)


def test_versions_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no plan here"):
        load_plan(tmp_path)
    (tmp_path / "plan.json").write_text('{"name": "something else"}')
    with pytest.raises(PlanError, match="not a plan"):
        load_plan(tmp_path)
    (tmp_path / "plan.json").write_text("\x00 no json")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"format": "pipec.plan", "version": 99}))
    with pytest.raises(PlanError, match="another version"):
        load_plan(tmp_path)


def test_what_json_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be saved"):
        write_manifest({"options": {"x": object()}}, tmp_path)


def test_undeclared_namespaces_are_refused(tmp_path: Path) -> None:
    library = torch.library.Library("pipec_store_ns", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    b = Builder()
    x = b.call(aten.relu.default, b.input("x", 2))
    y = b.call(torch.ops.pipec_store_ns.twice.default, x)
    graph = b.graph(y).replace(namespaces=frozenset({"pipec_store_ns"}))
    (tmp_path / "out").mkdir()
    write_plan(cut(graph, 1), tmp_path / "out")
    with pytest.raises(GraphError, match="--allow-namespace pipec_store_ns"):
        load_plan(tmp_path / "out")
    back = load_plan(tmp_path / "out", allowed=["pipec_store_ns"])
    assert back.stages[1].graph.calls[1].target is torch.ops.pipec_store_ns.twice.default


def test_weights_are_stored_once_with_dtype_and_strides(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    weights = {
        "a": base[:12],
        "overlap": base[6:18],
        "strided": torch.randn(3, 4).t(),
        "half": torch.randn(3, dtype=torch.bfloat16),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "fp8": torch.randn(4).to(torch.float8_e4m3fn),
        "complex": torch.randn(2, dtype=torch.complex64),
    }
    b = Builder()
    for name, w in weights.items():
        b.parameter(name, 1).meta["val"] = torch.empty_like(w, device="meta")
    graph = b.graph()
    write_weights(weights, tmp_path / "w")
    write_weights(dict(reversed(weights.items())), tmp_path / "v")
    assert (tmp_path / "w").read_bytes() == (tmp_path / "v").read_bytes()
    (tmp_path / "like").touch()
    assert (tmp_path / "w").stat().st_mode == (tmp_path / "like").stat().st_mode
    stored = StoredWeights(dict.fromkeys(weights, tmp_path / "w"), graph)
    assert len(stored) == len(weights)
    for name, w in weights.items():
        assert stored[name].stride() == w.stride()
        assert torch.equal(stored[name].to(torch.complex64), w.to(torch.complex64))
    with pytest.raises(PlanError, match="dtype"):
        write_weights({"c": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "c")


def test_a_full_disk_under_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("pipec.plan.weights.save_file", full)
    with pytest.raises(PipecError, match="disk is full"):
        emit(cut(mlp(), 4), tmp_path / "out")
    assert not list(tmp_path.iterdir())
