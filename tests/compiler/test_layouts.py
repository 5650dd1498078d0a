"""Layouts of other runtimes: read, laid out, judged; and the best split written for them."""

import re
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.compiler.export import FORMATS, Split, split_layers
from pipec.compiler.layers import Layout, layers_of, parse_layout, place_layers
from pipec.compiler.pass_manager import parse_pipeline
from pipec.errors import PartitionError
from pipec.frontends.torch_module import from_module
from pipec.plan.model import Plan
from pipec.schedule.schedule import Placement


class Uneven(nn.Module):
    """An embedding, layers of which the last are wide, a norm and a head."""

    def __init__(self, widths: tuple[int, ...] = (16, 16, 16, 16, 131072, 131072)) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, w, batch_first=True, dropout=0.0) for w in widths
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


TOKENS = torch.arange(64).reshape(4, 16) % 50


@pytest.fixture(scope="module")
def plan() -> Plan:
    model = Uneven().eval()
    return make_plan(from_module(model, (TOKENS,)).graph, parse_cluster("3xv100"))


def megatron(text: str) -> list[list[str]]:
    """As `PipelineParallelLayerLayout.parse_str_to_list` of Megatron-LM reads it, written anew."""
    text = text.replace(",", "")
    while "*" in text:
        text = re.sub(
            r"\(([^()]*)\)\*(\d+)|(.)\*(\d+)",
            lambda m: (m[1] * int(m[2])) if m[1] is not None else m[3] * int(m[4]),
            text,
            count=1,
        )
    return [list(stage) for stage in text.split("|")]


@pytest.mark.parametrize("text", ["E|(t|)*11m|m|m|L", "Et*3|(tt|)*29,m|L", "Ettt|tt|tL", "E|t|L"])
def test_layouts_are_those_of_megatron(text: str) -> None:
    stages, found = megatron(text), parse_layout(text)
    assert found.layers == tuple(sum(c in "tm" for c in stage) for stage in stages)
    assert "E" in stages[found.first]
    assert "L" in stages[found.last]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_a_layout_is_read_as_it_is_written(counts: list[int]) -> None:
    layout = Layout(tuple(counts), 0, len(counts) - 1)
    assert parse_layout(str(layout)) == layout
    assert parse_layout(",".join(map(str, counts))) == layout


