"""The models that every FPGA benchmark takes: nine light CNNs and five others, random weights."""

from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from tests.frontends.onnx.models import LIGHT
from tests.frontends.onnx.test_light import random_weights

CNNS = sorted(p.stem.removeprefix("light_") for p in LIGHT.glob("light_*.onnx"))

Made = tuple[nn.Module, tuple[Tensor, ...]]


def separable(cin: int, cout: int, stride: int) -> nn.Sequential:
    """Depthwise and pointwise convolution, as in MobileNet v1 (arXiv:1704.04861)."""
    return nn.Sequential(
        nn.Conv2d(cin, cin, 3, stride, 1, groups=cin, bias=False), nn.BatchNorm2d(cin), nn.ReLU6(),
        nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU6(),
    )  # fmt: skip


def mobilenet() -> Made:
    """MobileNet v1 at a quarter of the width, 128 x 128."""
    pairs = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2),
             *[(128, 128, 1)] * 5, (128, 256, 2), (256, 256, 1)]  # fmt: skip
    body = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()]
    body += [separable(*pair) for pair in pairs]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)]
    model, x = nn.Sequential(*body, *head), torch.randn(1, 3, 128, 128)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the statistics of one image, or its signal dies out
    with torch.no_grad():
        model.train()(x)
    return model, (x,)


def mlp() -> Made:
    """784 - 512 - 256 - 10."""
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 10)]
    return nn.Sequential(*layers, nn.Softmax(-1)), (torch.randn(4, 784),)


def gru_cell() -> Made:
    """One step of a GRU, 64 to 128."""
    return nn.GRUCell(64, 128), (torch.randn(4, 64), torch.randn(4, 128))


def lstm_cell() -> Made:
    """One step of an LSTM, 64 to 128."""
    state = (torch.randn(4, 128), torch.randn(4, 128))

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(64, 128)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = self.cell(x, (h, c))
            return found

    return Cell(), (torch.randn(4, 64), *state)


def encoder() -> Made:
    """A transformer encoder block, 256 wide, 4 heads, 64 positions."""
    block = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu")
    return block, (torch.randn(1, 64, 256),)


OTHERS: dict[str, Callable[[], Made]] = {
    "encoder": encoder,
    "gru_cell": gru_cell,
    "lstm_cell": lstm_cell,
    "mlp": mlp,
    "mobilenet": mobilenet,
}
NAMES = (*OTHERS, *CNNS)


def make_model(name: str) -> Made:
    """One of `OTHERS` in eval mode, seeded."""
    torch.manual_seed(0)
    model, inputs = OTHERS[name]()
    return model.eval(), inputs


def write_model(name: str, folder: Path) -> str:
    """Save a model with random weights; returns its spec."""
    if name in OTHERS:
        head = "from benchmarks._fpga_models import make_model\n"
        text = f"{head}def factory():\n    return make_model({name!r})\n"
        (folder / f"{name}.py").write_text(text)
        return f"{folder / name}.py:factory"
    path = folder / f"{name}.onnx"
    onnx.save(random_weights(onnx.load(LIGHT / f"light_{name}.onnx"), seed=1), path)
    return str(path)
