"""Channels against the model and against their two ends in the stages."""

from collections import Counter
from collections.abc import Iterator

from torch import fx

from pipec.graph.comm import RECV, SEND
from pipec.graph.finding import Finding
from pipec.graph.infer import type_words
from pipec.graph.ir import InputKind, OutputKind, nbytes, tensors
from pipec.graph.tensor_type import dtype_text
from pipec.plan.model import ValueChannel
from pipec.plan.rules.parts import Parts, PlanRule


def _well_named(parts: Parts) -> Iterator[Finding]:
    """One channel per value and reader, forward, called ``s<src>.s<dst>.<value>``."""
    stages, count = len(parts.plan.stages), Counter((c.value, c.dst) for c in parts.plan.channels)
    for c in parts.plan.channels:
        place = f"channel {c.name}"
        if c.name != f"s{c.src}.s{c.dst}.{c.value}":
            yield Finding(place, c.name, f"the name s{c.src}.s{c.dst}.{c.value}")
        if not 0 <= c.src < c.dst < stages:
            yield Finding(place, f"stage {c.src} to {c.dst}", f"forward, below stage {stages}")
        if count[c.value, c.dst] > 1:
            yield Finding(place, f"{count[c.value, c.dst]} channels into stage {c.dst}", "one")
        if c.depth < 0:
            yield Finding(place, f"depth {c.depth}", "0 or more")


def _carry_values(parts: Parts) -> Iterator[Finding]:
    """A channel carries a value of the model, of its shape, dtype and bytes."""
    for c in parts.plan.channels:
        place, node = f"channel {c.name}", parts.nodes.get(c.value)
        if node is None or len(tensors(node)) != 1:
            yield Finding(place, f"value {c.value}", "a tensor that the model computes")
            continue
        (t,) = tensors(node)
        got = (c.dtype, c.shape, c.nbytes)
        want = (dtype_text(t.dtype), tuple(t.shape), nbytes(node))
        if got != want:
            yield Finding(place, _described(*got), _described(*want))


def _described(dtype: str, shape: tuple[int, ...], size: int) -> str:
    return f"{dtype}{list(shape)} of {size} bytes"


def _have_two_ends(parts: Parts) -> Iterator[Finding]:
    planned = {(c.name, c.src, c.value, SEND) for c in parts.plan.channels}
    planned |= {(c.name, c.dst, c.value, RECV) for c in parts.plan.channels}
    found = Counter(
        (t.channel, k, t.value, op)
        for k, low in enumerate(parts.lowered)
        for op, transfers in ((SEND, low.sends), (RECV, low.receives))
        for t in transfers
    )
    for end in sorted(planned | found.keys(), key=str):
        channel, stage, value, op = end
        want, word = int(end in planned), "send" if op is SEND else "recv"
        if found[end] != want:
            place = f"channel {channel}, stage {stage}"
            yield Finding(place, f"{found[end]} {word} nodes of {value}", want)


def _ends_say_the_bytes(parts: Parts) -> Iterator[Finding]:
    """What a send and a receive node say of the message is what its channel says."""
    channels = {c.name: c for c in parts.plan.channels}
    for stage in parts.plan.stages:
        for n in stage.graph.calls:
            c = channels.get(str(n.kwargs.get("channel")))
            if c is not None and n.target in (SEND, RECV):
                yield from _said(f"stage {stage.index}, {n.name}", n, c)


def _said(place: str, node: fx.Node, c: ValueChannel) -> Iterator[Finding]:
    if node.target is SEND:
        if node.kwargs["nbytes"] != c.nbytes:
            yield Finding(
                place, f"{node.kwargs['nbytes']} bytes", f"{c.nbytes} as channel {c.name}"
            )
        return
    size, dtype = node.kwargs["size"], node.kwargs["dtype"]
    got = f"{dtype_text(dtype)}{list(size)}"  # type: ignore[arg-type]
    want = f"{c.dtype}{list(c.shape)}"
    if got != want:
        yield Finding(place, got, f"{want} as channel {c.name}")
    t = node.meta["val"]
    if not t.is_contiguous():
        yield Finding(place, type_words(t), "a contiguous value: receive buffers are")


def _values_arrive(parts: Parts) -> Iterator[Finding]:
    """Every value that a stage reads is computed or received by it before it is sent on."""
    if not parts.plan.channels:
        return
    for stage, low in zip(parts.plan.stages, parts.lowered, strict=True):
        for o in stage.graph.outputs_of(OutputKind.VALUE):
            yield Finding(f"stage {stage.index}", f"yields {o.name}", "a send of it")
        for i in stage.graph.inputs_of(InputKind.VALUE):
            yield Finding(f"stage {stage.index}", f"reads {i.name}", "a receive of it")
        here = {n.name for n in low.calls} | {t.value for t in low.receives}
        for t in low.sends:
            if t.value not in here:
                place = f"stage {stage.index}, channel {t.channel}"
                yield Finding(place, f"sends {t.value}", "a value that it computes or receives")


RULES: dict[str, PlanRule] = {
    "channels-are-well-named": _well_named,
    "channels-carry-values": _carry_values,
    "channels-have-two-ends": _have_two_ends,
    "ends-say-the-bytes": _ends_say_the_bytes,
    "values-arrive": _values_arrive,
}
