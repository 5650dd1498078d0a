"""PipeMare: newest weights everywhere, one stage per layer; what T1, T2 and T3 repair.

    python digits_pipemare.py [STAGES RATE]     12 stages at a rate of 0.03 by default

At so many stages naive runs diverge and T1 alone does not help; with T2 they train, and T3 helps
some more. With 6 stages at a rate of 0.13, T1 is enough.
"""

import math
import sys

from digits import PER_EPOCH, accuracy, batch, cosine, network, plain, plan_of, sgd

from pipec.compiler.complete import complete
from pipec.runtime.executor import Settings
from pipec.runtime.rules import Correction
from pipec.runtime.runner import LocalPipeline
from pipec.schedule.registry import generate

STAGES, LR = (int(sys.argv[1]), float(sys.argv[2])) if len(sys.argv) > 2 else (12, 0.03)
UPDATES, SEEDS = 40 * PER_EPOCH, range(3)
T1, T2, T3 = UPDATES // 4, math.exp(-2), 2 * PER_EPOCH
VARIANTS = {
    "naive": (Correction(), 0),
    "T1": (Correction(t1_steps=T1), 0),
    "T1+T2": (Correction(T1, T2), 0),
    "T1+T2+T3": (Correction(T1, T2), T3),  # first with a flush after every microbatch
}


def train(correction: Correction, warm_up: int, seed: int) -> float:
    model = network(STAGES, seed=seed)
    plan = plan_of(model, "pipemare", STAGES, UPDATES - warm_up)
    order = complete(generate("pipemare", STAGES, UPDATES - warm_up, slots="concurrent"), plan)
    first = complete(generate("gpipe", STAGES, 1), plan) if warm_up else order
    settings = Settings(sgd(LR), cosine(UPDATES), correction=correction)
    pipeline = LocalPipeline(plan, batch, settings, schedule=first)
    if warm_up:
        pipeline.run(warm_up)
        pipeline.load(order)
    pipeline.run(1)
    reached: float = accuracy(model, pipeline.state_dict())
    return reached


for name, (correction, warm_up) in VARIANTS.items():
    print(f"{name:9}", *(f"{train(correction, warm_up, s):.1%}" for s in SEEDS), flush=True)
print("plain    ", *(f"{plain(network(STAGES, seed=s), UPDATES, LR):.1%}" for s in SEEDS))
