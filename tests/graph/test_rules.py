"""Each rule of the IR is broken once, and the finding names the node."""

import pytest
import torch

from pipec.errors import GraphError
from pipec.graph.ir import GraphOutput, InputKind, OutputKind
from pipec.graph.rules import Checker, Role, verify
from tests.toys import Builder, aten, mlp


def broken_rule(name: str, match: str, graph: object) -> None:
    with pytest.raises(GraphError, match=match) as caught:
        verify(graph)  # type: ignore[arg-type]
    assert f"[{name}]" in str(caught.value)


def test_a_clean_graph_passes_every_rule() -> None:
    verify(mlp())
    assert not Checker().find_violations(mlp(), Role.MODEL)


def test_mutating_op() -> None:
    b = Builder()
    x = b.input("x", 2)
    broken_rule("functional", "relu_", b.graph(b.call(aten.relu_.default, x)))


def test_view_is_banned() -> None:
    b = Builder()
    graph = b.graph(b.call(aten.view.default, b.input("x", 2, 2), [4]))
    broken_rule("known-ops", "want reshape", graph)


def test_undeclared_namespace_and_plain_function() -> None:
    b = Builder()
    y = b.call(torch.relu, b.input("x", 2))
    broken_rule("known-ops", "not an op overload", b.graph(y))


def test_missing_annotation_and_origin() -> None:
    graph = mlp()
    graph.node("relu1").meta.clear()
    broken_rule("typed", "relu1: got no value", graph)
    broken_rule("originated", "relu1: got no origin", graph)


def test_signature_must_list_what_is_there() -> None:
    graph = mlp()
    broken_rule("signature", "placeholders", graph.replace(inputs=graph.inputs[1:]))
    other = (GraphOutput("relu0", OutputKind.OUTPUT, "y"),)
    broken_rule("signature", "output tuple", graph.replace(outputs=other))


def test_weight_missing_or_of_another_shape() -> None:
    graph = mlp()
    broken_rule("weights", "layer0.weight is missing", graph.replace(weights={}))
    wrong = {**graph.weights, "layer0.weight": torch.zeros(3)}
    broken_rule("weights", r"float32\[3\]; want float32\[8,8\]", graph.replace(weights=wrong))


def test_method_calls_are_refused() -> None:
    b = Builder()
    x = b.input("x", 2)
    method = b.fx.call_method("relu", (x,))
    method.meta["val"] = x.meta["val"]
    broken_rule("kinds-of-nodes", "a call_method node", b.graph(method))


def test_all_findings_come_at_once() -> None:
    graph = mlp()
    graph.node("relu1").meta.clear()
    graph.node("relu2").meta.clear()
    with pytest.raises(GraphError, match="breaks 4 rule") as caught:
        verify(graph)
    assert "relu1" in str(caught.value)
    assert "relu2" in str(caught.value)


def test_kinds_of_inputs() -> None:
    assert [k for k in InputKind if k.is_weight] == ["parameter", "buffer", "state", "constant"]


def test_an_output_may_not_have_another_nodes_name() -> None:
    graph = mlp()
    (output,) = graph.outputs
    named = (GraphOutput(output.node, OutputKind.OUTPUT, "relu0"),)
    broken_rule("names", "got yielded as relu0", graph.replace(outputs=named))
