"""JSON and Python of a graph: exact round trips, equal numbers, and nothing runs on load."""

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from pipec.errors import GraphError, PipecError
from pipec.graph.ir import Graph, Origin
from pipec.graph.lower import with_transfers
from pipec.graph.printer import graph_to_python, json_to_python
from pipec.graph.rules import verify
from pipec.graph.serialize import dumps, graph_from_json, graph_to_json
from pipec.graph.structure import structural_key
from pipec.graph.tensor_type import dense_strides, empty_of_type, type_text
from pipec.graph.whitelist import resolve
from pipec.graph.written import extract, parts_of
from tests.toys import Builder, aten, mlp, run


def round_trip(graph: Graph) -> Graph:
    text = dumps(graph_to_json(graph))
    back = graph_from_json(json.loads(text)).replace(weights=graph.weights)
    assert dumps(graph_to_json(back)) == text
    assert structural_key(back) == structural_key(graph)
    return back


def kinds_of_arguments() -> Graph:
    """Every kind of argument that the schema knows."""
    b = Builder()
    x = b.input("x", 2, 3)
    lone = b.call(aten.max.dim, b.call(aten.gelu.default, x), 1)
    y = b.call(torch.ops.aten.clamp.default, b.call(getitem, lone, 0), -math.inf, math.inf)
    z = b.call(aten.cat.default, [y, b.call(aten.mul.Tensor, y, 0.1)])
    b.call(aten.index.Tensor, x, [None, b.call(getitem, lone, 1)])
    w = b.call(aten.full.default, [4], math.nan)
    node = w
    node.kwargs = {"dtype": torch.float32, "device": torch.device("cpu"), "pin_memory": False}
    return b.graph(z, w)


def getitem(value: Any, index: int) -> Any:
    return value[index]


def _with_getitem(graph: Graph) -> Graph:
    import operator

    for n in graph.calls:
        if n.target is getitem:
            n.target = operator.getitem
    graph.module.recompile()
    return graph


def test_round_trip_is_byte_for_byte_and_passes_the_rules() -> None:
    for graph in (mlp(), _with_getitem(kinds_of_arguments())):
        back = round_trip(graph)
        verify(back)
        assert [n.meta["origin"] for n in back.calls] == [n.meta["origin"] for n in graph.calls]


def test_the_same_numbers_from_graph_json_and_python() -> None:
    for graph in (mlp(), _with_getitem(kinds_of_arguments())):
        inputs = {
            i.name: torch.randn(graph.node(i.node).meta["val"].shape)
            for i in graph.inputs
            if not i.kind.is_weight
        }
        want = run(graph, **inputs)
        got = run(round_trip(graph), **inputs)
        python = run_python(graph_to_python(graph), graph, inputs)
        for (name, w), p in zip(want.items(), python, strict=True):
            assert torch.equal(w.nan_to_num(7), got[name].nan_to_num(7))
            assert torch.equal(w.nan_to_num(7), p.nan_to_num(7))


def run_python(text: str, graph: Graph, inputs: dict[str, torch.Tensor]) -> tuple[Any, ...]:
    scope: dict[str, Any] = {}
    exec(compile(text, "F.py", "exec"), scope)
    args = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    result: tuple[Any, ...] = scope["forward"](*args)
    return result


def test_what_people_read() -> None:
    graph = mlp(layers=1)
    whole = graph.nodes
    part = extract(graph, {"relu0", "skip"}, "Stage1")
    (own,) = parts_of(part, [part.calls])
    received, sent = [("s0.s1.linear0", whole["linear0"])], [("s1.s2.skip", whole["skip"])]
    stage = with_transfers(own, received, sent).graph("Stage1")
    stage.node("skip").meta["origin"] = Origin("tail", "Add", 3, "model.py:9")
    assert (
        graph_to_python(stage)
        == '''\
"""Stage1 as Python, written by pipec; its JSON neighbour is what runs.

Weights are arguments. Shapes stand behind every line.
"""

import torch
from torch import device, inf, nan  # noqa: F401

import pipec.graph.comm  # noqa: F401  (defines torch.ops.pipec)

aten = torch.ops.aten
pipec_ops = torch.ops.pipec


def forward():
    """The graph Stage1: 4 operations."""
    # linear0 (aten.linear.default)
    linear0 = pipec_ops.recv.default(channel='s0.s1.linear0', size=[2, 8], dtype=torch.float32)  \
# float32[2,8]
    # relu0 (aten.relu.default)
    relu0 = aten.relu.default(linear0)  # float32[2,8]
    # tail (Add, node 3), model.py:9
    skip = aten.add.Tensor(relu0, relu0)  # float32[2,8]
    # s1.s2.skip (send)
    pipec_ops.send.default(skip, channel='s1.s2.skip', nbytes=64)
    return (
        skip,  # output y0
    )
'''
    )


