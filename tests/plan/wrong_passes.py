"""The table of wrong passes: (name, what it starts from, what it does, the rule that names it)."""

from dataclasses import replace

import torch

from pipec.graph.comm import RECV, SEND
from pipec.graph.ir import OutputKind
from pipec.schedule.schedule import Placement
from tests.plan import edits as e
from tests.plan import wrong as w
from tests.plan import wrong_training as t

aten = torch.ops.aten

WRONG: list[tuple[str, str, e.Edit, str]] = [
    # the model
    ("drops-origin", "traced", e.in_model(e.meta("relu", origin=None)), "originated"),
    ("drops-type", "traced", w.uncosted(e.in_model(e.meta("relu", val=None))), "typed"),
    (
        "retypes",
        "traced",
        e.in_model(e.meta("relu", val=lambda n: e.fake(n, (4, 8), torch.bfloat16))),
        "types-follow-ops",
    ),
    (
        "stale-shape",
        "traced",
        e.in_model(e.meta("relu", val=lambda n: e.fake(n, (2, 8)))),
        "types-follow-ops",
    ),
    (
        "stale-strides",
        "traced",
        e.in_model(e.meta("relu", val=lambda n: e.fake(n, (8, 4)).t())),
        "types-follow-ops",
    ),
    ("edits-in-place", "traced", w.renamed_in_place, "types-follow-ops"),
    ("stale-op", "traced", e.in_model(e.target("relu", aten.isnan.default)), "types-follow-ops"),
    ("wrong-arity", "traced", e.in_model(e.target("relu", aten.mm.default)), "types-follow-ops"),
    ("mutates", "traced", e.in_model(e.target("relu", aten.relu_.default)), "functional"),
    ("views", "traced", e.in_model(w.view), "known-ops"),
    ("calls-python", "traced", e.in_model(e.target("relu", torch.relu)), "known-ops"),
    ("foreign-op", "traced", e.in_model(w.foreign), "known-ops"),
    ("calls-method", "traced", w.uncosted(e.in_model(w.method)), "kinds-of-nodes"),
    ("cyclic", "traced", e.in_model(w.cyclic), "well-formed"),
    ("short-output", "traced", e.in_model(w.shorter_output), "signature"),
    ("duplicates-output", "traced", w.two_entries, "signature"),
    ("drops-weight", "traced", w.without_weight, "weights"),
    ("reshapes-weight", "traced", w.reshaped_weight, "weights"),
    ("stray-weight", "traced", w.stray_weight, "weights"),
    ("misnames-output", "traced", w.output_called("relu"), "names"),
    ("yields-tuple", "traced", w.whole_tuple, "whole-tuples"),
    ("saved-in-model", "traced", w.saved_in_model, "ends"),
    ("updates-nothing", "traced", w.update("norm.other"), "updates-fit-buffers"),
    ("renames-node", "traced", e.in_model(w.renamed), "costs-cover"),
    ("adds-node", "traced", e.in_model(w.duplicated), "costs-cover"),
    ("drops-node", "traced", e.in_model(w.dropped), "costs-cover"),
    # stages
    ("adds-to-model-alone", "bare", w.uncosted(e.in_model(w.dead)), "every-node-once"),
    ("drops-in-stage", "bare", e.in_stage(1, w.dropped), "every-node-once"),
    ("renames-in-stage", "bare", e.in_stage(1, w.renamed), "stages-follow-model"),
    ("swaps-operands", "bare", e.in_stage(1, w.swapped_operands), "stages-follow-model"),
    (
        "edits-one-of-equals",
        "bare",
        e.in_stage(2, e.target("relu", aten.tanh.default)),
        "stages-follow-model",
    ),
    ("changes-constant", "bare", e.in_stage(1, w.other_constant), "stages-follow-model"),
    ("reorders-stages", "bare", w.order(0, 2, 1, 3), "stages-are-numbered"),
    ("misnumbers-stage", "bare", lambda p: e.with_stage(p, 1, index=7), "stages-are-numbered"),
    ("drops-stage", "bare", w.order(0, 1, 2), "every-node-once"),
    ("aliases-stage", "bare", w.aliased_stage, "every-node-once"),
    ("empty-stage", "bare", w.empty_stage, "stages-compute"),
    ("scales-weights", "bare", w.scaled_weights, "weights-are-the-models"),
    ("swaps-weights", "bare", w.swapped_weights, "stages-read-the-model"),
    ("stale-tie", "bare", w.stale_tie, "weights-are-the-models"),
    ("renames-loss", "bare", w.result_of(3, name="other"), "outputs-leave-once"),
    ("reads-buffer-afar", "bare", w.reads_buffer, "buffers-have-one-home"),
    ("drops-result", "bare", w.without_update, "outputs-leave-once"),
    ("draws-again", "cut", e.in_training(1, "B", w.drawing), "random-values-are-drawn-once"),
    # channels
    ("drops-send", "bare", e.in_stage(0, w.no_send), "channels-have-two-ends"),
    ("duplicates-send", "bare", e.in_stage(0, w.two_sends), "channels-have-two-ends"),
    (
        "redirects-recv",
        "bare",
        e.in_stage(1, w.comm(RECV, channel="s0.s2.x")),
        "channels-have-two-ends",
    ),
    ("drops-channels", "bare", w.without_channels, "values-arrive"),
    ("stale-bytes", "bare", e.in_channel(0, nbytes=1), "channels-carry-values"),
    ("stale-bytes-at-both", "bare", w.fewer_bytes, "channels-carry-values"),
    ("stale-channel-shape", "bare", e.in_channel(0, shape=(32,)), "channels-carry-values"),
    ("stale-channel-dtype", "bare", e.in_channel(0, dtype="int32"), "channels-carry-values"),
    ("backward-channel", "bare", e.in_channel(0, src=1, dst=0), "channels-are-well-named"),
    ("second-channel", "bare", w.second_channel, "channels-are-well-named"),
    ("renames-channel", "bare", w.other_name, "channels-are-well-named"),
    ("negative-depth", "bare", e.in_channel(0, depth=-1), "channels-are-well-named"),
    ("send-says-less", "bare", e.in_stage(0, w.comm(SEND, nbytes=8)), "ends-say-the-bytes"),
    ("recv-says-other-size", "bare", e.in_stage(1, w.comm(RECV, size=[8, 4])), "types-follow-ops"),
    (
        "recv-says-other-dtype",
        "bare",
        e.in_stage(1, w.comm(RECV, dtype=torch.int32)),
        "types-follow-ops",
    ),
    ("recv-strided", "bare", e.in_stage(1, w.recv_typed), "ends-say-the-bytes"),
    ("offloads-early", "hosted", e.in_training(0, "F", t.early_offload), "ends-in-order"),
    # training graphs
    (
        "drops-saved",
        "cut",
        e.in_training(1, "F", t.without(OutputKind.SAVED)),
        "saved-values-agree",
    ),
    ("saves-too-much", "cut", e.in_training(1, "F", t.saved_more), "saved-values-agree"),
    ("stale-saved-strides", "cut", e.in_training(1, "BIW", t.strided), "types-follow-ops"),
    (
        "swaps-gradients",
        "cut",
        e.in_training(1, "B", t.swapped(OutputKind.WEIGHT_GRADIENT, ".weight")),
        "backward-is-one",
    ),
    ("swaps-unlike-gradients", "cut", e.in_training(1, "BW", t.of_other_shape), "gradients-fit"),
    (
        "drops-weight-gradient",
        "cut",
        e.in_training(1, "W", t.without(OutputKind.WEIGHT_GRADIENT)),
        "backward-is-one",
    ),
    (
        "drops-gradient",
        "cut",
        w.unscheduled(e.in_training(2, "BI", t.without(OutputKind.GRADIENT))),
        "gradients-arrive",
    ),
    ("mutates-in-b", "cut", e.in_training(1, "B", t.mutating), "functional"),
    (
        "drops-update-of-f",
        "cut",
        e.in_training(3, "F", t.without(OutputKind.BUFFER_UPDATE)),
        "forward-keeps-ends",
    ),
    (
        "drops-loss-of-f",
        "cut",
        e.in_training(3, "F", t.without(OutputKind.LOSS)),
        "forward-keeps-ends",
    ),
    (
        "drops-training",
        "cut",
        lambda p: e.with_stage(p, 0, training=None),
        "all-are-differentiated",
    ),
    (
        "shares-training",
        "cut",
        lambda p: e.with_stage(p, 1, training=p.stages[2].training),
        "forward-keeps-ends",
    ),
    ("slot-bytes", "hosted", w.unscheduled(w.slot(nbytes=1)), "slots-say-the-bytes"),
    ("drops-fetch", "hosted", e.in_training(0, "BI", t.no_fetch), "slots-have-two-ends"),
    ("schedules-other-slot", "hosted", w.schedule(w.host_bytes), "slots-are-scheduled"),
    # decisions
    (
        "swaps-stage-of",
        "cut",
        w.stage_of(lambda s: {n: 3 - k for n, k in s.items()}),
        "partition-covers",
    ),
    ("stale-stage-of", "cut", w.stage_of(lambda s: {**s, "gone": 0}), "partition-covers"),
    ("drops-stage-time", "cut", w.partition(seconds=lambda p: p.seconds[1:]), "partition-is-timed"),
    (
        "places-nowhere",
        "bare",
        lambda p: p.replace(placement=Placement(((0,), (1,), (2,), (9,)))),
        "placement-fits",
    ),
    (
        "places-twice",
        "bare",
        lambda p: p.replace(placement=Placement(((0, 0), (1,), (2,), (3,)))),
        "placement-fits",
    ),
    ("moves-stages", "cut", w.moved, "schedule-fits-stages"),
    ("drops-cost", "traced", w.costs(nodes=lambda c: w.half(c.nodes)), "costs-cover"),
    (
        "drops-seconds",
        "traced",
        w.costs(seconds=lambda c: {k: w.half(r) for k, r in c.seconds.items()}),
        "costs-cover",
    ),
    ("cost-not-a-number", "traced", w.costs(seconds=lambda c: w.nan(c.seconds)), "costs-cover"),
    (
        "stale-flops",
        "traced",
        w.costs(nodes=lambda c: {n: replace(x, flops=1.0) for n, x in c.nodes.items()}),
        "costs-follow-graph",
    ),
    ("drops-timing", "cut", lambda p: p.replace(timing=p.timing[1:]), "stages-are-timed"),
    ("raw-schedule", "cut", w.raw, "schedule-is-whole"),
    ("reorders-actions", "cut", w.schedule(w.reordered), "schedule-is-whole"),
    ("stale-message-bytes", "cut", w.schedule(w.stale_bytes), "schedule-carries-channels"),
    (
        "stale-timeline",
        "cut",
        w.stale_timeline,
        "timeline-is-the-schedules",
    ),
    ("shrinks-memory", "cut", w.small_devices, "memory-is-kept"),
]
