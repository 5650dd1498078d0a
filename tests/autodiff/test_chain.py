"""The stages of a model, run one after the other, give the loss and gradients of the model."""

import pytest

from pipec.graph.rules import Role, verify
from tests.autodiff.chain import eager, pipeline, worst
from tests.autodiff.zoo import CASES, chain_of


@pytest.mark.parametrize("name", CASES)
def test_chained_stages_equal_plain_autograd(name: str) -> None:
    case = CASES[name]
    module, chain = chain_of(name)
    want = eager(module, case, 3)
    for split in (False, True):
        got = pipeline(chain, case, 3, split=split)
        assert all(abs(float(a - b)) <= 1e-6 for a, b in zip(got.loss, want.loss, strict=True))
        assert worst(got.grads, {n: want.grads[n] for n in got.grads}) <= case.tolerance
        assert want.grads.keys() == got.grads.keys()
        assert worst(got.buffers, {n: want.buffers[n] for n in got.buffers}) <= 1e-6


@pytest.mark.parametrize("name", ["cnn", "bert", "mixtral"])
def test_training_graphs_obey_the_rules_of_the_ir(name: str) -> None:
    for t in chain_of(name)[1].training:
        for kind, graph in t.graphs.items():
            verify(graph, role=Role(kind))
