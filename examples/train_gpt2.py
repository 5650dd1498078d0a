"""GPT-2's architecture on pipec's README, byte by byte: two stages against one device.

Its embedding and its head share one weight, which lies on both stages.
"""

from collections.abc import Mapping
from importlib.metadata import metadata

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.frontends.torch_module import from_module
from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline

TEXT = torch.tensor(list(metadata("pipec")["Description"].encode()))  # the README
ROWS, LENGTH, MICROBATCHES, ROUNDS = 4, 32, 4, 40


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(
            n_layer=4, n_embd=64, n_head=4, vocab_size=256, n_positions=LENGTH,
            embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids, use_cache=False).logits
        return logits


def next_byte(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch(number: int) -> Mapping[str, Tensor]:
    g = torch.Generator().manual_seed(number)
    begin = torch.randint(len(TEXT) - LENGTH - 1, (ROWS, 1), generator=g)
    rows = TEXT[begin + torch.arange(LENGTH + 1)]
    return {"ids": rows[:, :-1], "target": rows[:, 1:]}


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def main() -> None:
    torch.manual_seed(0)
    first = batch(0)
    graph = from_module(Model(), first["ids"], (next_byte, first["target"])).graph
    found = []
    for stages in (2, 1):
        passes = default_passes(stages=stages, schedule="1f1b", microbatches=MICROBATCHES)
        plan = make_plan(graph, parse_cluster(f"{stages}xh100"), passes=passes)
        pipeline = LocalPipeline(plan, batch, Settings(adam, clip=1.0))
        losses = torch.tensor(pipeline.run(ROUNDS)).view(ROUNDS, -1).mean(1)
        found.append(losses)
        print(f"{stages} stages: loss {losses[0]:.3f} to {losses[-5:].mean():.3f}, "
              f"weights on several stages: {list(pipeline.program.tied) or 'none'}")  # fmt: skip
    apart = (found[0] - found[1])[:10].abs().max()
    print(f"losses of the first ten rounds differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
