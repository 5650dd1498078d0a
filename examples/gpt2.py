"""A factory for ``pipec compile gpt2.py:gpt2``: GPT-2's architecture, random weights."""

from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class Logits(nn.Module):
    """Token ids [batch, sequence] to logits [batch, sequence, vocabulary]."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(config)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids, use_cache=False).logits


def gpt2() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """GPT-2 small (124 M parameters) and one batch of 1 x 64 tokens."""
    config = GPT2Config()
    return Logits(config).eval(), (torch.randint(config.vocab_size, (1, 64)),)


def tiny() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Four layers of width 64 and a vocabulary of 1,000."""
    config = GPT2Config(n_layer=4, n_embd=64, n_head=4, vocab_size=1000, n_positions=64)
    return Logits(config).eval(), (torch.randint(config.vocab_size, (2, 16)),)
