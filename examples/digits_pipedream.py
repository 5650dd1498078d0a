"""PipeDream: no flush, an update per microbatch, B uses the weights that F used."""

from digits import PER_EPOCH, accuracy, batch, cosine, network, plain, plan_of, sgd

from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline

UPDATES, LR = 30 * PER_EPOCH, 0.05

model = network()
settings = Settings(sgd(LR), cosine(UPDATES))
pipeline = LocalPipeline(plan_of(model, "pipedream", 4, UPDATES), batch, settings)
pipeline.run(rounds=1)
print(f"PipeDream, 4 stages: {accuracy(model, pipeline.state_dict()):.1%}")
print(f"plain training:      {plain(model, UPDATES, LR):.1%}")
