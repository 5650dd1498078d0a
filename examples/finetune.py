"""Fine-tune a transformers model: torchrun --nproc-per-node 2 finetune.py out 9; then 3, 18."""

import os
import sys
from collections.abc import Iterator
from functools import partial

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import pipec

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 61}
model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, use_cache=False, **sizes))
data = TensorDataset(torch.randint(61, (92, 12)))  # 4 batches of 20 rows and one of 12
cosine = partial(get_cosine_schedule_with_warmup, num_warmup_steps=3, num_training_steps=18)
EXAMPLE = torch.zeros(5, 12, dtype=torch.long)  # a microbatch


def adamw(named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    matrices, others = ([p for p in named if (p[1].ndim > 1) == k] for k in (True, False))
    groups = [{"params": p, "weight_decay": d} for p, d in ((matrices, 0.1), (others, 0.0)) if p]
    return torch.optim.AdamW(groups, lr=1e-2)


def batches(start: int, end: int) -> Iterator[dict[str, torch.Tensor]]:
    for k in range(start, end):
        order = torch.Generator().manual_seed(k // 5)
        (tokens,) = list(DataLoader(data, batch_size=20, shuffle=True, generator=order))[k % 5]
        yield {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    plan = pipec.compile(model, {"input_ids": EXAMPLE, "labels": EXAMPLE}, loss=lambda o: o.loss,
        devices=f"{os.environ['WORLD_SIZE']}xcpu", schedule="1f1b", microbatches=4)  # fmt: skip
    with pipec.Pipeline(plan, optimizer=adamw, scheduler=cosine, clip=1.0, model=model) as pipeline:
        start = pipeline.resume(f"{sys.argv[1]}/checkpoints")
        losses: list[float | None] = []
        losses += [pipeline.step(batch).loss for batch in batches(start, int(sys.argv[2]))]
        pipeline.save(f"{sys.argv[1]}/checkpoints")
        losses.append(pipeline.evaluate(batches(0, 5)).loss)
        pipeline.save_pretrained(model, sys.argv[1])
        if pipeline.rank == 0:
            print(*losses, sep="\n")
