"""What every backend must do, as tests that pytest finds: those of pipec pass it, yours can.

```python
from pipec.testing.conformance import BackendConformance

class TestMine(BackendConformance):
    target = "mine"
```
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pipec
from pipec.compiler.backend import load_backend
from pipec.compiler.job import Job
from pipec.errors import BackendError
from pipec.plan.model import Plan
from pipec.plan.store import load_plan, write_plan

Model = Callable[[], tuple[nn.Module, Tensor]]


def mlp() -> tuple[nn.Module, Tensor]:
    """Four linear layers with ReLUs, and an input of two rows."""
    layers = [m for _ in range(4) for m in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(2, 8)


def cnn() -> tuple[nn.Module, Tensor]:
    """Two convolutions with pooling and a classifier, and an image."""
    features = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)]
    return nn.Sequential(*features, nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)), torch.randn(
        1, 1, 8, 8
    )


class BackendConformance:
    """The suite; a subclass names its target.

    Attributes:
        target: What ``--target`` calls it; it is installed, or registered by `pipec.register`.
        models: Makes the models that it must be able to emit, with one input each.
        options: Options of the compilation, such as ``precision``.
        run_options: Options of `pipec run`.
    """

    target: ClassVar[str]
    models: ClassVar[tuple[Model, ...]] = (mlp, cnn)
    options: ClassVar[Mapping[str, Any]] = {}
    run_options: ClassVar[Mapping[str, Any]] = {}

    def test_what_is_emitted_computes_the_model(self, tmp_path: Path) -> None:
        """`verify` compares every value that crosses a cut, and the outputs."""
        for number, make in enumerate(self.models):
            model, x = _make_seeded(make)
            directory = tmp_path / str(number)
            self._plan(model, x).save(directory)
            report = pipec.verify(directory, model, x, trust=True)
            assert report.ok, report
            assert len(report.boundaries) > 1

    def test_the_same_plan_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """Nothing of the time, the machine or the directory is in the files."""
        found = []
        for name in "ab":
            model, x = _make_seeded(self.models[0])
            self._plan(model, x).save(tmp_path / name)
            files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
            found.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
        assert found[0] == found[1]

    def test_every_stage_has_a_time(self) -> None:
        """One per stage, above zero."""
        plan = self._plan(*_make_seeded(self.models[0]))
        times = load_backend(self.target).stage_seconds(plan)
        assert len(times) == len(plan.stages)
        assert all(t.interval_seconds > 0 for t in times)

    def test_run_gives_what_the_model_gives(self, tmp_path: Path) -> None:
        """Within the error that the backend says its numbers explain."""
        for number, make in enumerate(self.models):
            model, x = _make_seeded(make)
            directory = tmp_path / str(number)
            plan = self._plan(model, x)
            plan.save(directory)
            allowed = load_backend(self.target).load(load_plan(directory), directory).tolerance
            assert self._error(directory, model, x) <= allowed

    def test_wrong_artifacts_are_seen_by_verify_and_by_run(self, tmp_path: Path) -> None:
        """Those of the same model with its last weights times 7, under the plan of the model."""
        model, x = _make_seeded(self.models[0])
        wrong = copy.deepcopy(model)
        with torch.no_grad():
            list(wrong.parameters())[-2].mul_(7)
        load_backend(self.target).emit(self._plan(wrong, x), tmp_path)
        write_plan(self._plan(model, x), tmp_path)
        assert not pipec.verify(tmp_path, model, x, trust=True).ok
        assert self._error(tmp_path, model, x) > 0.1

    def test_an_option_of_nobody_is_refused_by_name(self) -> None:
        """The message names the option and the target."""
        text = ""
        try:
            self._plan(*_make_seeded(self.models[0]), no_such_option=1)
        except BackendError as error:
            text = str(error)
        assert f"the target {self.target} has no option no_such_option" in text

    def _plan(self, model: nn.Module, x: Tensor, **options: Any) -> Plan:
        devices = load_backend(self.target).devices
        merged = {**self.options, **options}
        return pipec.compile(
            model, x, devices, target=self.target, schedule="inference", microbatches=2, **merged
        )

    def _error(self, directory: Path, model: nn.Module, x: Tensor) -> float:
        """The largest relative error of what `run` yields, of two microbatches."""
        plan, backend = load_plan(directory), load_backend(self.target)
        (name,) = (i.name for i in plan.graph.inputs if not i.kind.is_weight)
        batch = [x, torch.randn(x.shape)]
        path = directory.parent / f"{directory.name}.safetensors"
        options = backend.run_options(**self.run_options)
        backend.run(
            plan, Job(directory, options, lambda: lambda k: {name: batch[k]}, None, 1, path)
        )
        (found,) = load_file(path).values()
        with torch.no_grad():
            want = torch.stack([model(b) for b in batch])
        return float((found - want).abs().max() / want.abs().max())


def _make_seeded(make: Model) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = make()
    return model.eval(), x
