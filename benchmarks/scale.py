"""A 126-layer Llama, hidden 16,384, on meta tensors: trace to plan against torch.export alone.

Prints seconds per part, the ratio to `torch.export.export` in the same run, and peak memory.
"""

import resource
import sys
import time
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import make_plan
from pipec.frontends.torch_module import from_module


class Logits(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(
            LlamaConfig(
                num_hidden_layers=layers,
                hidden_size=16_384,
                intermediate_size=53_248,
                num_attention_heads=128,
                num_key_value_heads=8,
                vocab_size=128_256,
                use_cache=False,
            )
        )

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids).logits


def main(layers: int = 126) -> None:
    """Measure and print."""
    with torch.device("meta"):
        model = Logits(layers).to(torch.bfloat16).eval()
    ids = torch.zeros((1, 4096), dtype=torch.int64)
    torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))  # start-up of the tracer
    start = time.perf_counter()
    torch.export.export(model, (ids.to("meta"),), strict=False)
    export = time.perf_counter() - start
    start = time.perf_counter()
    loaded = from_module(model, (ids,))
    traced = time.perf_counter() - start
    plan = make_plan(
        loaded.graph,
        parse_cluster("16xh100"),
        observe=lambda p, _b, _a, s: print(f"  {p.name:14} {s:7.2f} s"),
    )
    total = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert plan.partition is not None
    print(
        f"nodes {len(plan.graph.calls)}, stages {len(plan.stages)}, "
        f"distinct {len({s.key for s in plan.stages})}, gap {plan.partition.gap:.4%}"
    )
    print(
        f"torch.export.export alone {export:.1f} s; front end {traced:.1f} s; "
        f"trace to plan {total:.1f} s: ratio {total / export:.2f} (want at most 2)"
    )
    print(f"peak memory {peak:.2f} GiB (want under 4)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
