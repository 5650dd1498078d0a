"""PipeDream: no flush, an update per microbatch, B uses the weights that F used."""

from digits import accuracy, adam, batch, network, plain, plan_of

from pipec.runtime.executor import Settings
from pipec.runtime.local import LocalPipeline

MICROBATCHES, LR = 660, 0.002  # 15 epochs

model = network()
pipeline = LocalPipeline(plan_of(model, "pipedream", 4, MICROBATCHES), batch, Settings(adam(LR)))
pipeline.run(rounds=1)
print(f"PipeDream, 4 stages: {accuracy(model, pipeline.state_dict()):.1%}")
print(f"plain training:      {plain(model, MICROBATCHES, adam(LR)):.1%}")
