"""Which message an action sends or receives: its channel, its number, its two devices."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from pipec.errors import PlanError
from pipec.runtime.program import Program, gradient_of
from pipec.runtime.rounds import Rounds, Turn
from pipec.runtime.tensors import TensorType, buffer_bytes
from pipec.runtime.transport import Incoming, Message
from pipec.schedule.acknowledgements import NONE, acknowledgements
from pipec.schedule.action import Action
from pipec.schedule.channels import FROM_FORWARD, KIND_OF, TO_FORWARD, Channel, ChannelKind

_LAST = -1
"""Number of the message with which a round ends."""


class Messages:
    """The messages of one device.

    Raises:
        PlanError: The schedule sends something that the plan has no channel for.
    """

    def __init__(self, program: Program, rounds: Rounds, others: Sequence[Program] = ()) -> None:
        self._program, self._device, self._rounds = program, rounds.device, rounds
        self._programs = (program, *others)
        self._named: dict[str, Channel] = {c.name: c for c in program.schedule.channels if c.name}
        self._types = [_types(p) for p in self._programs]
        for c in program.schedule.channels:
            if c.kind in (ChannelKind.F, ChannelKind.B) and c.name not in self._types[0]:
                raise PlanError(
                    "the schedule has a channel that the plan does not know",
                    got=c.name or f"an unnamed channel from stage {c.src} to {c.dst}",
                    hint="let the pass schedule put the plan's channels into the schedule",
                )

    def key(self, action: Action) -> str:
        """Name of the channel; of its kind and stage where it has none."""
        kind = KIND_OF[action.kind]
        return action.channel or f"{kind.name}{action.stage}"

    def of(self, action: Action) -> Message:
        """The message of a sending or receiving action."""
        kind, place = KIND_OF[action.kind], self._program.schedule.placement
        named = self._named.get(action.channel)
        src, dst = (named.src, named.dst) if named else (action.stage, action.stage)
        senders = (place.forward if kind in FROM_FORWARD else place.backward)[src]
        receivers = (place.forward if kind in TO_FORWARD else place.backward)[dst]
        turn = action.replica if kind is ChannelKind.W else action.microbatch
        number = action.version if kind is ChannelKind.W else action.microbatch
        assert turn is not None
        assert number is not None
        return Message(
            self.key(action),
            number,
            senders[turn % len(senders)],
            receivers[turn % len(receivers)],
            host=kind is ChannelKind.H,
        )

    def type_of(self, action: Action) -> TensorType:
        """The type of the tensor that the action moves."""
        kind = KIND_OF[action.kind]
        shape = 0 if action.microbatch is None else self._rounds.shape(action.microbatch)
        if kind in (ChannelKind.F, ChannelKind.B):
            return self._types[shape][action.channel]
        stage = self._programs[shape].stages[action.stage]
        moved = tuple(stage.list_moved(action.channel).values())
        types = self.version_types(stage.index) if kind is ChannelKind.W else moved
        return TensorType((buffer_bytes(types),), "uint8")

    def version_types(self, stage: int) -> tuple[TensorType, ...]:
        """Types of what is sent of a version: the trained parameters, and their updates' count."""
        program = self._program.stages[stage]
        weights = (program.type_of(name) for name in self._program.parameters(stage))
        return (*weights, TensorType((), "int64"))

    def settling(self) -> list[tuple[int, Message]]:
        """(stage, message) of the weights that end a round where F and B are apart.

        The device of B sends its newest version to every device of F, so that the next round
        starts from the same weights on both. In an endless schedule each version is sent anyway.
        """
        place = self._program.schedule.placement
        if not place.separate or self._rounds.lag:
            return []
        return [
            (s, Message(f"W{s}", _LAST, backward[0], device))
            for s, (backward, forward) in enumerate(zip(place.backward, place.forward, strict=True))
            for device in forward
            if self._device in (backward[0], device)
        ]

    @cached_property
    def _proves(self) -> dict[int, list[int]]:
        """By place of a receive in the row the sends whose arrival it proves."""
        schedule = self._program.schedule
        begin, end = schedule.device_ptr[self._device : self._device + 2].tolist()
        found: dict[int, list[int]] = {}
        for sent, proof in enumerate(acknowledgements(schedule)[begin:end].tolist()):
            if proof != NONE:
                found.setdefault(proof - begin, []).append(sent)
        return found

    def list_expected(self, row: list[Turn]) -> Iterator[Incoming]:
        """What will come from other devices, in the order of the row."""
        at = {turn.place: turn.action for turn in row}
        for place, action in at.items():
            kind = KIND_OF.get(action.kind)
            if kind is not None and action.kind is kind.receive:
                message = self.of(action)
                if message.src != message.dst:
                    sent = (at[k] for k in self._proves.get(place, ()) if k in at)
                    yield Incoming(message, self.type_of(action), tuple(map(self.of, sent)))
        for stage, message in self.settling():
            if message.dst == self._device:
                yield Incoming(
                    message, TensorType((buffer_bytes(self.version_types(stage)),), "uint8")
                )


def _types(program: Program) -> dict[str, TensorType]:
    """The type of what each channel of a plan moves, gradients included."""
    found = {n: TensorType(value.shape, value.dtype) for n, value in program.channels.items()}
    return found | {gradient_of(n): kind for n, kind in found.items()}


def links(program: Program) -> set[tuple[int, int]]:
    """(sender, receiver) of all messages between devices."""
    schedule, found = program.schedule, set[tuple[int, int]]()
    for d in range(schedule.devices):
        messages = Messages(program, Rounds(schedule, d))
        moved = map(messages.of, (a for a in schedule.row(d) if a.kind in KIND_OF))
        settling = (message for _, message in messages.settling())
        found |= {(m.src, m.dst) for m in (*moved, *settling) if m.src != m.dst}
    return found
