"""Quantised files: seconds to read one, alarms of `verify`, balance of stages on measured costs.

QDQ files as onnxruntime's quantiser writes them, one scale per channel of the weights, of seeded
models with statistics of random frames: MobileNetV3 (large) and ResNet-18 on 96 by 96 pixels,
BERT-base and one as deep but of a third of its width, on 32 tokens. Printed are the processor
seconds of reading each (after another file), how many seeds of right stages `verify` calls wrong,
how many scales that are 1 % too large it reports, and the slowest of four stages over their mean,
beside what the plan predicts: an even cut of few heavy nodes may not exist.
Stages are cut by measured costs of nodes; then again by what they took. One thread; times are of
its processor. ``python -m benchmarks.quantised [MODELS]``.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._exit import positive
from benchmarks._zoo_exports import quantise_file, write
from benchmarks.faults.__main__ import sample, try_fault
from benchmarks.faults.inject import faults
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import emit, make_plan
from pipec.compiler.profile import node_costs, profile_emitted
from pipec.compiler.verify import verify_stages
from pipec.cost.measure import Measuring
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load

STAGES, SCALES, TOKENS, PIXELS = 4, 8, 32, 96
TARGETS = ("onnx", "torch")
MODELS = ("MobileNetV3", "ResNet-18", "BERT-256", "BERT-base")
_BLOCKS = (  # kernel, expanded, out, squeezed and excited, hard swish, stride (its paper, table 1)
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip
Frame = dict[str, np.ndarray]


def conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the size, and its normalisation."""
    padding = kernel // 2
    window = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [window, nn.BatchNorm2d(outputs)]


class Excited(nn.Module):
    """Channels weighed by what their means say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(8, width // 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, width, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] to the same."""
        return x * self.gate(x)  # type: ignore[no-any-return]


class Around(nn.Module):
    """Layers with a sum around them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same."""
        return x + self.inner(x)  # type: ignore[no-any-return]


def mobilenet() -> nn.Module:
    """MobileNetV3, large."""
    layers, width = [*conv(3, 16, 3, 2), nn.Hardswish()], 16
    for kernel, wide, out, excited, swish, stride in _BLOCKS:
        act = nn.Hardswish if swish else nn.ReLU
        inner = nn.Sequential(
            *([*conv(width, wide, 1), act()] if wide != width else []),
            *conv(wide, wide, kernel, stride, wide), act(),
            *([Excited(wide)] if excited else []), *conv(wide, out, 1),
        )  # fmt: skip
        layers.append(Around(inner) if stride == 1 and width == out else inner)
        width = out
    layers += [*conv(width, 960, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))


class Only(nn.Module):
    """One of the values that a transformers model yields."""

    def __init__(self, model: nn.Module, value: str) -> None:
        super().__init__()
        self.model, self.value = model, value

    def forward(self, *args: Tensor) -> Tensor:
        """The output of the model under that name."""
        return getattr(self.model(*args), self.value)  # type: ignore[no-any-return]


def resnet() -> nn.Module:
    """ResNet-18."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=1000
    )
    return Only(ResNetForImageClassification(config), "logits")


def bert(width: int) -> nn.Module:
    """BERT-base without a head, or one of another width."""
    from transformers import BertConfig, BertModel

    sizes = {"num_attention_heads": width // 64, "intermediate_size": 4 * width}
    return Only(BertModel(BertConfig(hidden_size=width, **sizes)), "last_hidden_state")


def with_statistics(model: nn.Module, frames: Iterable[Tensor]) -> nn.Module:
    """The model with normalisations that have seen some frames: activations stay in range.

    Each channel has a scale and a shift of its own; without, most biases of the file would be 0.
    """
    for m in model.train().modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = None
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias, 0.0, 0.3)
    with torch.no_grad():
        for frame in frames:
            model(frame)
    return model.eval()


def file_of(name: str, folder: Path) -> Path:
    """Write one of the files."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    frames: list[Frame]
    if name.startswith("BERT"):
        ids = [rng.integers(0, 30522, (1, TOKENS)) for _ in range(2)]
        frames = [{"ids": i, "mask": np.ones((1, TOKENS), np.int64)} for i in ids]
        model = bert(768 if name == "BERT-base" else 256)
    else:
        model = mobilenet() if name == "MobileNetV3" else resnet()
        model = with_statistics(model, (torch.randn(8, 3, PIXELS, PIXELS) for _ in range(2)))
        frames = [
            {"x": rng.normal(size=(1, 3, PIXELS, PIXELS)).astype(np.float32)} for _ in range(4)
        ]
    example, names = tuple(map(torch.from_numpy, frames[0].values())), list(frames[0])
    export = partial(write, model, example, dynamo=False, opset_version=17, input_names=names)
    path = folder / f"{name}.onnx"
    quantise_file(export, path, "QDQ", frames, per_channel=True)
    return path