@pytest.mark.parametrize(
    "text",
    [
        *("", "tEt", "E||L", "Ltt", "x", "t*", "(t|)*999999", "1,,2", "-1"),
        *(f"1,{10**20}", f"1,{'9' * 5000}", f"t*{'9' * 5000}", f"(t|)*{'9' * 5000}"),
    ],
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(PartitionError):
        parse_layout(text)


def test_stages_hold_the_layers_that_a_layout_says(plan: Plan) -> None:
    layout = parse_layout("Et|tttt|tL")
    layers, stage = layers_of(plan.graph), place_layers(plan.graph, layout)
    assert layers.names == ("embed", *(f"layers.{k}" for k in range(6)), "norm", "head")
    heavy = {n.name for n in plan.graph.calls if "linear" in n.name or "addmm" in n.name}
    assert heavy
    want = dict(zip(layers.names, [0, 0, 1, 1, 1, 1, 2, 2, 2], strict=True))
    for n, layer, at in zip(plan.graph.calls, layers.of, stage, strict=True):
        if n.name in heavy:
            assert at == want[layers.names[layer]], n.name
    order = {n.name: k for k, n in enumerate(plan.graph.calls)}
    for n in plan.graph.calls:
        assert all(stage[order[p.name]] <= stage[order[n.name]] for p in n.all_input_nodes
                   if p.name in order)  # fmt: skip


def test_a_plan_is_made_of_a_layout(plan: Plan) -> None:
    passes = parse_pipeline("simplify,annotate-cost,partition{layout=1,4,1},insert-comm")
    laid = make_plan(plan.graph, parse_cluster("3xv100"), passes=passes)
    assert laid.partition is not None
    seconds = laid.partition.seconds
    assert seconds[1] == laid.partition.max_load > laid.partition.lower_bound
    with pytest.raises(PartitionError, match="another number of layers"):
        make_plan(
            plan.graph, parse_cluster("2xv100"), passes=parse_pipeline(
                "simplify,annotate-cost,partition{layout=2,2}"
            ),
        )  # fmt: skip


def test_the_split_is_the_best_between_layers(plan: Plan) -> None:
    """Against every split into whole layers, timed as any layout is."""
    split = split_layers(plan)
    best = float("inf")
    for a in range(7):
        for b in range(a + 1, 7):
            counts = (a, b - a, 6 - b)
            text = ",".join(map(str, counts))
            passes = parse_pipeline(f"simplify,annotate-cost,partition{{layout={text}}}")
            laid = make_plan(plan.graph, parse_cluster("3xv100"), passes=passes)
            assert laid.partition is not None
            best = min(best, laid.partition.max_load)
    assert max(split.seconds) == pytest.approx(best)
    assert max(split.seconds) == pytest.approx(split.lower_bound)
    assert split.even is not None
    assert split.even > max(split.seconds)
    assert split.numbered[0] > split.numbered[-1]


class Returning(nn.Module):
    """Four layers of six and the first again: three layers to each of two stages go backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in (0, 1, 2, 3, 0, 4, 5):
            x = self.layers[k](x)
        return x


def test_a_model_without_an_even_split_has_a_best_one() -> None:
    graph = from_module(Returning().eval(), (torch.ones(2, 8),)).graph
    split = split_layers(make_plan(graph, parse_cluster("2xv100")))
    assert split.even is None
    assert split.parts[0][:4] == tuple(f"layers.{k}" for k in range(4))
    assert split.parts[1][0] in FORMATS["torch"](split)


def test_a_split_into_more_stages_than_devices_is_refused(plan: Plan) -> None:
    """Such as that of a plan with several stages per device."""
    with pytest.raises(PartitionError, match=r"one stage per device[^$]*4 stages[^$]*--stages 3"):
        split_layers(plan, 4)
    assert len(split_layers(plan, 3).parts) == 3


@pytest.mark.parametrize("homes", [((0, 1), (2,)), ((0,), (2,)), ((1,), (0,)), ((0,), (0,))])
def test_stages_elsewhere_are_not_split_as_if_they_were_in_order(
    plan: Plan, homes: tuple[tuple[int, ...], ...]
) -> None:
    """Replicas, a device left out, another order, a shared device."""
    placed = plan.replace(placement=Placement.together(homes))
    with pytest.raises(PartitionError, match=r"one stage per device[^$]*stage [01][^$]*--stages N"):
        split_layers(placed)
    assert split_layers(placed, 3) == split_layers(plan, 3)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch calls its own
def test_torch_cuts_where_it_is_told(plan: Plan) -> None:
    split = split_layers(plan)
    place: dict[str, Any] = {}
    exec(FORMATS["torch"](split), place)
    model = Uneven().eval()
    pipe = pipeline(model, mb_args=(TOKENS,), split_spec=place["SPLIT"])
    assert set(place["SPLIT"].values()) == {SplitPoint.BEGINNING}
    assert pipe.num_stages == 3
    for number, part in enumerate(split.parts):
        names = {n for n, _ in pipe.get_stage_module(number).named_parameters()}
        for layer in part:
            assert any(n.startswith(f"{layer}.") for n in names), (number, layer)
    x: Any = TOKENS
    for number in range(3):
        x = pipe.get_stage_module(number)(x)
    torch.testing.assert_close(x, model(TOKENS))


class Residual(nn.Module):
    """Layers whose results are added between them: no layer has the additions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(7))
        self.head = nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        out: torch.Tensor = self.head(x)
        return out


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_what_lies_between_layers_is_timed_where_the_runtime_leaves_it(stages: int) -> None:
    model, cluster = Residual().eval(), parse_cluster(f"{stages}xv100")
    plan = make_plan(from_module(model, (TOKENS,)).graph, cluster)
    split = split_layers(plan)
    layout = Layout(split.numbered, 0, stages - 1)
    passes = parse_pipeline(f"simplify,annotate-cost,partition{{layout={layout}}}")
    laid = make_plan(plan.graph, cluster, passes=passes)
    assert laid.partition is not None
    assert split.seconds == pytest.approx(laid.partition.seconds)
    place: dict[str, Any] = {}
    exec(FORMATS["torch"](split), place)
    pipe = pipeline(model, mb_args=(TOKENS,), split_spec=place["SPLIT"])
    for number in range(stages):
        there = str(pipe.get_stage_module(number).graph).count("aten.add")
        mine = [n for n, s in laid.partition.stage_of.items() if s == number]
        assert there == sum("add" in n for n in mine)


class Beside(nn.Module):
    """Two branches whose layers are called by turns, and a head that is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other, branches = self.head(x), [x, x]
        for k, layer in enumerate(self.layers):
            branches[k % 2] = layer(branches[k % 2])
        out: torch.Tensor = branches[0] + branches[1] + other
        return out


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_no_layer_stands_before_one_that_is_called_earlier(stages: int) -> None:
    """Runtimes cut the list of layers, whatever reads what."""
    model, x = Beside().eval(), torch.ones(4, 32)
    plan = make_plan(from_module(model, (x,)).graph, parse_cluster(f"{stages}xv100"))
    split = split_layers(plan)
    assert [n for part in split.parts for n in part] == list(layers_of(plan.graph).names)
    place: dict[str, Any] = {}
    exec(FORMATS["torch"](split), place)
    pipe = pipeline(model, mb_args=(x,), split_spec=place["SPLIT"])
    for number, part in enumerate(split.parts):
        there = pipe.get_stage_module(number).named_parameters()
        assert {n.rsplit(".", 1)[0] for n, _ in there} == set(part)


def test_names_are_quoted() -> None:
    split = Split((("a",), ('b"c\\',)), (1, 1), (1.0, 1.0), 1.0, 1.0)
    place: dict[str, Any] = {}
    exec(FORMATS["torch"](split), place)
    assert [*place["SPLIT"]] == ['b"c\\']


def llama_devices(shares: list[int], layers: int) -> list[int]:
    """llama.cpp's rule: the first device whose running share is beyond the layer's."""
    splits = np.cumsum(np.array(shares, np.float32)) / np.float32(sum(shares))
    act = layers + 1
    places = [np.float32(k) / np.float32(act) for k in range(act)]
    return [int(np.searchsorted(splits, place, "right")) for place in places]


def vllm_layers(partition: str, rank: int, stages: int, layers: int) -> tuple[int, int]:
    """vLLM's rule (``get_pp_indices``): first layer of a rank, and the end."""
    counts = [int(count) for count in partition.split(",")]
    assert len(counts) == stages
    assert sum(counts) == layers
    return sum(counts[:rank]), sum(counts[: rank + 1])


