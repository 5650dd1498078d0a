"""The interpreter of one device's row of a schedule: a handler per kind of action.

```text
row        0RECV_B2   0B2   0STEP@1 ...
handlers   take the gradient from the transport · run B of stage 0 · make version 1 of stage 0
```

It knows what each action means and nothing about how the schedule came to be: which microbatch,
which weight version and which channel are data on the action.
"""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from pipec.errors import ScheduleError, list_lines
from pipec.graph.autocast import refuse_autocast
from pipec.graph.eager import is_absent
from pipec.graph.ir import InputKind, OutputKind
from pipec.runtime.coupling import check_uncoupled
from pipec.runtime.device import Device, Moment
from pipec.runtime.draws import stream
from pipec.runtime.moves import Moves
from pipec.runtime.program import Program, StageProgram, gradient_of
from pipec.runtime.result import Recorded, Result
from pipec.runtime.rounds import Rounds, Turn
from pipec.runtime.rules import DelayRule, delays
from pipec.runtime.scaling import LossScale
from pipec.runtime.settings import OnNan, Settings
from pipec.runtime.shares import Shares
from pipec.runtime.spikes import Spikes
from pipec.runtime.stage import StageRunner
from pipec.runtime.steps import Steps
from pipec.runtime.tensors import TensorType
from pipec.runtime.transport import Meeting, Transport, Waits, poll
from pipec.runtime.weights import StageWeights, check_fits
from pipec.schedule.action import FROM_HOST, TO_HOST, Action, ActionKind

__all__ = ["Batch", "Executor", "OnNan", "Settings", "deadlock"]
Tensors = dict[str, torch.Tensor]
Batch = Callable[[int], Mapping[str, torch.Tensor]]
"""Gives the inputs (targets too) of a microbatch by its number, counted over all rounds. Called on
every device that reads some of them, so it must give the same each time."""
_K = ActionKind


