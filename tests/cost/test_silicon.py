"""Kernel times by tables: a package of made-up tables that follow a law, read as the real one."""

import functools
import importlib.util
import json
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import pipec
from pipec.cluster.cluster import Cluster, Level, Link, parse_cluster
from pipec.cluster.presets import PRESETS
from pipec.compiler.pass_manager import parse_pipeline, run_passes
from pipec.cost import silicon
from pipec.cost.table import CostTable
from pipec.errors import CostError
from pipec.explore.make import Maker
from pipec.explore.rebatch import Rebatched
from pipec.frontends.torch_module import from_module
from pipec.plan.model import Plan
from pipec.report.plan_data import list_heaviest

READ = silicon._read_table
TINY = 1e-7  # launch of the made-up host: eager 5.1 us, in a graph 5 us


def law(m: float, n: float, k: float) -> float:
    """Seconds of a product: straight in logarithms, and unlike in all three sizes."""
    rate = 1e12 * math.pow(m / 64, 0.5) * math.pow(n / 64, 0.25) * math.pow(k / 64, 0.125)
    return 2 * m * n * k / rate


def table(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    """One file of the package; JSON in place of parquet, whose reader is not always installed."""
    folder.mkdir(parents=True)
    (folder / f"{name}_perf.parquet").write_text(json.dumps(rows))


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`aiconfigurator_core` with tables of one GPU, sizes 64, 256 and 4,096."""
    root = tmp_path / silicon.PACKAGE
    gpu = root / "systems" / "data" / "a100_sxm"
    sizes = (64, 256, 4096)
    gemm = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": law(m, n, k) * 1e3}
        for m in sizes for n in sizes for k in sizes if (m, n, k) != (4096, 4096, 4096)
    ]  # fmt: skip
    other = [{"gemm_dtype": "int8", "m": 64, "n": 64, "k": 64, "latency": 1e-9}]
    table(gpu / "gemm" / "one" / "1.0", "gemm", gemm + other)
    table(gpu / "gemm" / "two" / "1.0", "gemm", other)  # smaller: not the one that counts
    for framework, eager in (("one", 5.05e-3), ("two", 5.1e-3), ("three", 9e-3)):
        rows: list[dict[str, object]] = [
            {"backend": f"x_{how}", "message_size": size, "latency": ms * size / 128}
            for how, ms in (("eager", eager), ("graph", 5e-3)) for size in (128, 256)
        ]  # fmt: skip
        table(gpu / "comm" / framework / "1.0", "custom_allreduce", rows)
    nccl: list[dict[str, object]] = [
        {"op_name": op, "nccl_dtype": "half", "num_gpus": gpus, "message_size": n, "latency": ms}
        for op, gpus, n, ms in (("all_reduce", 2, 512, 1.0), ("all_reduce", 2, 1024, 3.0),
                                ("all_reduce", 4, 512, 7.0), ("all_gather", 2, 512, 9.0))
    ]  # fmt: skip
    table(gpu / "comm" / "nccl" / "1.0", "nccl", nccl)
    (root / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(silicon, "_read_table", lambda path: json.loads(path.read_text()))
    monkeypatch.delitem(sys.modules, silicon.PACKAGE, raising=False)
    silicon.load_silicon.cache_clear()
    yield gpu
    silicon.load_silicon.cache_clear()


def costs_of(module: nn.Module, *shape: int, cluster: str = "1xa100") -> tuple[Plan, CostTable]:
    """A traced model with its costs by the tables."""
    with torch.device("meta"):
        x = torch.zeros(shape, dtype=torch.bfloat16)
        graph = from_module(module.to("meta", torch.bfloat16), (x,)).graph
    timed = silicon.with_tables(parse_cluster(cluster), "silicon:a100")
    plan = run_passes(parse_pipeline("annotate-cost"), Plan(graph, timed))
    assert plan.costs is not None
    return plan, plan.costs


@pytest.mark.parametrize("size", [(64, 256, 4096), (128, 128, 128), (300, 1000, 77)])
def test_between_measured_sizes_the_law_of_the_rate_is_met(size: tuple[int, int, int]) -> None:
    rows = [(m, n, k, law(m, n, k)) for m in (64, 4096) for n in (64, 4096) for k in (64, 4096)]
    every = [*rows, (64, 256, 4096, law(64, 256, 4096)), (256, 256, 256, law(256, 256, 256))]
    grid = [(m, n, k, law(m, n, k)) for m in (64, 256, 4096) for n in (64, 256, 4096)
            for k in (64, 256, 4096)]  # fmt: skip
    assert silicon.Products(grid).seconds(*size) == pytest.approx(law(*size), rel=1e-9)
    measured = silicon.Products(every)  # corners that were not measured take the nearest rate
    assert measured.seconds(64, 256, 4096) == pytest.approx(law(64, 256, 4096), rel=1e-9)


def test_beyond_the_table_the_rate_stays_and_no_product_beats_its_fastest() -> None:
    products = silicon.Products(
        [(m, n, k, law(m, n, k)) for m in (64, 128) for n in (64, 128) for k in (64, 128)]
    )
    assert products.seconds(1280, 128, 128) == pytest.approx(10 * law(128, 128, 128))
    assert products.seconds(1, 1, 1) == pytest.approx(law(64, 64, 64))


def test_a_product_and_both_its_gradients_take_their_own_shapes() -> None:
    """Forward m x n x k; dX is m x k x n; dW is n x k x m, the larger of the two as columns."""
    _, costs = costs_of(nn.Sequential(nn.Linear(4096, 256), nn.Linear(256, 1024)), 64, 4096)
    forward, backward = costs.of("a100"), costs.backward_of("a100")
    first, second = forward
    one = 64 * 1024  # values of a pass over the gradient: the bias
    added = 3 * (1024 * 257)  # gradients of weight and bias, to those of the microbatches before
    assert forward[first] == pytest.approx(law(64, 256, 4096))
    assert forward[second] == pytest.approx(law(64, 1024, 256))
    gradients = law(64, 256, 1024) + law(256, 1024, 64)
    passes = 3 * 3e-6  # kernels beside the products: the bias, and what is added
    wanted = gradients + 2 * (one + added) / (2039e9 * 0.8)
    assert backward[second] == pytest.approx(wanted + passes)
    wanted = law(256, 4096, 64) + 2 * (64 * 256 + 3 * 256 * 4097) / (2039e9 * 0.8)
    assert backward[first] == pytest.approx(wanted + passes), "the input needs no gradient"
    assert costs.tabled["a100"] == [first, second]
    assert costs.method["a100"] == "silicon"


def test_what_no_table_knows_takes_the_roofline_and_views_take_none() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Unflatten(1, (2, 128)))
    plan, costs = costs_of(model, 4096, 256)
    names = [n.name for n in plan.graph.calls]
    nbytes = 2 * 2 * 4096 * 256
    assert costs.tabled["a100"] == names[:1]
    assert costs.of("a100")[names[1]] == pytest.approx(nbytes / (2039e9 * 0.8) + 3e-6)
    assert costs.of("a100")[names[2]] == costs.backward_of("a100")[names[2]] == 0.0


def test_a_batch_of_products_takes_as_one_of_all_its_rows() -> None:
    """A' in dB = A' dY is 4 times 1,024 x 64, dY 64 x 256."""
    _, costs = costs_of(Batched(), 4, 64, 1024)
    (name,) = costs.tabled["a100"]
    assert costs.of("a100")[name] == pytest.approx(law(256, 256, 1024))
    assert costs.backward_of("a100")[name] == pytest.approx(
        law(256, 1024, 256) + law(4096, 256, 64) + 3 * 2 * 4 * 1024 * 256 / (2039e9 * 0.8) + 3e-6
    )


class Batched(nn.Module):
    """Each matrix of a batch by a weight of its own; the input comes from a sum with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, 1024, 256)), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x + self.bias, self.weight)


