"""Cutting: any cut in topological order gives parts that compute what the whole computes."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipec.graph.ir import Graph, InputKind, OutputKind
from pipec.graph.lower import lower, with_transfers
from pipec.graph.rules import Role, verify
from pipec.graph.structure import structural_key
from pipec.graph.written import extract, parts_of
from tests.toys import mlp, run


def parts(graph: Graph, cuts: list[int]) -> list[Graph]:
    names = [n.name for n in graph.calls]
    bounds = [0, *sorted(cuts), len(names)]
    return [
        extract(graph, set(names[a:b]), f"Stage{k}")
        for k, (a, b) in enumerate(pairwise(bounds))
        if a < b
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=3))
def test_chained_parts_equal_the_whole(cuts: list[int]) -> None:
    graph, x = mlp(), torch.randn(2, 8)
    values = {"x": x}
    for part in parts(graph, cuts):
        verify(part, role=Role.STAGE)
        values |= run(part, **values)
    assert torch.equal(values["y0"], run(graph, x=x)["y0"])


def test_a_skipped_value_is_input_of_its_reader_only() -> None:
    first, middle, last = parts(mlp(), [2, 4])
    assert [o.name for o in first.outputs] == ["relu0"]
    assert [i.name for i in middle.inputs_of(InputKind.VALUE)] == ["relu0"]
    assert [i.name for i in last.inputs_of(InputKind.VALUE)] == ["relu0", "relu1"]
    assert last.outputs_of(OutputKind.OUTPUT)[0].name == "y0"


def test_transfers_are_put_in_and_peeled_off() -> None:
    graph = mlp()
    first, last = parts(graph, [4])
    nodes = graph.nodes
    ends = [(f"c.{v}", nodes[v]) for v in ("relu0", "relu1")]
    (own,), (other,) = (parts_of(part, [part.calls]) for part in (first, last))
    sender = with_transfers(own, [], ends).graph("First")
    receiver = with_transfers(other, ends, []).graph("Last")
    verify(sender, role=Role.STAGE)
    verify(receiver, role=Role.STAGE)
    low = lower(receiver)
    assert [(t.channel, t.value, t.nbytes) for t in low.receives] == [
        ("c.relu0", "relu0", 64),
        ("c.relu1", "relu1", 64),
    ]
    assert structural_key(low.graph) == structural_key(last)
    assert [t.value for t in lower(sender).sends] == ["relu0", "relu1"]
    assert "torch.ops.pipec.send" in sender.module.code


def test_equal_layers_have_one_key_and_others_another() -> None:
    graph = mlp(layers=5)
    keys = [structural_key(p) for p in parts(graph, [2, 4, 6, 8])]
    assert keys[1] == keys[2] == keys[3]
    assert len({keys[0], keys[1], keys[4]}) == 3
    assert structural_key(parts(mlp(layers=5, width=16), [2])[0]) != keys[0]
