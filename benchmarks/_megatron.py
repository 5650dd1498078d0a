"""A GPT as Megatron-LM ran it on A100: attention not fused, so that its scores stand in memory."""

import math

import torch
from torch import Tensor, nn

DROPOUT = 0.1  # Megatron-LM's --hidden-dropout and --attention-dropout


def drop_out(x: Tensor) -> Tensor:
    """Dropout with its mask written, as in training."""
    out: Tensor = torch.native_dropout(x, DROPOUT, train=True)[0]
    return out


class Embedding(nn.Module):
    """Of words and positions."""

    def __init__(self, width: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.register_buffer("at", torch.arange(tokens))

    def forward(self, words: Tensor) -> Tensor:
        """[tokens, batch] to [tokens, batch, width]."""
        positions = self.positions(self.at)
        return drop_out(self.words(words) + positions[:, None])


class Layer(nn.Module):
    """Attention and a perceptron of four times the width; every bias behind its product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out, self.down = (nn.Linear(n * width, width, bias=False) for n in (1, 4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(n * width)) for n in (1, 4, 1)])
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Through attention, then the perceptron; [tokens, batch, width]."""
        tokens, batch, width = x.shape
        size = width // self.heads
        parts = self.qkv(self.first(x)).view(tokens, batch * self.heads, 3 * size)
        q, k, v = (part.transpose(0, 1) for part in parts.chunk(3, -1))
        scores = torch.bmm(q / math.sqrt(size), k.transpose(1, 2))
        mixed = torch.bmm(drop_out(torch.softmax(scores, -1)), v)
        together = mixed.transpose(0, 1).reshape(tokens, batch, width)
        one, two, three = self.biases
        x = x + drop_out(self.out(together) + one)
        up = nn.functional.gelu(self.up(self.second(x)) + two)
        return x + drop_out(self.down(up) + three)


class Head(nn.Module):
    """The last norm, the logits and, in single precision, their loss."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, batch, width] to the log-probability of each word."""
        logits = self.logits(self.norm(x)).flatten(0, 1)
        return torch.log_softmax(logits.float(), -1)
