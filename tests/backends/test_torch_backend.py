"""The torch target: what is written, that it runs, and that two compilations are one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipec.backends.torch.backend import TorchBackend
from pipec.backends.torch.launcher import train_script
from pipec.compiler.driver import emit
from pipec.errors import BackendError
from pipec.frontends.torch_module import from_module
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan
from pipec.plan.store import load_plan
from tests.autodiff.zoo import CASES, seeded
from tests.plans import chain, cut, files, loaded, tied
from tests.runtime.pipelines import scheduled, staged
from tests.toys import mlp


def run_chain(plan: Plan, directory: Path, values: dict[str, torch.Tensor]) -> None:
    for run in TorchBackend().load(plan, directory).stages:
        values |= run(values)


def test_loaded_stages_compute_the_model(tmp_path: Path) -> None:
    graph = mlp(8)
    emit(cut(graph, 4, 8, 12), tmp_path / "out")
    toy = loaded(graph)
    values = dict(toy.example_inputs)
    run_chain(load_plan(tmp_path / "out"), tmp_path / "out", values)
    assert torch.equal(values["y0"], toy.original(toy.example_inputs)["y0"])


def test_tied_and_unread_weights_are_stored_once(tmp_path: Path) -> None:
    emit(cut(tied(), 1, 2), tmp_path / "out")
    stored = [load_file(p) for p in sorted((tmp_path / "out").glob("*/weights.safetensors"))]
    assert [sorted(s) for s in stored] == [["embed.weight", "unused.bias"], [], []]
    plan = load_plan(tmp_path / "out")
    assert plan.find_tied() == {"embed.weight": (0, 2)}
    text = (tmp_path / "out" / "plan.json").read_text()
    assert '"embed.weight":{"stages":[0,2],"owner":0,"aliases":["head.weight"]}' in text


def test_a_stage_says_what_it_lacks(tmp_path: Path) -> None:
    emit(cut(mlp(), 4), tmp_path / "out")
    stage = TorchBackend().load(load_plan(tmp_path / "out"), tmp_path / "out").stages[0]
    with pytest.raises(BackendError, match="x"):
        stage({})


def test_without_weight_data(tmp_path: Path) -> None:
    graph = chain()
    bare = graph.replace(weights={n: w.to("meta") for n, w in graph.weights.items()})
    emit(cut(bare, 4), tmp_path / "out")
    assert not list((tmp_path / "out").glob("stage*"))
    plan = load_plan(tmp_path / "out")
    with pytest.raises(BackendError, match="without its weights"):
        TorchBackend().load(plan, tmp_path / "out")
    with pytest.raises(BackendError, match="exported programs"):
        TorchBackend().check(cut(bare, 4).replace(options={"pt2": True}))


def test_exported_programs_load_and_agree(tmp_path: Path) -> None:
    plan = cut(mlp(), 4).replace(options={"pt2": True})
    emit(plan, tmp_path / "out")
    toy = loaded(plan.graph)
    values = dict(toy.example_inputs)
    run_chain(load_plan(tmp_path / "out"), tmp_path / "out", values)
    first = torch.export.load(tmp_path / "out" / "stage0" / "stage0.pt2")
    assert sorted(first.state_dict) == ["layer0.weight", "layer1.weight"]
    names = [
        o.name for o in load_plan(tmp_path / "out").stages[0].graph.outputs_of(OutputKind.VALUE)
    ]
    assert names == []
    found = first.module()(x=toy.example_inputs["x"])
    assert found.keys() == {"relu0", "relu1"}
    assert all(torch.equal(t, values[name]) for name, t in found.items())


_CHAIN = """
import sys
sys.modules["pipec"] = None
import torch
from pathlib import Path

values = torch.load("inputs.pt")
for stage in sorted(Path("out").glob("stage*/stage*.pt2")):
    program = torch.export.load(stage)
    specs = program.graph_signature.input_specs
    own = [s.arg.name for s in specs if s.kind.name == "USER_INPUT"]
    values |= program.module()(**{name: values[name] for name in own})
torch.save(values, "outputs.pt")
"""


def test_exported_programs_chain_by_name_without_pipec(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, gelu: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = torch.nn.functional.gelu(self.first(gelu))
            self.count.add_(1)
            y = self.second(hidden) * mask
            return {"relu": y, "mask": mask, "weight": self.first.weight, "hidden": hidden}

    model, inputs = Model(), {"gelu": torch.randn(2, 8), "mask": torch.ones(2, 8)}
    want = {name: t.detach().clone() for name, t in model(**inputs).items()}
    model.count.zero_()
    read = from_module(model, tuple(inputs.values()))
    emit(cut(read.graph, 1).replace(options={"pt2": True}), tmp_path / "out")
    torch.save(inputs, tmp_path / "inputs.pt")
    subprocess.run([sys.executable, "-c", _CHAIN], check=True, cwd=tmp_path)
    found = torch.load(tmp_path / "outputs.pt")
    assert found["count"] == 1
    for name, t in want.items():
        assert torch.equal(found[name], t), name


_SCRIPT = """
import sys
from pathlib import Path
from pipec.compiler.driver import emit
from tests.plans import cut, tied
emit(cut(tied(), 1, 2).replace(options={"pt2": True}), Path(sys.argv[1]))
"""


def test_two_processes_write_the_same_bytes_anywhere(tmp_path: Path) -> None:
    """Another process has other hashes of strings."""
    root = Path(__file__).parents[2]
    here, there = (tmp_path / f"somewhere{k}" for k in range(2))
    here.mkdir()
    there.mkdir()
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", _SCRIPT, str(there / "out1")]
    subprocess.run(command, check=True, env=env, cwd=there)
    emit(cut(tied(), 1, 2).replace(options={"pt2": True}), here / "out0")
    first, second = files(here / "out0"), files(there / "out1")
    assert first == second
    for name, content in first.items():
        assert str(tmp_path).encode() not in content, name
        assert str(root).encode() not in content, name


def test_the_script_imports_what_defines_ops_of_other_packages() -> None:
    case = CASES["mixtral"]
    plan = staged(case, seeded(case), 2)
    script = train_script(plan.replace(schedule=scheduled(plan, "gpipe", 2)))
    assert "import transformers.integrations.moe  #" in script
    assert 'allowed=["transformers"]' in script
    compile(script, "train.py", "exec")