def test_a_host_gets_ahead_of_long_kernels_and_is_waited_for_by_short_ones() -> None:
    """The host launches at 0, 2, 4, 6 (a view) and 8: kernels end at 5, 6, 7 and 9."""
    queue = silicon.Queue(2.0)
    assert queue.add([5.0]) == 5.0
    assert queue.add([1.0, 1.0]) == 2.0, "launched while the first ran"
    assert queue.add([]) == 0.0, "a view"
    assert queue.add([1.0]) == 2.0, "launched at 8, ends at 9"
    assert silicon.load_silicon("a100_sxm").launch == pytest.approx(TINY), (
        "the median of frameworks"
    )


class Mixed(nn.Module):
    """A norm, a split and a function whose derivative reads what it saved."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.norm(x).split(256, -1)
        return torch.tanh(one + nn.functional.gelu(two))


def test_backwards_count_their_passes_over_memory() -> None:
    plan, costs = costs_of(Mixed(), 8192, 512)
    one = 2 * 8192 * 512 / (2039e9 * 0.8)  # one pass over the widest value
    kernels = {"layer_norm": 4, "split": 1, "gelu": 1, "tanh": 1}  # 3 us each beside their bytes
    taken = costs.backward_of("a100")
    found = {
        n.name: (taken[n.name] - 3e-6 * kernels[n.name]) / one
        for n in plan.graph.calls
        if n.name in kernels
    }
    near = pytest.approx
    assert found["layer_norm"] == near(3 + 2, rel=1e-3), "gradient, input, result; and of weights"
    assert found["split"] == near(2), "read in parts and written whole"
    assert found["gelu"] == near(3 / 2), "gradient, saved value and result, half as wide"
    assert found["tanh"] == near(2 / 2)


def test_rows_that_are_not_aligned_make_a_product_slower() -> None:
    _, odd = costs_of(nn.Linear(256, 257, bias=False), 64, 256)
    assert sum(odd.of("a100").values()) == pytest.approx(3 * law(64, 257, 256))
    _, even = costs_of(nn.Linear(256, 264, bias=False), 64, 256)
    assert sum(even.of("a100").values()) == pytest.approx(law(64, 264, 256))


def test_all_reduces_within_a_node_are_those_of_the_table() -> None:
    _, costs = costs_of(nn.Linear(256, 256), 64, 256, cluster="4xa100")
    message = costs.messages["a100"]
    assert message.all_reduce(1024, 2) == pytest.approx(1e-3), "512 elements of two bytes"
    assert message.all_reduce(1536, 2) == pytest.approx(2e-3)
    assert message.on_the_way(1024) == pytest.approx(1024 / 300e9 + 10e-6)
    devices = parse_cluster("4xa100").devices
    model = silicon.load_silicon("a100_sxm")
    assert model.messages(Cluster(devices, levels=(Level(2, Link(1e9)),)), "a100") is None
    assert model.messages(parse_cluster("2xa100,2xv100"), "a100") is None
    assert model.messages(Cluster(devices, {(0, 1): Link(1e9)}), "a100") is None


def test_a_plan_says_which_nodes_a_table_timed_and_keeps_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).bfloat16()
    x = torch.zeros(64, 256, dtype=torch.bfloat16)
    plan = pipec.compile(model, x, "2xa100", costs="silicon:a100")
    assert plan.costs is not None
    assert [n.name for n in plan.graph.calls if "linear" in n.name] == plan.costs.tabled["a100"]
    assert CostTable.from_json(json.loads(json.dumps(plan.costs.to_json()))) == plan.costs
    told = {row["node"]: row["from_table"] for row in list_heaviest(plan, 10)}
    assert told == {n.name: "linear" in n.name for n in plan.graph.calls}
    usual = pipec.compile(model, x, "2xa100")
    assert usual.costs is not None
    assert usual.costs.of("a100") != plan.costs.of("a100")
    assert not usual.costs.tabled


def test_an_exploration_looks_every_microbatch_up() -> None:
    """Nothing is scaled in proportion, as measured costs of one batch are."""
    x = torch.zeros(64, 256, dtype=torch.bfloat16)
    graph = from_module(nn.Linear(256, 256, bias=False).bfloat16(), (x,)).graph
    cluster = silicon.with_tables(parse_cluster("2xa100"), "silicon:a100")
    made = Maker(Rebatched(graph), cluster, "torch", None, {}).cost_model(64)
    assert made.costs is not None
    assert list(made.costs.of("a100").values()) == pytest.approx([law(64, 256, 256)])
    assert list(made.costs.tabled["a100"]) == [n.name for n in made.graph.calls]


@pytest.mark.parametrize(
    ("devices", "costs", "words"),
    [
        ("2xa100", "silicon:h100", "no device of this kind"),
        ("2xv100", "silicon:v100", "no tables of this GPU"),
        ("2xa100", "silicon:", "no device of this kind"),
    ],
)
def test_a_gpu_that_is_not_there_is_one_clear_error(devices: str, costs: str, words: str) -> None:
    with pytest.raises(CostError, match=words):
        silicon.with_tables(parse_cluster(devices), costs)


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CostError, match="not installed") as error:
        pipec.compile(nn.Linear(8, 8), torch.zeros(2, 8), "2xa100", costs="silicon:a100")
    assert "pipec[silicon]" in str(error.value)


def test_a_damaged_table_is_named(package: Path) -> None:
    path = package / "gemm" / "one" / "1.0" / "gemm_perf.parquet"
    with pytest.raises(CostError, match=r"cannot be read|needs pyarrow"):
        READ(path)


def test_the_package_itself_times_large_products_within_the_data_sheet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[1:])
    monkeypatch.setattr(silicon, "_read_table", READ)
    importlib.invalidate_caches()
    if importlib.util.find_spec(silicon.PACKAGE) is None:
        pytest.skip("the extra silicon is not installed")
    silicon.with_tables(parse_cluster("1xa100"), "silicon:a100")
    model = silicon.load_silicon("a100_sxm")
    rate = 2 * 4096**3 / model._products.seconds(4096, 4096, 4096)
    assert 0.6 * 312e12 < rate < 312e12
    a100 = PRESETS["a100"]
    assert model.launch == pytest.approx(a100.launch_seconds, rel=0.02)
    half = [
        r for r in silicon._table(silicon._folder("a100"), "gemm") if "float16" in r["gemm_dtype"]
    ]
    large = [
        2 * r["m"] * r["n"] * r["k"] / (r["latency"] / 1e3) / a100.peak_flops["bfloat16"]
        for r in half if r["m"] >= 1024 and min(r["n"], r["k"]) >= 2048
    ]  # fmt: skip
    assert statistics.median(large) == pytest.approx(a100.compute_efficiency, abs=0.005)
    errors: dict[str, list[float]] = {
        "mla_gen_pre": [],
        "mla_gen_post": [],
    }  # products with 128 x 512, and with 512 x 128
    for r in silicon._table(silicon._folder("a100"), "mla_bmm"):
        if r["num_tokens"] >= 256:
            n, k = (512, 128) if r["op_name"] == "mla_gen_pre" else (128, 512)
            batch = model._products.seconds(r["num_heads"] * r["num_tokens"], n, k)
            errors[r["op_name"]].append(batch / r["latency"] * 1e3 - 1)
    assert [round(statistics.mean(e), 2) for e in errors.values()] == [0.05, 0.19]


def test_parts_of_a_split_layer_are_looked_up_as_what_they_are() -> None:
    plan, whole = costs_of(nn.Linear(256, 512, bias=False), 64, 256)
    (name,) = whole.of("a100")
    halves = run_passes(parse_pipeline(f"split-layer{{node={name}}}"), plan).costs
    assert halves is not None
    products = [halves.of("a100")[n] for n in halves.tabled["a100"]]
    assert products == pytest.approx([law(64, 256, 256)] * 2, abs=3 * TINY)
    assert halves.method == {"a100": "silicon"}


def test_the_backward_goes_on_in_the_queue_of_the_forward_from_the_last_node() -> None:
    """Launches take a second: a view's is waited for by the operation behind it, in either way."""
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Unflatten(1, (2, 128)), nn.Sigmoid())
    silicon.load_silicon("a100_sxm").launch = 1.0
    plan, costs = costs_of(model, 64, 256)
    _, tanh, view, sigmoid = (n.name for n in plan.graph.calls)
    forward, backward = costs.of("a100"), costs.backward_of("a100")
    near = functools.partial(pytest.approx, abs=1e-3)
    assert (forward[tanh], forward[view], forward[sigmoid]) == near((1.0, 0.0, 2.0))
    assert (backward[sigmoid], backward[view], backward[tanh]) == near((1.0, 0.0, 2.0))
