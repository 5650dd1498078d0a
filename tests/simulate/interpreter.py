"""A second opinion on what a schedule computes: rows run in program order on symbolic values.

It knows nothing of `pipec.schedule.dependencies`, of lanes or of times. Sends and receives never
block; an action blocks while a value or a weight version that it reads is not there. A value is
the hash of everything that went into it, so two schedules compute the same if all values agree.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from pipec.schedule.action import Action, ActionKind
from pipec.schedule.channels import ChannelKind
from pipec.schedule.schedule import Schedule

K, C = ActionKind, ChannelKind
Value = int


@dataclass
class Machine:
    """All devices together."""

    schedule: Schedule
    values: dict[tuple[str, int, int], Value] = field(default_factory=dict)
    mail: dict[tuple[object, ...], Value] = field(default_factory=dict)
    posted: set[tuple[object, ...]] = field(default_factory=set)
    weights: dict[tuple[int, int], dict[int, Value]] = field(default_factory=dict)
    sums: dict[tuple[int, int], set[Value]] = field(default_factory=lambda: defaultdict(set))
    reduced: dict[tuple[int, int], dict[int, frozenset[Value]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def run(self) -> "dict[object, object] | None":
        """What was computed, or None if rows are stuck or a value is made twice."""
        rows = [[(a, i) for i, a in enumerate(row)] for row in self._numbered()]
        at = [0] * len(rows)
        moved = True
        while moved:
            moved = False
            for device, row in enumerate(rows):
                while at[device] < len(row) and self._do(device, *row[at[device]][0]):
                    at[device] += 1
                    moved = True
        if any(i < len(row) for i, row in zip(at, rows, strict=True)):
            return None
        left = {key: frozenset(s) for key, s in self.sums.items() if s}
        return {"values": self.values, "weights": self.weights, "unused gradients": left}

    def _numbered(self) -> list[list[tuple[Action, int]]]:
        s = self.schedule
        return [
            [(s[i], int(s.channel[i])) for i in range(s.device_ptr[d], s.device_ptr[d + 1])]
            for d in range(s.devices)
        ]

    def _home(self, phase: str, stage: int, message: int) -> int:
        place = self.schedule.placement
        devices = (place.forward if phase == "F" else place.backward)[stage]
        return devices[message % len(devices)]

    def _versions(self, device: int, stage: int) -> dict[int, Value]:
        return self.weights.setdefault((device, stage), {0: hash(("weights", stage))})

    def _input(self, kind: ChannelKind, number: int, device: int, m: int) -> Value | None:
        """What a channel brings to a device, if it is there."""
        channel = self.schedule.channels[number]
        made = "B" if kind is C.B else "F"
        passed = "offload" if kind is C.H else "comm"
        here = self._home(made, channel.src, m) == device and kind is not C.H
        if here or passed not in self.schedule.inserted:
            return self.values.get((made, channel.src, m))
        key = (number, m)
        return self.mail.get(key) if key in self.posted else None

    def _inputs(self, kinds: tuple[ChannelKind, ...], a: Action, device: int) -> list[Value | None]:
        assert a.microbatch is not None
        return [
            self._input(c.kind, n, device, a.microbatch)
            for n, c in enumerate(self.schedule.channels)
            if c.kind in kinds and c.dst == a.stage
        ]

    def _do(self, device: int, a: Action, number: int) -> bool:
        if a.kind in (K.F, K.B, K.I):
            return self._compute(device, a)
        if a.kind is K.W:
            gradient = self.values.get(("B", a.stage, a.microbatch or 0))
            if gradient is None:
                return False
            self.sums[device, a.stage].add(gradient)
            return True
        if a.kind in (K.STEP, K.REDUCE_GRAD):
            return self._update(device, a)
        return self._transfer(device, a, number)

    def _compute(self, device: int, a: Action) -> bool:
        phase = "F" if a.kind is K.F else "B"
        kinds = (C.F,) if a.kind is K.F else (C.B, C.S, C.H)
        inputs = self._inputs(kinds, a, device)
        version = self._weights_of(device, a)
        assert a.microbatch is not None
        key = (phase, a.stage, a.microbatch)
        if version is None or any(v is None for v in inputs) or key in self.values:
            return False
        self.values[key] = hash((key, version, tuple(inputs)))
        if a.kind is K.B:
            self.sums[device, a.stage].add(self.values[key])
        return True

    def _weights_of(self, device: int, a: Action) -> Value | None:
        if "steps" not in self.schedule.inserted:
            return hash((a.stage, a.version))
        known = self._versions(device, a.stage)
        for key in [k for k in self.posted if k[0] == "W" and k[1:3] == (device, a.stage)]:
            if key in self.mail:
                known[int(str(key[3]))] = self.mail[key]
        return known.get(a.version)

    def _update(self, device: int, a: Action) -> bool:
        replicas = self.schedule.placement.backward[a.stage]
        if a.kind is K.REDUCE_GRAD:
            self.reduced[a.stage, a.version][a.replica] = frozenset(self.sums[device, a.stage])
            return True
        known = self._versions(device, a.stage)
        summed = frozenset(self.sums[device, a.stage])
        if "reduce" in self.schedule.inserted and len(replicas) > 1:
            parts = self.reduced[a.stage, a.version]
            if len(parts) < len(replicas):
                return False
            summed = frozenset().union(*parts.values())
        if a.version in known:
            return False
        known[a.version] = hash((known[max(known)], summed))
        self.sums[device, a.stage].clear()
        return True

    def _transfer(self, device: int, a: Action, number: int) -> bool:
        channel = self.schedule.channels[number]
        if channel.kind is C.W:
            key = ("W", self._home("F", channel.dst, a.replica), channel.dst, a.version)
            if a.kind is K.RECV_W:
                self.posted.add(key)
                return True
            value = self._versions(device, channel.src).get(a.version)
        else:
            assert a.microbatch is not None
            key = (number, a.microbatch)  # type: ignore[assignment]
            if a.kind is channel.kind.receive:
                self.posted.add(key)
                return True
            made = "B" if channel.kind is C.B else "F"
            value = self.values.get((made, channel.src, a.microbatch))
        if value is None:
            return False
        self.mail[key] = value
        return True