def torchtitan_stage(model: nn.Module, names: list[str]) -> set[str]:
    """Parameters that torchtitan keeps (``_split_module``): of children and of items of lists."""
    kept = set()
    for child, module in model.named_children():
        items = module.named_children() if isinstance(module, nn.ModuleList) else [("", module)]
        for item, part in items:
            path = f"{child}.{item}".rstrip(".")
            if path in names:
                kept |= {f"{path}.{n}" for n, _ in part.named_parameters()}
    return kept


def test_deepspeed_gets_all_layers_or_says_so(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is no layer of a model that is not trained; DeepSpeed would drop the last layers."""

    class PipelineModule:
        global_rank = 1
        _topo = SimpleNamespace(get_coord=lambda rank: SimpleNamespace(pipe=rank))

        def __init__(self, layers: list[str]) -> None:
            self._layer_specs = layers
            self._partition_layers()

        def _set_bounds(self, start: int, stop: int) -> None:
            self.mine = self._layer_specs[start:stop]

        def _partition_layers(self, method: str = "uniform") -> None:
            raise AssertionError(method)

    pipe = SimpleNamespace(PipelineModule=PipelineModule)
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(pipe=pipe))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    split, found = split_layers(plan), dict[str, Any]()
    exec(FORMATS["deepspeed"](split), found)
    assert tuple(found["Cut"](found["LAYERS"]).mine) == split.parts[1]
    with pytest.raises(ValueError, match=f"got {len(found['LAYERS']) + 1} layers"):
        found["Cut"]([*found["LAYERS"], "dropout"])


def test_torchtitan_splits_where_it_is_told(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(ParallelismConfig=dict)
    monkeypatch.setitem(sys.modules, "torchtitan", SimpleNamespace(config=library))
    monkeypatch.setitem(sys.modules, "torchtitan.config", library)
    split = split_layers(plan)
    found: dict[str, Any] = {}
    exec(FORMATS["torchtitan"](split), found)
    told, model = found["PARALLELISM"], Uneven()
    assert told["pipeline_parallel_degree"] == 3
    kept = [torchtitan_stage(model, names) for names in told["module_fqns_per_model_part"]]
    assert sum(map(len, kept)) == len(set().union(*kept)) == len(list(model.parameters()))
    assert all(any(n.startswith(f"{layer}.") for n in kept[k])
               for k, part in enumerate(split.parts) for layer in part)  # fmt: skip


def test_torchtitan_has_no_layers_further_down(plan: Plan) -> None:
    split = split_layers(plan)
    inner = replace(split, parts=(("model.embed", "model.layers.0"), ("model.norm",)))
    with pytest.raises(PartitionError, match=r"got:\s+model\.embed"):
        FORMATS["torchtitan"](inner)


def test_every_text_says_the_split(plan: Plan) -> None:
    split = split_layers(plan)
    texts = {name: FORMATS[name](split) for name in FORMATS}
    name, _, value = texts["vllm"].partition("=")
    assert name == "VLLM_PP_LAYER_PARTITION"
    ends = [vllm_layers(value, rank, stages=3, layers=6) for rank in range(3)]
    assert [b - a for a, b in ends] == list(split.numbered)
    stages = megatron(texts["megatron"].split("'")[1])
    assert tuple(stage.count("t") for stage in stages) == split.numbered
    shares = [int(s) for s in texts["llama.cpp"].rsplit(" ", 1)[1].split(",")]
    want = [s for s, count in enumerate(split.numbered) for _ in range(count)] + [2]
    assert llama_devices(shares, 6) == want
    found: dict[str, Any] = {}
    names = texts["deepspeed"].splitlines()
    exec("\n".join(n for n in names if n.startswith(("PARTS", "LAYERS"))), found)
    parts = [tuple(found["LAYERS"][a:b]) for a, b in pairwise(found["PARTS"])]
    assert tuple(parts) == split.parts


def test_more_stages_than_layers(plan: Plan) -> None:
    with pytest.raises(PartitionError, match="fewer layers than stages"):
        split_layers(plan, 10)


def test_a_layout_that_leaves_a_stage_without_work_is_refused(plan: Plan) -> None:
    with pytest.raises(PartitionError, match="a stage without work") as caught:
        place_layers(plan.graph, parse_layout("1,0,5"))
    assert "stage 1 of E" in str(caught.value)
