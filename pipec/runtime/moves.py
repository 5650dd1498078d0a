"""What a device holds between actions, and the handlers of actions that move it.

```text
values    (channel, microbatch) -> tensor      from F or B to SEND, from RECV to F or B
host      message -> copy in host memory       from OFFLOAD to FETCH; with the strides there were
coming    (stage, microbatch) -> buffers       from FETCH to the backward that reads them; messages
                                               where the FETCH does not wait
```
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

import torch

from pipec.runtime.device import Copied, Device, Fetched
from pipec.runtime.placing import Messages
from pipec.runtime.program import Program
from pipec.runtime.rounds import Rounds, Turn
from pipec.runtime.stage import StageRunner
from pipec.runtime.tensors import TensorType, lying, pack, parts, restore, unpack
from pipec.runtime.transport import Message, Transport, Waits, poll
from pipec.runtime.weights import StageWeights, Updates, Version
from pipec.schedule.action import Action
from pipec.simulate.memory import find_given_up

Key = tuple[str, int]
Types = tuple[TensorType, ...]


class Moves:
    """The tensors of one device that are between two actions."""

    def __init__(
        self,
        device: Device,
        transport: Transport,
        runner: Callable[[int, int], StageRunner],
        weights: dict[int, StageWeights],
    ) -> None:
        self._device, self._transport = device, transport
        self._runner, self._weights = runner, weights
        self._values: dict[Key, torch.Tensor] = {}
        self._host: dict[Message, tuple[Copied, Sequence[Sequence[int]]]] = {}
        self._coming: defaultdict[tuple[int, int], list[tuple[str, Fetched | Message, Types]]]
        self._coming = defaultdict(list)
        self._leaving: deque[tuple[Message, Copied]] = deque()
        self._out: deque[tuple[int, str | None, Copied]] = deque()
        self._at = 0

    def load(self, program: Program, rounds: Rounds, others: Sequence[Program] = ()) -> None:
        """Take another schedule, or further shapes; between rounds only."""
        self._messages = Messages(program, rounds, others)
        self._rank = rounds.device
        self._given_up = find_given_up(program.schedule, rounds.device, program.times)
        self._in_place = {c.name for c in program.schedule.channels if c.in_place}

    def start(self, row: list[Turn]) -> None:
        """Begin a round: tell the transport what will come."""
        self._transport.expect(self._messages.list_expected(row))

    def state(self) -> dict[str, list[Any]]:
        """What is held between two rounds, for `load_state`."""
        coming = [
            [*at, [[c, pack(restore(self._await(t, lie), lie), lie), *(k.strides for k in lie)]]]
            for at, came in self._coming.items()
            for c, t, lie in came
        ]
        return {
            "values": [[*key, t] for key, t in self._values.items()],
            "coming": coming,
            "host": [[[*message], copy.wait(), *s] for message, (copy, s) in self._host.items()],
        }

    def load_state(self, state: Mapping[str, list[Any]]) -> None:
        """Hold what another one held."""
        self._values = {(channel, m): t for channel, m, t in state["values"]}
        self._coming = defaultdict(list)
        for s, m, came in state["coming"]:
            for c, t, *strides in came:
                types = lying(self._types(s, m, c), strides)
                self._coming[s, m].append((c, Fetched(parts(t, types)), types))
        self._host = {Message(*at): (Copied(t.cpu()), s) for at, t, *s in state["host"]}

    def keep(self) -> None:
        """End a round: what was fetched for a later one arrives, so that nothing is under way."""
        self._release()
        for coming in self._coming.values():
            coming[:] = [(c, Fetched(self._await(at, types)), types) for c, at, types in coming]

    def _types(self, stage: int, microbatch: int, channel: str) -> Types:
        return tuple(self._runner(stage, microbatch).program.list_moved(channel).values())

    def _await(self, coming: Fetched | Message, types: Types) -> list[torch.Tensor]:
        if isinstance(coming, Fetched):
            self._device.wait(coming)
            return coming.parts
        found = self._transport.receive(coming)
        assert found is not None  # this transport waits
        return parts(found, types)

    @property
    def coming_bytes(self) -> int:
        """Bytes that come back from host memory and are not unpacked yet."""
        coming = chain.from_iterable(self._coming.values())
        return sum(t.nbytes for _, at, types in coming if isinstance(at, Fetched) for t in types)

    def begin(self, action: Action, place: int) -> None:
        """Before an action of the row: what has left by then, as the plan has it, is given up.

        What comes back for it arrives now: to wait for that is no part of the action.
        """
        self._at = place
        self._release(place)
        if action.kind.is_compute and action.microbatch is not None:
            self._unpack(action.stage, action.microbatch)

    def _hold(self, copy: Copied, channel: str | None = None) -> None:
        """Keep what a copy out reads until it is over; on a CPU it is over already."""
        if copy.read:
            self._out.append((self._given_up[self._at], channel, copy))

    def _release(self, place: float = inf) -> None:
        """Let compute wait for the copies out that are over before the action at a place."""
        while self._out and self._out[0][0] <= place:
            self._device.wait(self._out.popleft()[-1])

    def send_state(self, action: Action) -> None:
        """OFFLOAD_O: the state of a stage's optimizer, to host memory."""
        if resting := self._weights[action.stage].resting:
            self._hold(resting.rest())

    def receive_state(self, action: Action) -> None:
        """FETCH_O: it comes back for the next step."""
        if resting := self._weights[action.stage].resting:
            resting.fetch()

    def put(self, channel: str, microbatch: int, tensor: torch.Tensor) -> None:
        """Hold a value until it is sent or read."""
        self._values[channel, microbatch] = tensor

    def take(self, channel: str, microbatch: int) -> torch.Tensor:
        """Give a value away."""
        return self._values.pop((channel, microbatch))

    def send_value(self, action: Action) -> None:
        """SEND_F, SEND_B."""
        assert action.microbatch is not None
        tensor = self.take(self._messages.key(action), action.microbatch)
        self._transport.send(self._messages.of(action), tensor)

    def receive_value(self, action: Action) -> Waits:
        """RECV_F, RECV_B."""
        assert action.microbatch is not None
        tensor = yield from self._receive(self._messages.of(action))
        self.put(self._messages.key(action), action.microbatch, tensor)

    def _receive(self, message: Message) -> Generator[bool, None, torch.Tensor]:
        return poll(lambda: self._transport.receive(message))

    def send_saved(self, action: Action) -> None:
        """SEND_S to the device of the backward, OFFLOAD to host memory."""
        assert action.microbatch is not None
        m = action.microbatch
        runner = self._runner(action.stage, m)
        moved, saved = runner.program.list_moved(action.channel), runner.saved.get(m, {})
        tensors, types = [saved.pop(name) for name in moved], tuple(moved.values())
        strides = [t.stride() for t in tensors]
        if not saved:
            runner.saved.pop(m, None)
        message = self._messages.of(action)
        if not message.host:
            self._transport.send(message, pack(tensors, types))
        else:
            here = message.src == message.dst
            copy = self._device.to_host(tensors, lying(types, strides) if here else types)
            self._hold(copy, action.channel)
            if here:
                self._host[message] = copy, strides
            else:
                self._leaving.append((message, copy))
                self.forward_copies()

    def forward_copies(self, *, wait: bool = False) -> None:
        """Send on what has reached host memory; with ``wait`` all of it."""
        while self._leaving and (wait or self._leaving[0][1].ended):
            message, copy = self._leaving.popleft()
            buffer = copy.wait()
            self._transport.send(message, buffer)
            self._device.host.give(buffer, again=False)

    def receive_saved(self, action: Action) -> Waits:
        """RECV_S from the device of the forward, FETCH from host memory."""
        assert action.microbatch is not None
        message, at = self._messages.of(action), (action.stage, action.microbatch)
        coming: Fetched | Message = message
        types = self._types(*at, action.channel)
        if message.src == message.dst:
            channel, left = action.channel, None
            if held := [copy for _, c, copy in self._out if c == channel in self._in_place]:
                left = held[-1] if held[-1].read else None  # its place may be taken
            copy, strides = self._host.pop(message)
            types = lying(types, strides)
            coming = self._device.from_host(copy, types, left)
        # else a fetch runs beside compute; no copy to a CPU can begin before the backward
        elif not (message.host and self._transport.waits and self._device.torch.type == "cpu"):
            packed = yield from self._receive(message)
            if message.host:
                coming = self._device.from_host(Copied(packed), types)
            else:
                coming = Fetched(parts(packed, types))
        self._coming[at].append((action.channel, coming, types))

    def _unpack(self, stage: int, microbatch: int) -> None:
        """Put what came back where the backward looks for it."""
        runner, at = self._runner(stage, microbatch), (stage, microbatch)
        for channel, coming, types in self._coming.pop(at, []):
            tensors = restore(self._await(coming, types), types)
            saved = runner.saved.setdefault(microbatch, {})
            saved.update(zip(runner.program.list_moved(channel), tensors, strict=True))

    def send_weights(self, action: Action) -> None:
        """SEND_W: a version that a step has made."""
        weights = self._weights[action.stage]
        self._send_version(self._messages.of(action), weights, action.stage, action.version)

    def receive_weights(self, action: Action, oldest: int) -> Waits:
        """RECV_W: a version for the forward; no later action uses one older than ``oldest``."""
        weights = self._weights[action.stage]
        received = yield from self._version(self._messages.of(action), weights, action.stage)
        weights.install(action.version, received, oldest)

    def settle(self) -> Waits:
        """Bring the newest weights of all stages to where their forwards run."""
        self.forward_copies(wait=True)
        for stage, message in self._messages.settling():
            weights = self._weights[stage]
            if message.src == self._rank:
                self._send_version(message, weights, stage, weights.newest)
            else:
                received = yield from self._version(message, weights, stage)
                weights.install(weights.newest + 1, received, weights.newest + 1)

    def _send_version(
        self, message: Message, weights: StageWeights, stage: int, version: int
    ) -> None:
        held = weights.version_at(version)
        parts = [held.tensors[n] for n in weights.trained]
        count = torch.tensor(held.updates.count, device=self._device.torch)
        self._transport.send(message, pack([*parts, count], self._messages.version_types(stage)))

    def _version(
        self, message: Message, weights: StageWeights, stage: int
    ) -> Generator[bool, None, Version]:
        packed = yield from self._receive(message)
        *tensors, count = unpack(packed, self._messages.version_types(stage))
        return Version(dict(zip(weights.trained, tensors, strict=True)), Updates(int(count)))