def read_model(path: Path, target: str) -> tuple[Loaded, float]:
    """The model, and processor seconds of reading it."""
    begin = time.process_time()
    loaded = load(str(path), LoadOptions(**load_backend(target).reads))
    return loaded, time.process_time() - begin


def slowest(seconds: Sequence[float]) -> float:
    """The slowest stage over the mean of all."""
    return max(seconds) / fmean(seconds)


def balance(loaded: Loaded, target: str, out: Path) -> list[tuple[float, float]]:
    """`slowest` of two cuts, the second by what the first one's stages took; as predicted, and so.

    The cut is the best one for its costs, so that what is predicted is as even as nodes allow."""
    how = Measuring(clock=time.thread_time, repeats=9)
    backend = load_backend(target)
    costs = node_costs(backend, loaded.graph, loaded.example_inputs, "cpu", how)
    found = []
    for cut in range(2):
        plan = make_plan(loaded.graph, parse_cluster(f"{STAGES}xcpu"), target, costs=costs)
        emit(plan, out / f"cut{cut}")
        stages = backend.load(plan, out / f"cut{cut}").stages
        profile = profile_emitted(plan, stages, loaded.example_inputs, 1.0, time.thread_time)
        took = [profile.stages[s.cost_key].F for s in plan.stages]
        predicted = slowest([t.interval_seconds for t in plan.timing])
        found.append((slowest(took), predicted))
        costs = profile.add_to(costs, plan, "cpu")
    return found


def count_alarms(loaded: Loaded, target: str, out: Path, seeds: int) -> tuple[int, int, int]:
    """Seeds of right stages that are called wrong; scales that were changed, and those reported."""
    plan = make_plan(loaded.graph, parse_cluster(f"{STAGES}xcpu"), target)
    emit(plan, out / "clean")
    emitted = load_backend(target).load(plan, out / "clean")
    wrong = sum(not verify_stages(plan, emitted, loaded, seed=s).ok for s in range(seeds))
    kinds = [f for f in faults(out / "clean", target) if f.kind == "a scale x 1.01"]
    chosen = sample([f for f in kinds if f.where.endswith("_scale")], SCALES, 0)
    reports = [try_fault(out / "clean", loaded, f, out, seed) for seed, f in enumerate(chosen)]
    return wrong, len(reports), sum(map(bool, reports))


def main(words: Sequence[str] | None = None) -> int:
    """Print a row per model and target; 1 if an alarm is false or missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=positive, default=100)
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    options = parser.parse_args(words)
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no such model: {', '.join(unknown)}")
    torch.set_num_threads(1)
    amiss = 0
    head = "model        target  nodes  read s  false alarms  scales x 1.01 seen  slowest over mean"
    print(f"{head}, of that predicted")
    with tempfile.TemporaryDirectory(prefix="pipec-quantised-") as name:
        for model in options.models or MODELS:
            path = file_of(model, Path(name))
            read_model(path, "onnx")  # not counted: torch sets itself up
            for target in TARGETS:
                loaded, seconds = read_model(path, target)
                out = Path(name) / f"{model}-{target}"
                out.mkdir()
                first, again = balance(loaded, target, out)
                wrong, tries, seen = count_alarms(loaded, target, out, options.seeds)
                amiss += wrong + tries - seen
                print(
                    f"{model:12} {target:6} {len(loaded.graph.calls):6} {seconds:7.2f} "
                    f"{wrong:5} of {options.seeds:<5} {seen:8} of {tries:<8} "
                    f"{first[0]:6.2f} of {first[1]:.2f}, again {again[0]:.2f} of {again[1]:.2f}",
                    flush=True,
                )
    return int(amiss > 0)


if __name__ == "__main__":
    raise SystemExit(main())