def test_names_of_a_file_stay_in_comments() -> None:
    graph = mlp(layers=1)
    evil = "x\nimport os; os.abort()  #\r\u2028raise SystemExit\x0c\x1b[2J"
    graph.node("relu0").meta["origin"] = Origin(evil, evil, None, evil)
    data = graph_to_json(graph)
    data["outputs"][0]["name"] = evil
    data["inputs"][0]["name"] = evil
    text = json_to_python(data)
    assert text.count("abort") == 5
    for line in text.splitlines():
        assert "abort" not in line.split("#")[0]
    compile(text, "F.py", "exec")
    with pytest.raises(GraphError, match="not a name"):
        json_to_python({**data, "title": evil})


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "aten.save.default",  # TorchScript's: writes a pickle to any path
        "aten.from_file.default",  # maps, and may create, any file
        "aten.relu_.default",
        "aten._reshape_alias.default",  # a view of any memory
        "aten._sparse_coo_tensor_unsafe.default",
        "aten.mm.out",
        "aten._print.default",
        "aten.__class__.__init__",
        "aten.mm.__class__",
        "aten.no_such_op.default",
        "builtins.eval.default",
        "pipec.send",
        "getitem.default.x",
        "",
        "aten.mm.default\n",
        "higher_order.cond.default",
    ],
)
def test_targets_that_are_refused(name: str) -> None:
    with pytest.raises(GraphError):
        resolve(name)
    data = graph_to_json(mlp())
    data["nodes"][0]["target"] = name
    with pytest.raises(GraphError):
        graph_from_json(data)


def test_ops_outside_the_table_need_the_users_word() -> None:
    data = graph_to_json(mlp())
    row = data["nodes"][0]
    row["target"], row["args"] = "aten.segment_reduce.default", [row["args"][0], {"str": "max"}]
    row["kwargs"] = {"unsafe": True}
    with pytest.raises(GraphError) as caught:
        graph_from_json(data)
    told = str(caught.value)
    assert "linear0" in told
    assert "aten.segment_reduce.default" in told
    assert "--allow-namespace aten" in told
    graph_from_json(data, allowed=["aten"])


def test_foreign_namespaces_need_the_users_word() -> None:
    library = torch.library.Library("pipec_test_ns", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    data = graph_to_json(mlp(layers=1))
    data["namespaces"] = ["pipec_test_ns"]
    data["nodes"][1]["target"] = "pipec_test_ns.twice.default"
    with pytest.raises(GraphError, match="--allow-namespace pipec_test_ns=MODULE"):
        graph_from_json(data)
    back = graph_from_json(data, allowed=["pipec_test_ns"])
    assert back.namespaces == {"pipec_test_ns"}
    undeclared = {**data, "namespaces": []}
    with pytest.raises(GraphError, match="not allowed"):
        graph_from_json(undeclared, allowed=["pipec_test_ns"])
    data["nodes"][1]["target"] = "pipec_test_ns.thrice.default"
    with pytest.raises(GraphError, match="no such op"):
        graph_from_json(data, allowed=["pipec_test_ns"])


VALID = graph_to_json(mlp(layers=2))
JUNK = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.sampled_from(
        ["%linear0", "%skip", {"float": "inf"}, {"dtype": "Tensor"}, {"device": "?"}, [None]]
    ),
)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_file_is_an_error_of_ours(data: st.DataObject) -> None:
    """Any one value of the file replaced by junk loads as a graph or ends in a `PipecError`."""
    spoiled: Any = json.loads(json.dumps(VALID))
    at = spoiled
    while isinstance(at, dict | list) and at:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or data.draw(st.integers(0, 4)) == 0:
            at[key] = data.draw(JUNK)
            break
        at = at[key]
    with contextlib.suppress(PipecError):
        graph_from_json(spoiled)


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    order=st.permutations(range(4)),
    dtype=st.sampled_from(["float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn"]),
)
def test_type_text_round_trip(shape: list[int], order: list[int], dtype: str) -> None:
    t = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    assert t.stride() == dense_strides(tuple(shape))
    t = t.permute([k for k in order if k < t.dim()])
    back = empty_of_type(type_text(t))
    assert (back.shape, back.stride(), back.dtype) == (t.shape, t.stride(), t.dtype)
    assert back.device == t.device


@pytest.mark.parametrize("text", ["", "float32", "float99[2]", "Tensor[2]", "float32[2]{1,1}"])
def test_bad_types(text: str) -> None:
    with pytest.raises(GraphError, match="not a tensor type"):
        empty_of_type(text)


def test_an_output_that_yields_nothing_is_refused() -> None:
    graph = graph_to_json(_with_getitem(kinds_of_arguments()))
    graph["nodes"][-1]["type"] = None
    with pytest.raises(GraphError, match="damaged"):
        graph_from_json(graph)


def test_nothing_of_the_machine_is_in_the_text() -> None:
    text = dumps(graph_to_json(mlp())) + graph_to_python(mlp())
    assert str(Path.cwd()) not in text
    assert fx.__file__ not in text
    assert time.strftime("%Y-%m") not in text
