"""Factories: their forms, and one clear error for every way that one can be wrong."""

from pathlib import Path

import pytest
import torch

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions
from pipec.frontends.load import load
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import InputKind, OutputKind
from tests.frontends.torch.running import run

FILE = Path(__file__).with_name("factories.py")


def line(text: str) -> int:
    """Number of the first line with ``text``."""
    return next(k for k, t in enumerate(FILE.read_text().splitlines(), 1) if text in t)


def spec(name: str) -> str:
    return f"{FILE}:{name}"


def test_a_factory_by_file_and_by_module() -> None:
    for where in (spec("classifier"), "tests.frontends.torch.factories:classifier"):
        loaded = load(where)
        x = loaded.example_inputs
        assert torch.equal(run(loaded.graph, x)["output"], loaded.original(x)["output"])
        assert loaded.graph.source.kind == "factory"
        assert loaded.graph.source.location == where


def test_loss_and_target_are_part_of_a_training_graph() -> None:
    graph = load(spec("classifier"), LoadOptions(training=True)).graph
    assert [i.name for i in graph.inputs_of(InputKind.INPUT)] == ["input", "target"]
    assert [o.kind for o in graph.outputs] == [OutputKind.LOSS]
    named = load(spec("two_targets"), LoadOptions(training=True))
    inputs = [i.name for i in named.graph.inputs_of(InputKind.INPUT)]
    assert inputs == ["input", "wanted", "weight"]
    x = named.example_inputs
    assert torch.equal(run(named.graph, x)["loss"], named.original(x)["loss"])


def test_a_model_may_compute_its_own_loss() -> None:
    graph = load(spec("own_loss"), LoadOptions(training=True)).graph
    assert [(o.name, o.kind) for o in graph.outputs] == [("loss", "loss")]
    assert [o.name for o in load(spec("own_loss")).graph.outputs] == ["logits", "loss"]


def test_shapes_stand_in_for_example_inputs_and_replace_them() -> None:
    wanted = LoadOptions(shapes={"input": (2, 3, 8, 8)})
    loaded = load(spec("only_module"), wanted)
    assert loaded.example_inputs["input"].shape == (2, 3, 8, 8)
    wider = load(spec("seeded"), LoadOptions(shapes={"input": (5, 4)}))
    assert wider.original(wider.example_inputs)["output"].shape == (5, 3)


@pytest.mark.parametrize(
    ("name", "message", "place"),
    [
        ("nonsense", "something else than a model", "factories.py:nonsense"),
        (
            "raises",
            "KeyError: 'no such checkpoint'",
            f"factories.py:{line('raise KeyError')} in raises",
        ),
        ("untraceable", "cannot be traced", f"factories.py:{line('if x.sum()')} in forward"),
        ("returns_object", "something that is not a tensor", "output1"),
        ("number", "cannot be called", "factories.py:number"),
        ("clasifier", "did you mean 'classifier'?", "factories.py:clasifier"),
        ("only_module", "no example inputs", "Conv2d"),
    ],
)
def test_a_wrong_factory_is_one_clear_error(name: str, message: str, place: str) -> None:
    with pytest.raises(FrontendError) as caught:
        load(spec(name))
    assert message in str(caught.value)
    assert place in str(caught.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(FrontendError, match="no such model file"):
        load("nowhere/net.py:make")
    with pytest.raises(FrontendError, match="No module named 'nowhere'"):
        load("nowhere.net:make")
    with pytest.raises(FrontendError, match="the factory is not named"):
        load(str(FILE))
    with pytest.raises(FrontendError, match="no front end reads this model"):
        load("model.tflite")
    with pytest.raises(FrontendError, match="no such input"):
        load(spec("seeded"), LoadOptions(shapes={"x": (5, 4)}))
    with pytest.raises(FrontendError, match="the loss is not one floating point number"):
        load(spec("seeded"), LoadOptions(training=True))
    with pytest.raises(FrontendError, match="do not fit"):
        from_module(torch.nn.Linear(2, 2), (torch.ones(1, 2), torch.ones(1, 2)))


def test_a_broken_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\n\ndef make(:\n")
    with pytest.raises(FrontendError, match=r"broken\.py:3"):
        load(f"{tmp_path / 'broken.py'}:make")
