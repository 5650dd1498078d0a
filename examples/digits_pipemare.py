"""PipeMare: newest weights everywhere, one stage per layer; what T1, T2 and T3 repair."""

import math
import sys

from digits import accuracy, adam, batch, network, plain, plan_of

from pipec.compiler.complete import completed
from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline
from pipec.runtime.rules import Correction
from pipec.schedule.registry import generate

STAGES, MICROBATCHES, LR = 6, 660, float(sys.argv[1]) if len(sys.argv) > 1 else 0.002
T1, T2 = MICROBATCHES // 4, math.exp(-2)
VARIANTS = {
    "naive": (Correction(), 0),
    "T1": (Correction(t1_steps=T1), 0),
    "T1+T2": (Correction(T1, T2), 0),
    "T1+T2+T3": (Correction(T1, T2), 88),  # two epochs with a flush after every microbatch
}
for name, (correction, warm_up) in VARIANTS.items():
    found = []
    for seed in range(3):
        model = network(STAGES, seed=seed)
        plan = plan_of(model, "pipemare", STAGES, MICROBATCHES - warm_up)
        assert plan.schedule is not None
        concurrent = generate("pipemare", STAGES, MICROBATCHES - warm_up, slots="concurrent")
        order = completed(concurrent, plan)
        first = completed(generate("gpipe", STAGES, 1), plan) if warm_up else order
        settings = Settings(adam(LR), correction=correction)
        pipeline = LocalPipeline(plan, batch, settings, schedule=first)
        if warm_up:
            pipeline.run(warm_up)
            pipeline.load(order)
        pipeline.run(1)
        found.append(accuracy(model, pipeline.state_dict()))
    print(f"{name:9} {' '.join(f'{a:.1%}' for a in found)}", flush=True)
found = [plain(network(STAGES, seed=s), MICROBATCHES, adam(LR)) for s in range(3)]
print(f"plain     {' '.join(f'{a:.1%}' for a in found)}")