class Executor:
    """Runs one device's row; weights that it ``borrows`` are used where they lie, and not copied.

    Raises:
        PlanError: A weight has another shape or dtype than the model's.
    """

    def __init__(
        self,
        program: Program,
        device: int,
        transport: Transport,
        batch: Batch,
        settings: Settings,
        weights: Mapping[str, torch.Tensor],
        compute: Device | None = None,
        *,
        borrows: bool = False,
    ) -> None:
        self._borrows = borrows
        self.device, self.transport = device, transport
        self.compute = compute or Device(torch.device("cpu"))
        self._batch, self.settings = batch, settings
        self.weights: dict[int, StageWeights] = {}
        self.rules: dict[int, DelayRule] = {}
        self._shapes: list[Program] = []
        self._runners: list[dict[int, StageRunner]] = []
        self.moves = moves = Moves(self.compute, transport, self.runner, self.weights)
        self._handlers: dict[ActionKind, Callable[[Action], Waits | None]] = {
            _K.F: self._forward,
            _K.B: self._backward,
            _K.I: self._backward,
            _K.W: self._backward,
            _K.SEND_F: moves.send_value,
            _K.RECV_F: moves.receive_value,
            _K.SEND_B: moves.send_value,
            _K.RECV_B: moves.receive_value,
            _K.SEND_S: moves.send_saved,
            _K.RECV_S: moves.receive_saved,
            _K.OFFLOAD: moves.send_saved,
            _K.FETCH: moves.receive_saved,
            _K.SEND_W: moves.send_weights,
            _K.RECV_W: lambda a: moves.receive_weights(a, self._row[self._at].oldest),
            _K.REDUCE_GRAD: self._reduce,
            _K.STEP: lambda a: self._steps.do(self, a, self._row[self._at].oldest),
            _K.OFFLOAD_O: moves.send_state,
            _K.FETCH_O: moves.receive_state,
        }
        self.result = Result()
        self.recorded: Recorded | None = None
        self.round = 0
        self.rounds: Rounds
        first = settings.loss_scale
        self.scaling = LossScale() if first is None else LossScale(first, adapts=True)
        self.spikes = Spikes(settings.spike)
        self.load(program)
        self._place(weights)

    def load(self, program: Program) -> None:
        """Take another schedule for the same stages; between rounds only.

        Raises:
            PlanError: Clipping or skipping is asked for where there is no flush.
        """
        self.settings.check_flush(program.schedule)
        origin = self.rounds.origin if hasattr(self, "rounds") else 0
        self.program = program
        self.rounds = Rounds(program.schedule, self.device, origin=origin)
        self.moves.load(program, self.rounds, self._shapes)
        self._steps = Steps(program, self.device)
        self._row: list[Turn] = []
        self._at, self.finished = 0, True
        self._doing: Iterator[bool] | None = None
        for stage in self.weights:
            self._rule(stage)

    def add_shape(self, program: Program) -> int:
        """Make the stages ready for microbatches of another shape; between rounds only.

        Returns:
            The number of the shape, for `Shares`.
        """
        self._shapes.append(program)
        self._runners.append({s: self._make_runner(program, s) for s in self.weights})
        self.moves.load(self.program, self.rounds, self._shapes)
        return len(self._shapes)

    def _make_runner(self, program: Program, stage: int) -> StageRunner:
        if self.settings.runner is not None:
            return self.settings.runner(program.stages[stage])
        return StageRunner(program.stages[stage], self.settings.compiled, self.compute.torch)

    def runner(self, stage: int, microbatch: int) -> StageRunner:
        """What runs a stage on a microbatch of its shape."""
        return self._runners[self.rounds.shape(microbatch)][stage]

    def save_progress(self) -> dict[str, Any]:
        """What is held between two rounds of an endless schedule, of these stages and no others.

        Values that wait to be sent or read, what is saved for backwards to come, older versions of
        weights, sums of gradients, and how much the microbatches under way count.
        """
        runners = [(s, r) for runners in self._runners for s, r in runners.items()]
        return {
            "rounds": self.rounds.state(),
            "moves": self.moves.state(),
            "saved": [[s, m, t] for s, r in runners for m, t in r.saved.items()],
            "weights": [[s, *w.state()] for s, w in self.weights.items()],
        }

    def drop_progress(self) -> None:
        """Forget all microbatches that are under way; between rounds only."""
        self.rounds.load_state([0, []])
        self.moves.load_state({"values": [], "coming": [], "host": []})
        for runner in (r for runners in self._runners for r in runners.values()):
            runner.saved.clear()
        for weights in self.weights.values():
            weights.rebase()

    def load_progress(self, found: Mapping[str, Any]) -> None:
        """Hold what `save_progress` gave; the newest weights are back already."""
        self.rounds.load_state(found["rounds"])
        self.moves.load_state(found["moves"])
        for stage, microbatch, tensors in found["saved"]:
            self.runner(stage, microbatch).saved[microbatch] = tensors
        for stage, versions, sums in found["weights"]:
            self.weights[stage].load_state(versions, sums)

    @property
    def reads(self) -> frozenset[str]:
        """Inputs of the model that some stage of this device reads."""
        return frozenset(n for r in self._runners[0].values() for n in r.input_names)

    def _place(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Make the runner and the weights of every stage of this device."""
        place = self.program.schedule.placement
        self._runners.append({})
        for s in self.program.stages:
            steps = place.backward and self.device in place.backward[s.index]
            if not steps and self.device not in place.forward[s.index]:
                continue
            tensors = {}
            for name in s.weights:
                tensors[name] = self._weight(s, name, weights)
            trained = self.program.parameters(s.index) if place.backward else ()
            self.scaling.check({n: tensors[n] for n in trained})
            if steps and self.settings.optimizer and self.program.steps_apart:
                check_uncoupled(self.settings.optimizer, {n: tensors[n] for n in trained})
            self._runners[0][s.index] = self._make_runner(self.program, s.index)
            self.weights[s.index] = StageWeights(
                s.index,
                tensors,
                trained,
                self.settings.optimizer if steps else None,
                self.settings.scheduler,
                (place.backward[s.index].index(self.device), len(place.backward[s.index]))
                if steps
                else (0, 1),
                self.compute if self.program.plan.state_waits else None,
                beside=self.program.schedule.state_beside > 0,
            )
            self._rule(s.index)

    def _weight(
        self, stage: StageProgram, name: str, weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        given, kind = weights[name], stage.type_of(name)
        like = kind.empty(self.compute.torch)
        check_fits(name, like, given)
        if self._borrows and given.device == self.compute.torch and TensorType.of(given) == kind:
            return given
        return like.copy_(given)

    def _rule(self, stage: int) -> None:
        schedule = self.program.schedule
        late = delays(schedule, stage) if schedule.training else (0.0, 0.0)
        rule = DelayRule(self.settings.correction, *late, counts=not self.program.flush)
        if stage in self.rules:
            rule.updates, rule.velocity = self.rules[stage].updates, self.rules[stage].velocity
        self.rules[stage] = rule

    def start(self, shares: Shares | None = None, *, draining: bool = False) -> None:
        """Begin a round: tell the transport what will come.

        Args:
            shares: How much each microbatch counts, and its shape; all alike if absent.
            draining: Take no microbatches, and go on with those that are under way.
        """
        refuse_autocast(
            self.compute.torch.type, "a plan runs", "compile it with autocast='{dtype}'"
        )
        self._at, self._doing, self.finished, self.result = 0, None, False, Result()
        for weights in self.weights.values() if self.settings.skips else ():
            weights.remember_buffers()
        if draining:
            self.rounds.drain()
        else:
            self.rounds.begin(shares)
        if self.recorded is not None and not draining:
            self.recorded = []
            self.compute.set_clock()
        self._moments: list[tuple[int, Moment, Moment, int]] = []
        self._row = self.rounds.row()
        self.moves.start(self._row)

    @property
    def microbatch(self) -> int:
        """Microbatches of the rounds before this one."""
        return self.rounds.origin + self.rounds.done * self.rounds.microbatches

    def resume(self, number: int, microbatch: int) -> None:
        """Count rounds and microbatches from where a checkpoint was made."""
        self.round, self.rounds.origin = number, microbatch

    @property
    def saved_bytes(self) -> int:
        """Bytes of saved values on the device now; what waits in host memory does not count."""
        held = sum(r.count_saved() for runners in self._runners for r in runners.values())
        return held + self.moves.coming_bytes

    @property
    def turn(self) -> Turn | None:
        """What the device is at; any thread may ask."""
        row, at = self._row, self._at
        return row[at] if at < len(row) else None

    @property
    def next_action(self) -> Action | None:
        """The action that the device is at."""
        turn = self.turn
        return turn and turn.action

    def advance(self) -> bool:
        """Go on with the row; False if it must wait for another device or nothing is left."""
        if self.finished:
            return False
        self.moves.forward_copies()
        if self._doing is None and (turn := self.turn):
            self.moves.begin(turn.action, turn.place)
        begin = self.compute.mark_moment() if self._records else 0.0
        if self._doing is None:
            self._doing = iter(self._begin() or ())
        gone_on = next(self._doing, None)
        if gone_on is not None:
            return gone_on
        self._doing = None
        if self._at == len(self._row):
            self.finished = True
            return True
        if self._records:
            self._record(begin)
        self._at += 1
        return True

    @property
    def _records(self) -> bool:
        return self.recorded is not None and not self.rounds.draining

    def _record(self, begin: Moment) -> None:
        turn, copied = self._row[self._at], self.compute.copied
        moves = turn.action.kind in (*TO_HOST, *FROM_HOST)
        begin, end = copied if moves and copied else (begin, self.compute.mark_moment())
        self._moments.append((turn.place, begin, end, self.saved_bytes))

    def _keep_record(self) -> None:
        """The round's moments as seconds, once the device is idle."""
        if self.recorded is not None:
            at = self.compute.seconds
            rows = ((place, at(b), at(e), held) for place, b, e, held in self._moments)
            self.recorded += rows
        self._moments.clear()

    def _begin(self) -> Waits | None:
        """The next action, or what the end of the row has waited for."""
        if self._at == len(self._row):
            return self.moves.settle()
        action = self._row[self._at].action
        if not action.kind.is_compute:
            return self._handlers[action.kind](action)
        with self.compute.count_time():
            return self._handlers[action.kind](action)

    def end(self) -> Result:
        """Finish a round: everything has left; versions count from 0 where none is under way."""
        self.moves.keep()
        self.transport.finish()
        self.round += not self.rounds.draining
        if self.rounds.end():
            for w in self.weights.values():
                w.rebase()
        self.result.busy = self.compute.busy()
        self._keep_record()
        self.result.norm = self._steps.norm
        return self.result

    def beside(self, programs: Sequence[Program], batch: Batch) -> "Executor":
        """What runs other graphs of the same stages on this device's weights, as they are now."""
        newest = (w.version_at(w.newest).tensors for w in self.weights.values())
        own = {n: t for tensors in newest for n, t in tensors.items()}
        weights = ChainMap(own, dict(programs[0].plan.graph.weights))
        made = Executor(
            programs[0], self.device, self.transport, batch, Settings(seed=self.settings.seed),
            weights, self.compute, borrows=True,
        )  # fmt: skip
        for program in programs[1:]:
            made.add_shape(program)
        return made

    def read_state(self, stage: int) -> Tensors:
        """What a state dict has of a stage, the newest, by name: the tensors themselves."""
        names = {i.name for i in self.program.plan.graph.inputs_of(InputKind.STATE)}
        return {n: w for n, w in self.list_changing(stage).items() if n not in names}

    def list_changing(self, stage: int) -> Tensors:
        """As `read_state`, with the buffers that no state dict has."""
        names = {i.name for i in self.program.plan.graph.inputs if i.kind.changes}
        weights = self.weights[stage]
        return {n: w for n, w in weights.version_at(weights.newest).tensors.items() if n in names}

    def inputs(self, microbatch: int) -> Mapping[str, torch.Tensor]:
        """The inputs of a microbatch, numbered since the pipeline was empty."""
        return self._batch(self.rounds.origin + microbatch)

    def _stage(self, action: Action) -> tuple[StageProgram, StageRunner, StageWeights, int]:
        assert action.microbatch is not None
        runner = self.runner(action.stage, action.microbatch)
        return runner.program, runner, self.weights[action.stage], action.microbatch

    def _forward(self, action: Action) -> None:
        stage, runner, weights, m = self._stage(action)
        values = {v: self.moves.take(c.name, m) for v, c in stage.incoming.items()}
        inputs = self.inputs(m) if runner.input_names else {}
        held = weights.version_at(action.version)
        tensors = held.tensors
        self.result.versions.append((action, held.updates.count))
        with self.compute.own_random() if runner.random else nullcontext():
            seeds = partial(stream, self.settings.seed, self.rounds.origin + m)
            outcome = runner.forward(m, tensors, values, inputs, seeds)
        for value, channels in stage.outgoing.items():
            for c in channels:
                self.moves.put(c.name, m, outcome[OutputKind.VALUE][value])
        number = m % self.rounds.microbatches
        if self.rounds.weight(m):
            weights.update_buffers(outcome[OutputKind.BUFFER_UPDATE])
            for loss in outcome[OutputKind.LOSS].values():
                self.result.losses[number] = loss.detach()
        for name, output in outcome[OutputKind.OUTPUT].items():
            self.result.outputs[number, name] = output

    def _backward(self, action: Action) -> None:
        stage, runner, weights, m = self._stage(action)
        assert stage.training is not None
        kind = action.kind.name
        held = weights.version_at(action.version)
        tensors = self.rules[action.stage].backward_weights(held.tensors)
        self.result.versions.append((action, held.updates.count))
        gradients = {} if action.kind is _K.W else self._gradients(stage, m)
        outcome = runner.backward(kind, m, tensors, gradients)
        for value, channel in stage.gradients_out.items():
            if value in outcome[OutputKind.GRADIENT]:
                gradient = outcome[OutputKind.GRADIENT][value]
                self.moves.put(gradient_of(channel.name), m, gradient)
        if action.kind is not _K.I:
            replicas = len(self.program.schedule.placement.backward[action.stage])
            update = self.program.schedule.rule.update_of(m, replicas)
            sums = outcome[OutputKind.WEIGHT_GRADIENT].items()
            counts = bool(self.rounds.weight(m))  # a mean over no targets has no gradient, but NaN
            known = {n: g for n, g in sums if counts and not is_absent(g)}
            weights.accumulate(update, known, runner.list_owned(kind))

    def _gradients(self, stage: StageProgram, microbatch: int) -> Tensors:
        """What B is given: the sum of what the readers of each value return; 1 for the loss."""
        assert stage.training is not None
        found: Tensors = {}
        for name in stage.training.gradients_in():
            parts = [
                self.moves.take(gradient_of(c.name), microbatch)
                for c in stage.gradients_in.get(name, [])
            ]
            if name == stage.loss:
                weight = self.rounds.weight(microbatch) * self.scaling.scale
                dtype, device = stage.loss_dtype, self.compute.torch
                parts.append(torch.full((), weight, dtype=dtype, device=device))
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            found[name] = total
        return found

    def _reduce(self, action: Action) -> Waits:
        weights = self.weights[action.stage]
        members = self.program.schedule.placement.backward[action.stage]
        grads, given = weights.gradients(action.version), weights.read_sums(action.version)
        if not grads:
            return
        at = Meeting(f"grad {action.stage} {action.version} {self.round}", self.device, members)
        owners = {n: members[weights.owners[n]] for n in grads}
        like = next(iter(grads.values()))
        there = [
            like.new_tensor([n in given for n, o in owners.items() if o == m]) for m in members
        ]
        parts, whose = [*grads.values(), *there], [*owners.values(), *members]
        *sums, counts = yield from poll(partial(self.transport.scatter, at, parts, whose))
        summed = zip(weights.owned, sums, counts.tolist(), strict=True)
        weights.replace_gradients(action.version, {n: g for n, g, count in summed if count})

    @property
    def steps_again(self) -> bool:
        """Whether a step comes behind the action that the device is at."""
        return any(t.action.kind is _K.STEP for t in self._row[self._at + 1 :])


def deadlock(executors: list[Executor]) -> ScheduleError:
    """The error that tells where every device of a stuck round is."""
    waiting = [f"device {e.device}: {e.next_action}" for e in executors if not e.finished]
    return ScheduleError("no device can go on", got=list_lines(waiting, len(waiting)))
