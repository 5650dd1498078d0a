"""The weights of one stage: versions are held references, updates make new tensors.

Outside autograd no counter notices that a tensor which a later backward still needs was written
to. So an optimizer step writes in place only when no microbatch will use an older version.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from pipec.errors import PlanError, ScheduleError
from pipec.graph.tensor_type import has_data
from pipec.graph.torch_private import add_each, add_each_
from pipec.runtime.device import Copied, Device, Fetched
from pipec.runtime.tensors import TensorType, dense, parts
from pipec.simulate.memory import share_out

Tensors = dict[str, torch.Tensor]
OptimizerFactory = Callable[[list[Any]], torch.optim.Optimizer]
"""Makes the optimizer of one stage from its parameters, which are (name, parameter) pairs as
`torch.nn.Module.named_parameters` gives them: ``lambda p: SGD(p, lr=0.1)``."""
_M = TypeVar("_M")
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass
class Updates:
    """How many updates made the tensors that it comes with: written in place where they are."""

    count: int = 0


@dataclass
class Version:
    """One version of a stage's weights.

    Attributes:
        tensors: Parameters, buffers and constants by name.
        updates: Those of this round that are in them. They equal the version's number, unless
            an older version is bound, or was written to.
    """

    tensors: Tensors
    updates: Updates = field(default_factory=Updates)


@dataclass
class _Sum:
    """Gradients of one update as they come in, and those of them that may be written to."""

    grads: Tensors
    owned: frozenset[str]


class StageWeights:
    """All versions of a stage's weights that some action will still use.

    Args:
        stage: For messages.
        weights: Name to tensor: parameters, buffers and constants.
        trained: Names of the parameters that get a gradient.
        optimizer: Makes the optimizer; None where this device does not step the stage.
        scheduler: Makes the learning-rate schedule of that optimizer.
        replica: Number of this device among the replicas of the stage, and how many there are.
            Each of them steps its share of the parameters, and keeps the optimizer's state of it.
        rests: The device from which the optimizer's state leaves for host memory between steps;
            it stays if absent.
        beside: Whether it is sent there and brought back beside other actions; else by the step.
    """

    def __init__(
        self,
        stage: int,
        weights: Mapping[str, torch.Tensor],
        trained: tuple[str, ...],
        optimizer: OptimizerFactory | None,
        scheduler: SchedulerFactory | None = None,
        replica: tuple[int, int] = (0, 1),
        rests: Device | None = None,
        *,
        beside: bool = False,
    ) -> None:
        self._stage = stage
        self.trained = trained
        self.parameters = {n: nn.Parameter(weights[n]) for n in trained}
        current = {n: w.detach() for n, w in weights.items()}
        current |= {n: p.data for n, p in self.parameters.items()}
        self._versions = {0: Version(current)}
        self._sums: dict[int, _Sum] = {}
        self._before: Tensors = {}
        held = list(self.parameters.items())
        self.optimizer: torch.optim.Optimizer | None = None
        if optimizer and held:
            self.optimizer = self._make(optimizer, held, torch.optim.Optimizer)
        replica_index, replicas = replica
        sizes = [p.nbytes for p in self.parameters.values()]
        self.owners = dict(zip(self.parameters, share_out(sizes, replicas), strict=True))
        self.owned = {n: p for n, p in self.parameters.items() if self.owners[n] == replica_index}
        self.groups: list[list[str]] = []
        self.resting: RestingState | None = None
        if self.optimizer is not None:
            self._check_own(self.optimizer)
            self._keep_owned(self.optimizer)
            self.resting = RestingState(self.optimizer, rests, beside=beside) if rests else None
        self.scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
        if scheduler and self.optimizer:
            rates = torch.optim.lr_scheduler.LRScheduler
            self.scheduler = self._make(scheduler, self.optimizer, rates)
        began = self.scheduler.state_dict() if self.scheduler else {}
        self.scheduled = {n: v for n, v in began.items() if isinstance(v, int | float | str)}

    def _make(self, make: Callable[[Any], object], of: object, kind: type[_M]) -> _M:
        """What a user's function makes, which must be of this kind."""
        try:
            found = make(of)
        except (TypeError, ValueError) as error:
            found = error
        if isinstance(found, kind):
            return found
        raise PlanError(
            "the function for it makes no " + kind.__name__,
            where=f"stage {self._stage}",
            got=found if isinstance(found, Exception) else type(found).__name__,
            hint="optimizer=lambda parameters: AdamW(parameters, ...); "
            "scheduler=lambda optimizer: StepLR(optimizer, 10)",
        )

    def _check_own(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer over tensors that are not this stage's: it would train nothing."""
        own = {id(p) for p in self.parameters.values()}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = sum(id(p) not in own for p in held)
        if foreign or not held:
            raise PlanError(
                "the optimizer is not one of the stage's parameters",
                where=f"stage {self._stage}",
                got=f"{foreign} others among {len(held)}",
                want="the parameters that it is made from",
                hint="optimizer=lambda parameters: AdamW(parameters, ...)",
            )

    def _keep_owned(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave the parameters of other replicas to them; all of them keep the same groups."""
        names = {id(p): n for n, p in self.parameters.items()}
        for group in optimizer.param_groups:
            self.groups.append([names[id(p)] for p in group["params"]])
            group["params"] = [p for p in group["params"] if names[id(p)] in self.owned]
        for p in [p for p in optimizer.state if names[id(p)] not in self.owned]:
            del optimizer.state[p]

    @property
    def newest(self) -> int:
        """The newest version."""
        return max(self._versions)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that are held now."""
        return tuple(sorted(self._versions))

    @property
    def optimizer_bytes(self) -> int:
        """Bytes that the optimizer keeps between steps."""
        if self.optimizer is None:
            return 0
        kept = (v for state in self.optimizer.state.values() for v in state.values())
        return sum(v.nbytes for v in kept if isinstance(v, torch.Tensor))

    def version_at(self, version: int) -> Version:
        """One version: its tensors, and what was done to them.

        Raises:
            ScheduleError: It is not there yet, or not any more.
        """
        if version not in self._versions:
            raise ScheduleError(
                "a weight version is not held",
                where=f"stage {self._stage}",
                got=f"version {version}",
                want=f"one of {', '.join(map(str, self.versions))}",
            )
        return self._versions[version]

    def update_buffers(self, updates: Tensors) -> None:
        """Let every held version see new buffers: running statistics are not versioned."""
        for held in self._versions.values():
            held.tensors.update(updates)

    def remember_buffers(self) -> None:
        """Keep the buffers as they are now, for `mend_buffers`."""
        held = self._versions[self.newest].tensors
        self._before = {n: t for n, t in held.items() if n not in self.parameters}

    def mend_buffers(self) -> None:
        """Put back buffers that have become not finite since `remember_buffers`."""
        now, before = self._versions[self.newest].tensors, self._before
        spoilt = [n for n, t in before.items() if t is not now[n] and not now[n].isfinite().all()]
        self.update_buffers({n: before[n] for n in spoilt})

    def accumulate(self, update: int, grads: Tensors, owned: frozenset[str] = frozenset()) -> None:
        """Add the gradients of one microbatch to those of an update.

        Args:
            update: Number of the update.
            grads: By name of the parameter; the first ones are kept as they are. Where values
                decide what is computed, some parameters may have none.
            owned: Names of those that may be written to. A sum of others, which may be under way
                to another device, is a new tensor.
        """
        total = self._sums.get(update)
        if total is None:
            self._sums[update] = _Sum(dict(grads), owned)
            return
        added = total.grads.keys() & grads.keys()
        known = [n for n in added if n in total.owned]
        others = [n for n in added if n not in total.owned]
        if known:
            add_each_([total.grads[n] for n in known], [grads[n] for n in known])
        if others:
            sums = add_each([total.grads[n] for n in others], [grads[n] for n in others])
            total.grads |= dict(zip(others, sums, strict=True))
            total.owned |= frozenset(others)
        first = grads.keys() - total.grads.keys()
        total.grads |= {n: grads[n] for n in first}
        total.owned |= owned & first

    def list_sums(self) -> list[Tensors]:
        """The sums of all updates that no step has used yet."""
        return [self.gradients(update) for update in self._sums]

    def gradients(self, update: int) -> Tensors:
        """The sums of an update, zeros where no microbatch gave a gradient."""
        found = self._sums.get(update)
        grads = found.grads if found else {}
        return {
            n: grads[n] if n in grads else torch.zeros_like(p) for n, p in self.parameters.items()
        }

    def read_sums(self, update: int) -> Tensors:
        """The sums of an update, of those parameters alone for which some microbatch gave one."""
        found = self._sums.get(update)
        return dict(found.grads) if found else {}

    def replace_gradients(self, update: int, grads: Tensors) -> None:
        """Put other sums in the place of an update's, such as those over all replicas."""
        self._sums[update] = _Sum(grads, frozenset())

    def step(
        self, update: int, *, scale: float, oldest: int, in_place: bool, rate: float = 1.0
    ) -> None:
        """Make version ``update`` of the newest one.

        Args:
            update: The version to make.
            scale: Factor on the gradients: one over the microbatches in the update.
            oldest: No action that comes later uses a version older than this.
            in_place: Write to the tensors of the newest version; nothing may read it any more.
            rate: Factor on the learning rate of this update alone.

        Raises:
            PlanError: The optimizer or its schedule needs more than gradients, such as a closure,
                or is at its end.
        """
        self._let_go(min(oldest, self.newest))
        grads = self.read_sums(update)
        for p in self.parameters.values() if not in_place else ():
            p.data = p.data.clone()
        for name, p in self.owned.items():
            if name in grads:
                p.grad = (grads[name] * scale).to(p.dtype) if scale != 1.0 else grads[name]
        try:
            if self.optimizer is not None:
                with self.resting.on_device() if self.resting else nullcontext():
                    _step(self.optimizer, rate)
            if self.scheduler is not None:
                self.scheduler.step()
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise PlanError(
                "the optimizer cannot make a step",
                where=f"stage {self._stage}",
                got=error,
                hint="it and its schedule must step by gradients alone, by options that they take",
            ) from error
        for p in self.owned.values():
            p.grad = None
        before = self._versions[self.newest].updates
        updates = before if in_place else Updates(before.count)
        updates.count += 1
        made = {n: p.data for n, p in self.parameters.items()}
        self.install(update, Version(made, updates), oldest)
        self._sums.pop(update, None)

    def skip(self, update: int, oldest: int) -> None:
        """Make version ``update`` of the newest one without a step: nothing is known to add."""
        before = self._versions[self.newest]
        self.install(update, Version(before.tensors, Updates(before.updates.count)), oldest)
        self._sums.pop(update, None)

    def install(self, version: int, made: Version, oldest: int) -> None:
        """Hold a version that was made here or received; let go what is older than ``oldest``."""
        tensors = {**self._versions[self.newest].tensors, **made.tensors}
        self._versions[version] = Version(tensors, made.updates)
        self._let_go(min(oldest, version))

    def _let_go(self, oldest: int) -> None:
        for old in [v for v in self._versions if v < oldest]:
            del self._versions[old]

    def state(self) -> tuple[list[Any], list[Any]]:
        """Older versions and sums of gradients, for `load_state`; the newest by number alone."""
        kept = [
            [v, held.updates.count, {n: held.tensors[n] for n in self.trained if v != self.newest}]
            for v, held in self._versions.items()
        ]
        return kept, [[u, total.grads, sorted(total.owned)] for u, total in self._sums.items()]

    def load_state(self, versions: list[Any], sums: list[Any]) -> None:
        """Hold older versions again; what is newest here is the newest of them."""
        newest = self.version_at(self.newest).tensors
        self._versions = {v: Version({**newest, **t}, Updates(count)) for v, count, t in versions}
        self._sums = {u: _Sum(grads, frozenset(owned)) for u, grads, owned in sums}

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Overwrite the newest version of a weight; between rounds only.

        Raises:
            PlanError: The shape or dtype differs.
        """
        held = self.version_at(self.newest).tensors[name]
        check_fits(name, held, tensor)
        with torch.no_grad():
            held.copy_(tensor)

    def rebase(self) -> None:
        """Call the newest version 0 and forget the others: the next round counts from there."""
        self._versions = {0: Version(self._versions[self.newest].tensors)}
        self._sums.clear()


def check_fits(name: str, held: torch.Tensor, given: object) -> None:
    """Refuse a value for a weight that would have to be broadcast or cast.

    Raises:
        PlanError: The shape or dtype differs, it has no data, or it is no dense tensor.
    """
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
        got = given.layout if isinstance(given, torch.Tensor) else type(given).__name__
        raise PlanError("a weight is no dense tensor", where=name, got=got, want="torch.Tensor")
    if not has_data(given):
        raise PlanError("a weight has no value", where=name, want="a plan with its weights")
    if (given.shape, given.dtype) != (held.shape, held.dtype):
        raise PlanError(
            "a weight has another type than the model's",
            where=name,
            got=f"{given.dtype}{list(given.shape)}",
            want=f"{held.dtype}{list(held.shape)}",
        )


def _step(optimizer: torch.optim.Optimizer, rate: float) -> None:
    full = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * rate
    optimizer.step()
    for group, lr in zip(optimizer.param_groups, full, strict=True):
        group["lr"] = lr


class RestingState:
    """The state of one optimizer, which waits in host memory between steps.

    ```text
    by the step    host ──► device    the optimizer steps    device ──► host
    beside         FETCH_O ... beside backwards ... STEP ... OFFLOAD_O ... beside forwards ...
    ```

    Copies are bit for bit, so that training goes on as if the state had stayed. Scalars, such as
    the count of steps, stay where the optimizer keeps them.

    Args:
        optimizer: The optimizer that has the state.
        device: The device that it steps on.
        beside: Whether it stays after a step, until it is moved away with `rest`.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: Device, *, beside: bool = False
    ) -> None:
        self._optimizer, self._device, self._beside = optimizer, device, beside
        self._types: tuple[TensorType, ...] = ()
        self._host: Copied | None = None
        self._coming: Fetched | None = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Inside, the state is on the device."""
        self.fetch()
        self._arrive()
        try:
            yield
        finally:
            if not self._beside:
                self._device.wait(self.rest())

    def fetch(self) -> None:
        """Start to bring it from host memory, if it waits there."""
        if self._host is not None:
            self._coming, self._host = self._device.from_host(self._host, self._types), None

    def rest(self) -> Copied:
        """Start to send it to host memory, if it is not there; what the device waits for."""
        self._arrive()
        found = list(self._tensors())
        host = self._host
        if host is not None:
            place = host.buffer.untyped_storage().data_ptr()
            if all(t.untyped_storage().data_ptr() == place for _, _, t in found):
                return host
            self._device.host.give(host.buffer)
        self._types = tuple(TensorType.of(tensor) for _, _, tensor in found)
        self._host = self._device.to_host([tensor for _, _, tensor in found], self._types)
        self._put(parts(self._host.buffer, self._types))
        return self._host

    def _arrive(self) -> None:
        if self._coming is not None:
            self._device.wait(self._coming)
            self._put(self._coming.parts)
            self._coming = None

    def _put(self, copies: list[torch.Tensor]) -> None:
        for (state, key, _), copy in zip(self._tensors(), copies, strict=True):
            state[key] = copy

    def _tensors(self) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
        for state in self._optimizer.state.values():
            for key, value in list(state.items()):
                strided = type(value) is torch.Tensor and value.layout == torch.strided
                if strided and value.dim() and dense(TensorType.of(value)):
                    yield state, key, value
