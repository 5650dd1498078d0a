"""PipeFB: forward and backward on different devices, saved values through host memory."""

from digits import accuracy, adam, batch, network, plain, plan_of

from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline

MICROBATCHES, LR = 660, 0.002

model = network()
pipeline = LocalPipeline(plan_of(model, "pipefb", 4, MICROBATCHES), batch, Settings(adam(LR)))
pipeline.run(rounds=1)
print(f"PipeFB, 4 forward and 4 backward devices: {accuracy(model, pipeline.state_dict()):.1%}")
print(f"plain training:                           {plain(model, MICROBATCHES, adam(LR)):.1%}")
