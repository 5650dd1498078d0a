"""Training graphs: saved values, gradients and their destinations, copies to the host."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from torch import fx

from pipec.autodiff.recompute import is_random, views
from pipec.graph.arguments import find_unchecked
from pipec.graph.eager import eager_parts, is_tape
from pipec.graph.finding import Finding
from pipec.graph.ir import InputKind, OutputKind, nbytes
from pipec.graph.lower import Lowered, lower
from pipec.graph.written import ancestors
from pipec.plan.rules.parts import Parts, PlanRule, mismatch, value_of, values
from pipec.schedule.action import ActionKind
from pipec.schedule.schedule import Schedule

_STAGE_INPUTS = tuple(k for k in InputKind if k not in (InputKind.SAVED, InputKind.GRADIENT))
_GRADIENTS = (OutputKind.GRADIENT, OutputKind.WEIGHT_GRADIENT)


def _all_are_differentiated(parts: Parts) -> Iterator[Finding]:
    """All stages have training graphs, or none; and none without a loss."""
    some = {s.index for s in parts.plan.stages if s.training is not None}
    if some and not parts.plan.trains:
        yield Finding("training graphs", "backward graphs", "none: the model has no loss")
    for stage in parts.plan.stages:
        if some and stage.index not in some:
            yield Finding(f"stage {stage.index}", "no training graphs", "as the other stages have")


def _forward_keeps_ends(parts: Parts) -> Iterator[Finding]:
    """F reads and yields what its stage does, and yields saved values besides."""
    for stage, graphs in parts.trained:
        own, F = parts.lowered[stage.index], graphs["F"]
        place = f"F of stage {stage.index}"
        for what, got, want in (
            ("inputs", _list_reads(F), _list_reads(own)),
            ("outputs", _list_yields(F), _list_yields(own)),
        ):
            if list(got) != list(want):
                yield Finding(f"{place}, {what}", _names(got), _names(want))
            for key in got.keys() & want.keys():
                yield from mismatch(f"{place}, {key[0]} {key[1]}", got[key], want[key])


Ends = Mapping[tuple[str, str], object]


def _list_reads(graph: Lowered) -> Ends:
    nodes = graph.nodes
    return {(i.kind, i.name): value_of(nodes[i.node]) for i in graph.inputs_of(*_STAGE_INPUTS)}


def _list_yields(graph: Lowered) -> Ends:
    nodes = graph.nodes
    kinds = [k for k in OutputKind if k is not OutputKind.SAVED]
    return {(o.kind, o.name): value_of(nodes[o.node]) for o in graph.outputs_of(*kinds)}


def _names(ends: Ends) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in ends)


def _check_saved(parts: Parts) -> Iterator[Finding]:
    """What B, I and W read was saved with that type and those strides; what is saved is read."""
    for stage, graphs in parts.trained:
        F, I = _list_saved(graphs["F"]), _list_saved(graphs["I"])  # noqa: E741
        kept = {name: value for name, value in I.items() if name not in F}
        given = {"B": F, "I": F, "W": {**F, **kept}}
        for kind, source in given.items():
            for name, value in values(graphs[kind], InputKind.SAVED).items():
                place = f"{kind} of stage {stage.index}, saved {name}"
                if name not in source:
                    yield Finding(place, "not saved", f"one of {', '.join(sorted(source))}")
                else:
                    yield from mismatch(place, value, source[name], strided=True)
        read = {k: set(values(graphs[k], InputKind.SAVED)) for k in given}
        for name in sorted(F.keys() - read["B"] - read["I"] - read["W"]):
            yield Finding(f"F of stage {stage.index}, saved {name}", "no reader", "in B, I or W")
        for name in sorted(kept.keys() - read["W"]):
            yield Finding(f"I of stage {stage.index}, kept {name}", "no reader", "in W")


def _list_saved(graph: Lowered) -> dict[str, object]:
    nodes = graph.nodes
    return {o.name: value_of(nodes[o.node]) for o in graph.outputs_of(OutputKind.SAVED)}


def _gradients_arrive(parts: Parts) -> Iterator[Finding]:
    """B reads the gradients that later stages yield, of what its stage yields, in its type."""
    demanded: set[str] = set()
    for stage, graphs in reversed(parts.trained):
        nodes = graphs["F"].nodes
        outputs = graphs["F"].outputs_of(OutputKind.VALUE, OutputKind.LOSS)
        results = {o.name: o for o in outputs}
        for kind in ("B", "I"):
            for name, value in values(graphs[kind], InputKind.GRADIENT).items():
                place = f"{kind} of stage {stage.index}, gradient of {name}"
                if name not in results:
                    yield Finding(place, "no value of the stage", f"one of {sorted(results)}")
                    continue
                yield from mismatch(place, value, value_of(nodes[results[name].node]))
                if results[name].kind is OutputKind.VALUE and name not in demanded:
                    yield Finding(place, "no later stage that yields it", "one that does")
        read = values(graphs["B"], InputKind.GRADIENT)
        own = {n for n, o in results.items() if o.kind is OutputKind.VALUE}
        for name in sorted((own & demanded) - read.keys()):
            place = f"B of stage {stage.index}, gradient of {name}"
            yield Finding(place, "not read", "what a later stage yields")
        demanded |= {o.name for o in graphs["B"].outputs_of(OutputKind.GRADIENT)}


def _gradients_fit(parts: Parts) -> Iterator[Finding]:
    """A gradient has the type of the value or parameter of its stage that it belongs to."""
    for stage, graphs in parts.trained:
        own = parts.lowered[stage.index]
        known = {
            OutputKind.GRADIENT: values(own, InputKind.VALUE),
            OutputKind.WEIGHT_GRADIENT: values(own, InputKind.PARAMETER),
        }
        for kind in ("B", "I", "W"):
            graph = graphs[kind]
            nodes = graph.nodes
            for o in graph.outputs_of(*_GRADIENTS):
                place = f"{kind} of stage {stage.index}, gradient of {o.name}"
                if o.name not in known[o.kind]:
                    yield Finding(place, "nothing that the stage reads", sorted(known[o.kind]))
                else:
                    yield from mismatch(place, value_of(nodes[o.node]), known[o.kind][o.name])


def _backward_is_one(parts: Parts) -> Iterator[Finding]:
    """I and W together yield what B yields, each gradient by the same computation."""
    for stage, graphs in parts.trained:
        seen: dict[object, str] = {}
        B, I = (_express(graphs[k], seen, {}) for k in "BI")  # noqa: E741
        kept = {name: how for (kind, name), how in I.items() if kind is OutputKind.SAVED}
        W = _express(graphs["W"], seen, kept)
        halves = {key: how for key, how in {**I, **W}.items() if key[0] in _GRADIENTS}
        place = f"stage {stage.index}"
        for kind, name in sorted(halves.keys() ^ B.keys()):
            side = "B alone" if (kind, name) in B else "I or W alone"
            yield Finding(f"{place}, {kind} of {name}", side, "B, and I or W")
        for kind, name in sorted(k for k in halves.keys() & B.keys() if halves[k] != B[k]):
            got = "another computation in B than in I and W"
            yield Finding(f"{place}, {kind} of {name}", got, "the same")


def _express(
    graph: Lowered, seen: dict[object, str], kept: Mapping[str, str]
) -> dict[tuple[OutputKind, str], str]:
    """How a graph computes each output, as a name: equal for equal expressions of its inputs."""
    nodes, known = graph.nodes, dict[fx.Node, str]()

    def name_of(say: object) -> str:
        return seen.setdefault(say, f"%{len(seen)}")

    for i in graph.inputs:
        is_kept = i.kind is InputKind.SAVED and i.name in kept
        known[nodes[i.node]] = kept[i.name] if is_kept else name_of((i.kind, i.name))
    for n in graph.calls:
        # which of an op's results are wanted changes none of them: lists of bools say that
        args = [x for x in n.args if not isinstance(x, list | tuple) or {*map(type, x)} != {bool}]
        known[n] = name_of(
            (str(n.target), *(repr(fx.map_arg(x, known.get)) for x in (args, n.kwargs)))
        )
    return {(o.kind, o.name): known[nodes[o.node]] for o in graph.outputs}


def _backward_reads_the_stage(parts: Parts) -> Iterator[Finding]:
    """The weights that B, I and W read are weights of the stage, of their kinds and types."""
    for stage, graphs in parts.trained:
        own = _list_reads(parts.lowered[stage.index])
        for kind in ("B", "I", "W"):
            for (what, name), value in _list_reads(graphs[kind]).items():
                place = f"{kind} of stage {stage.index}, {what} {name}"
                if (what, name) not in own:
                    yield Finding(place, "nothing that the stage reads", "an input of the stage")
                else:
                    yield from mismatch(place, value, own[what, name], strided=True)


def _slots_have_two_ends(parts: Parts) -> Iterator[Finding]:
    """The values of host slots are offloaded by F and fetched by B, once, in their order."""
    for stage, graphs in parts.trained:
        slots = [s for s in parts.plan.slots if s.stage == stage.index]
        want = [(slot.name, value) for slot in slots for value in slot.values]
        ends = (
            ("offload", "F", graphs["F"].offloads),
            ("fetch", "B", graphs["B"].fetches),
            ("fetch", "I", graphs["I"].fetches),
        )
        for word, kind, transfers in ends:
            found = Counter((t.channel, t.value) for t in transfers)
            place = f"{kind} of stage {stage.index}, host slot"
            for name, value in sorted({*want, *found}):
                planned = int((name, value) in want)
                if found[name, value] != planned:
                    times = f"{found[name, value]} times {word} {value}"
                    yield Finding(f"{place} {name}", times, planned)
            for slot in slots:
                order = tuple(t.value for t in transfers if t.channel == slot.name)
                if order != slot.values and sorted(order) == sorted(slot.values):
                    yield Finding(f"{place} {slot.name}", f"{word} of {order}", slot.values)


def _slots_say_the_bytes(parts: Parts) -> Iterator[Finding]:
    for name, count in Counter(slot.name for slot in parts.plan.slots).items():
        if count > 1:
            yield Finding(f"host slot {name}", f"listed {count} times", "once")
    for slot in parts.plan.slots:
        place = f"host slot {slot.name}"
        if not 0 <= slot.stage < len(parts.plan.stages):
            yield Finding(place, f"stage {slot.stage}", f"below {len(parts.plan.stages)}")
            continue
        training = parts.plan.stages[slot.stage].training
        nodes = training.F.nodes if training else {}
        size = sum(nbytes(nodes[v]) for v in slot.values if v in nodes)
        if size != slot.nbytes:
            yield Finding(place, f"{slot.nbytes} bytes", f"{size} as its values have")
        if slot.depth < 0:
            yield Finding(place, f"depth {slot.depth}", "0 or more")


def _slots_are_scheduled(parts: Parts) -> Iterator[Finding]:
    """The schedule copies what the slots hold; without slots it is free to move everything."""
    plan = parts.plan
    if plan.schedule is None or not plan.slots:
        return
    copied = {c.name: (c.src, c.nbytes, c.depth) for c in parts.copied}
    want = {s.name: (s.stage, s.nbytes, s.depth) for s in plan.slots}
    for name in sorted(want.keys() | copied.keys()):
        if want.get(name) != copied.get(name):
            got = f"(stage, bytes, depth) {copied.get(name)} scheduled"
            yield Finding(f"host slot {name or 'without a name'}", got, want.get(name))


def _numbers_are_checked(parts: Parts) -> Iterator[Finding]:
    """What an op uses as an index unseen, another op of the graph or of F has looked at."""
    graphs = [("model", whole := lower(parts.plan.graph), whole)]
    graphs += [("a stage", graph, graph) for graph in parts.lowered]
    for stage, kinds in parts.trained:
        F = kinds["F"]
        graphs += [(f"{k} of stage {stage.index}", g, F) for k, g in kinds.items()]
    for place, graph, F in graphs:
        nodes, own = graph.nodes, F.nodes
        saved = {nodes[i.node]: own.get(i.name) for i in graph.inputs_of(InputKind.SAVED)}
        for node in graph.calls:
            for found in find_unchecked(node, saved):
                yield Finding(f"{place}, {found.place}", found.got, found.want)


def _random_values_are_drawn_once(parts: Parts) -> Iterator[Finding]:
    """Only F draws random numbers: a backward that draws again computes with another mask."""
    for stage, graphs in parts.trained:
        for kind in ("B", "I", "W"):
            for node in filter(is_random, graphs[kind].calls):
                place = f"{kind} of stage {stage.index}, {node.name}"
                yield Finding(place, "draws random numbers again", "what F has drawn, saved")


def _check_recomputed(parts: Parts) -> Iterator[Finding]:
    """What a backward computes again reads the weights that its forward has read."""
    order = parts.plan.schedule
    if order is None or not order.training or order.rule.alike:
        return
    for stage, graphs in parts.trained:
        forward = {n.name for n in graphs["F"].calls if not views(n)}
        for kind in ("B", "I", "W"):
            graph = graphs[kind]
            read = {n.name for n in ancestors(n for n in graph.calls if n.name in forward)}
            weights = (i.name for i in graph.inputs_of(InputKind.PARAMETER) if i.node in read)
            for name in sorted({*weights} & {*stage.phases.trained}):
                got = f"values computed again with a newer {name} than its forward had"
                want = f"these offloaded, or another schedule than {order.name}: 1f1b, pipedream"
                yield Finding(f"{kind} of stage {stage.index}", got, want)


def _tapes_stay(parts: Parts) -> Iterator[Finding]:
    """A stage with parts that run eagerly goes back on its device, on the weights of its F."""
    plan, order = parts.plan, parts.plan.schedule
    for stage, graphs in parts.trained:
        F = graphs["F"]
        tapes = {n.name for n in F.calls if is_tape(n)}
        place = (
            f"stage {stage.index}, where {', '.join(eager_parts(F.stage).values())} runs eagerly"
        )
        for slot in plan.slots:
            for value in [v for v in slot.values if slot.stage == stage.index and v in tapes]:
                yield Finding(place, f"the tape {value} in host memory", "autograd's on its device")
        if not tapes or order is None or not order.training:
            continue
        if order.placement.separate:
            yield Finding(place, "its backward on another device", "a schedule such as 1f1b")
        own = order.stage == stage.index
        ahead = {int(m): int(v) for m, v in _versions(order, own & (order.kind == ActionKind.F))}
        behind = _versions(order, own & np.isin(order.kind, (ActionKind.B, ActionKind.I)))
        if any(ahead[int(m)] != int(v) for m, v in behind):
            got = f"{order.name}: a backward on other weights than its forward"
            yield Finding(place, got, "a schedule such as 1f1b or pipedream")


def _versions(order: Schedule, rows: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    return zip(order.microbatch[rows].tolist(), order.version[rows].tolist(), strict=True)


RULES: dict[str, PlanRule] = {
    "all-are-differentiated": _all_are_differentiated,
    "recomputed-alike": _check_recomputed,
    "forward-keeps-ends": _forward_keeps_ends,
    "saved-values-agree": _check_saved,
    "gradients-arrive": _gradients_arrive,
    "gradients-fit": _gradients_fit,
    "backward-is-one": _backward_is_one,
    "backward-reads-the-stage": _backward_reads_the_stage,
    "slots-have-two-ends": _slots_have_two_ends,
    "slots-say-the-bytes": _slots_say_the_bytes,
    "slots-are-scheduled": _slots_are_scheduled,
    "numbers-are-checked": _numbers_are_checked,
    "random-values-are-drawn-once": _random_values_are_drawn_once,
    "tapes-stay": _tapes_stay,
}
