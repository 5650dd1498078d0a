"""``train.py``: a short script beside the plan that a user reads, edits and runs."""

from pipec.graph.eager import eager_parts
from pipec.graph.ir import Graph, InputKind
from pipec.graph.torch_private import OpOverload, defining_module, namespace_of
from pipec.plan.model import Plan

_SCRIPT = '''"""Train this pipeline: `torchrun --nproc-per-node {devices} train.py`."""

from pathlib import Path

import torch
{imports}from safetensors.torch import save_file

from pipec.compiler.endless import endless
{reload}from pipec.plan.store import load_plan
from pipec.runtime.distributed import DistributedPipeline, process_group
from pipec.runtime.executor import Settings
from pipec.runtime.train import train

HERE = Path(__file__).parent
ROUNDS = 100  # of {microbatches} microbatches each, schedule {schedule}


def batch(number: int) -> dict[str, torch.Tensor]:
    """Inputs of a microbatch by name; the same on every rank. Put your data here."""
    generator = torch.Generator().manual_seed(number)
    return {{
{inputs}
    }}


def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Any optimizer; one is made per stage."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def main() -> None:
    """Run this rank's part of the schedule."""
    plan = load_plan(HERE{allowed})
{modules}    with process_group() as rank:
        order = endless(plan)  # without a flush: go on from round to round without draining
        settings = Settings(optimizer{scale})
        pipeline = DistributedPipeline(plan, batch, settings, schedule=order)
        train(pipeline, ROUNDS, [print] if rank == 0 else [])
        weights = pipeline.state_dict()
        if weights is not None:  # on rank 0; shared weights once per name
            save_file({{n: w.clone() for n, w in weights.items()}}, "trained.safetensors")


if __name__ == "__main__":
    main()
'''


def train_script(plan: Plan) -> str:
    """The script for a plan with a training schedule; ready to run on random data."""
    half = plan.graph.source.options.get("autocast") == "float16"
    eager = eager_parts(plan.graph)
    allowed = ", ".join(f'"{n}"' for n in sorted(plan.graph.namespaces))
    return _SCRIPT.format(
        devices=plan.order.devices,
        microbatches=plan.order.microbatches,
        schedule=plan.order.name,
        inputs=_inputs(plan.graph),
        scale=", loss_scale=65536.0" if half else "",
        imports=_imports(plan.graph),
        allowed=f", allowed=[{allowed}]" if allowed else "",
        reload="from pipec.frontends.load import bring_modules\n" if eager else "",
        modules="    bring_modules(plan)  # of the parts that run eagerly\n" if eager else "",
    )


def _imports(graph: Graph) -> str:
    """Lines that define the ops of other packages."""
    foreign = [n.target for n in graph.calls if isinstance(n.target, OpOverload)]
    foreign = [op for op in foreign if namespace_of(op) in graph.namespaces]
    found = {m for m in map(defining_module, foreign) if m}
    return "".join(f"import {m}  # defines ops of the model\n" for m in sorted(found))


def _inputs(graph: Graph) -> str:
    lines = []
    for name, t in graph.tensors_of(InputKind.INPUT).items():
        size = repr(tuple(t.shape))
        if t.is_floating_point():
            value = f"torch.randn({size}, generator=generator, dtype={t.dtype})"
        else:
            value = f"torch.randint(0, 2, {size}, generator=generator).to({t.dtype})"
        lines.append(f"        {name!r}: {value},")
    return "\n".join(lines).replace("'", '"')
