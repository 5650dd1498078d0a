"""BaPipe: a balanced cut and the schedule that wins in simulation; the result of one device."""

from digits import accuracy, batch, cosine, network, plan_of, sgd

from pipec.runtime.executor import Settings
from pipec.runtime.runner import LocalPipeline

ROUNDS, LR = 165, 0.2  # of 8 microbatches: 30 epochs

model = network()
plan = plan_of(model, "fastest", 4, 8)
assert plan.partition is not None
assert plan.schedule is not None
print(f"mean/slowest stage {sum(plan.partition.seconds) / 4 / plan.partition.max_load:.0%}, "
      f"schedule {plan.schedule.name}")  # fmt: skip
settings = Settings(sgd(LR), cosine(ROUNDS))
pipeline = LocalPipeline(plan, batch, settings)
pipeline.run(ROUNDS)
print(f"BaPipe, 4 stages: {accuracy(model, pipeline.state_dict()):.1%}")
alone = LocalPipeline(plan_of(model, "gpipe", 1, 8), batch, settings)
alone.run(ROUNDS)
print(f"one device:       {accuracy(model, alone.state_dict()):.1%}")
