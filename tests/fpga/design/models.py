"""Small networks that use what the light ONNX CNNs and a transformer block use."""

import copy
import pickle
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipec.backends.fpga.engines.base import Nest
from pipec.frontends.trace import trace
from pipec.graph.ir import Graph, Source
from tests.content import content


class ConvBn(nn.Sequential):
    def __init__(
        self, cin: int, cout: int, k: int = 3, stride: int = 1, padding: int = 1, groups: int = 1
    ) -> None:
        super().__init__(
            nn.Conv2d(cin, cout, k, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
        )


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = ConvBn(cin, cout, stride=stride), ConvBn(cout, cout)
        self.skip = ConvBn(cin, cout, 1, stride, 0) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(self.a(x)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvBn(3, 10, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Residual(10, 10, 1), Residual(10, 14, 2)
        )
        self.head = nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.body(x), 1)
        return torch.softmax(self.head(x.flatten(1)), 1)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBn(3, 8)
        self.a, self.b = ConvBn(8, 4, 1, 1, 0), ConvBn(8, 8)
        self.c = ConvBn(8, 4, 5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = F.max_pool2d(x, 3, 1, 1)
        x = torch.cat([self.a(x), self.b(x), self.c(pooled), pooled], 1)
        return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(6), nn.BatchNorm2d(10)
        self.c1, self.c2 = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.c1(torch.relu(self.bn1(x) * 2.0 + 0.5))], 1)
        x = torch.cat([x, self.c2(torch.relu(self.bn2(x)))], 1)
        return F.avg_pool2d(x, 2)


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = ConvBn(6, 12, 1, 1, 0, groups=3)
        self.d = nn.Conv2d(12, 12, 3, 1, 1, groups=12)
        self.b = nn.Conv2d(12, 6, 1, groups=3)
        self.c = nn.Conv2d(6, 9, 3, 2, 1, groups=3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        n, c, h, w = y.shape
        y = y.reshape(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)
        found: Tensor = self.c(torch.relu(x + self.b(self.d(y))))
        return found


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 3, (2, 1), (0, 1)), nn.Conv2d(5, 7, 3, dilation=2)
        self.f, self.g = nn.Linear(7 * 2 * 3, 11), nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 1, 1, 2))
        x = F.max_pool2d(F.relu(self.a(x)), 2, ceil_mode=True)
        x = F.relu6(self.b(F.pad(x, (1, 1, 1, 1)))).flatten(1)
        return F.log_softmax(self.g(F.dropout(F.relu(self.f(x)), 0.5, False)), -1)


class Encoder(nn.Module):
    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(
            width, heads, 20, batch_first=True, activation="gelu", dropout=0.0
        )
        self.embed = nn.Embedding(17, width)
        self.position = nn.Parameter(torch.randn(1, 7, width))

    def forward(self, index: Tensor) -> Tensor:
        found: Tensor = self.block(self.embed(index) + self.position)
        return found


class Attention(nn.Module):
    """Fused QKV, explicit matmuls, causal mask as a constant."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.register_buffer("mask", torch.triu(torch.full((5, 5), -1e9), 1))

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (y.reshape(n, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-1, -2)) / 2.0 + self.mask
        y = torch.softmax(scores, -1) @ v
        found: Tensor = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return found


class Sdpa(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.q, self.k = heads, nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            y.reshape(n, t, self.heads, -1).transpose(1, 2) for y in (self.q(x), self.k(x), x)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(n, t, c)


class Excite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s = x.mean((2, 3), keepdim=True)
        s = torch.sigmoid(self.b(F.silu(self.a(s))))
        first, second = (x * s).split([2, 4], 1)
        return first.flatten(2).transpose(1, 2), torch.tanh(second[:, :, 1:, ::2])


class Mobile(nn.Module):
    """Depthwise, squeeze and excite, hard activations: a block of MobileNet v3."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.d = ConvBn(4, 8, 1, 1, 0), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.down, self.up, self.out = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.d(self.a(x)))
        s = self.up(torch.relu(self.down(F.adaptive_avg_pool2d(y, 1))))
        found: Tensor = x + self.out(y * F.hardsigmoid(s))
        return found


class Upsampling(nn.Module):
    """The way up of a U-Net: bilinear maps joined with those of the way down; cubic ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = ConvBn(3, 4, 3, 2, 1), ConvBn(7, 5, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(self.a(x), scale_factor=2, mode="bilinear", align_corners=True)
        y = self.b(torch.cat((y, x), 1))
        return F.interpolate(y, size=(7, 12), mode="bicubic")


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.gru(x)[0])
        return found


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (ResNet, (2, 3, 20, 20)),
    "inception": (Inception, (1, 3, 9, 8)),
    "dense": (Dense, (1, 3, 8, 8)),
    "shuffle": (Shuffle, (1, 6, 5, 6)),
    "vgg": (Vgg, (1, 3, 14, 9)),
    "encoder": (Encoder, (2, 7)),
    "attention": (Attention, (2, 5, 8)),
    "sdpa": (Sdpa, (1, 5, 8)),
    "excite": (Excite, (2, 6, 5, 6)),
    "mobile": (Mobile, (1, 4, 5, 6)),
    "upsampling": (Upsampling, (1, 3, 6, 8)),
    "gru": (Gru, (2, 3, 4)),
}


def made(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A model in eval mode with non-trivial statistics, and an example input."""
    torch.manual_seed(seed)
    factory, shape = MODELS[name]
    model = factory().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    x = torch.randint(0, 17, shape) if len(shape) == 2 else torch.randn(shape)
    return model, x


class Response(nn.Module):
    """Local response normalisation, and average pooling as one kernel shared by all maps."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.local_response_norm(x, 5, 0.1, 0.75, 2.0)
        n, c, h, w = x.shape
        x = F.pad(x, (0, 1, 0, 1)).reshape(n * c, 1, h + 1, w + 1)
        return F.conv2d(x, torch.full((1, 1, 3, 3), 0.1)).reshape(n, c, h - 1, w - 1)


MODELS["response"] = (Response, (2, 7, 5, 6))
SAMPLES = {kind: nest.sample for kind, nest in Nest.KINDS.items() if nest.sample is not None}
"""The models by which kinds of engines say that they are to be tested, wherever models are."""
assert not MODELS.keys() & SAMPLES.keys()
MODELS |= SAMPLES


_graphs: dict[bytes, tuple[Graph, bytes]] = {}


def graph_of(model: nn.Module, *args: Tensor) -> Graph:
    """The traced graph of a model, once per process for small equal ones that can be pickled.

    Whoever changes it is found out by the next one who asks for it.
    """

    def traced(model: nn.Module) -> Graph:
        return trace(model, args, source=Source("memory", "test"), differentiable=False)

    if sum(p.numel() for p in model.parameters()) > 1 << 18:
        return traced(model)
    try:
        key = content(model, args)
    except (pickle.PicklingError, AttributeError, TypeError):  # of a class inside a test
        return traced(model)
    if key not in _graphs:
        graph = traced(copy.deepcopy(model))
        _graphs[key] = (graph, _told(graph))
    graph, told = _graphs[key]
    assert _told(graph) == told, "a test has changed a graph that others share"
    return graph


def _told(graph: Graph) -> bytes:
    return content(str(graph.module.graph), dict(graph.weights))
