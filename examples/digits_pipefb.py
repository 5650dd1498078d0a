"""PipeFB: forward and backward on different devices, saved values through host memory.

A forward is up to 2 (4 - i) + 2 updates late on stage i (PipeDream's 4 - i), counted from 1.
"""

from digits import PER_EPOCH, accuracy, batch, cosine, network, plain, plan_of, sgd

from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline

UPDATES, LR = 30 * PER_EPOCH, 0.03

model = network()
settings = Settings(sgd(LR), cosine(UPDATES))
pipeline = LocalPipeline(plan_of(model, "pipefb", 4, UPDATES), batch, settings)
pipeline.run(rounds=1)
print(f"PipeFB, 4 forward and 4 backward devices: {accuracy(model, pipeline.state_dict()):.1%}")
print(f"plain training:                           {plain(model, UPDATES, LR):.1%}")
