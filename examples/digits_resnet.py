"""A residual convolutional network with BatchNorm under 1F1B: the result of one device."""

import torch
from digits import PER_EPOCH, accuracy, batch, cosine, plan_of, sgd
from torch import Tensor, nn

from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline

MICROBATCHES = 4
ROUNDS, LR = 4 * PER_EPOCH // MICROBATCHES, 0.1


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)]
        norms = [nn.BatchNorm2d(width) for _ in range(2)]
        self.body = nn.Sequential(convolutions[0], norms[0], nn.ReLU(), convolutions[1], norms[1])

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def resnet(width: int = 12, blocks: int = 4) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1), nn.ReLU()
    last = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10)
    return nn.Sequential(*first, *(Block(width) for _ in range(blocks)), *last)


for stages in (4, 1):
    model = resnet()
    plan = plan_of(model, "1f1b", stages, MICROBATCHES)
    pipeline = LocalPipeline(plan, batch, Settings(sgd(LR), cosine(ROUNDS)))
    pipeline.run(ROUNDS)
    print(f"{stages} stages: {accuracy(model.eval(), pipeline.state_dict()):.1%}", flush=True)
