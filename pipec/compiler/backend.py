"""What a backend is: it checks, times and emits a plan, reads back what it emitted, and runs it."""

import difflib
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from pipec import registry
from pipec.arguments import fits
from pipec.cluster.cluster import Cluster
from pipec.compiler.capabilities import Prepares
from pipec.compiler.comparison import Allowed
from pipec.compiler.declared import Options, defaults
from pipec.compiler.job import Chain, Job, StageFunction
from pipec.errors import BackendError
from pipec.graph.axes import Axes
from pipec.plan.model import Plan, StageTiming
from pipec.user_module import user_code


@dataclass(frozen=True)
class Emitted:
    """What was emitted, read back from nothing but its directory.

    Attributes:
        stages: One function per stage.
        tolerance: Largest error of a boundary value, relative to its largest magnitude, that the
            numbers of these stages explain.
        bounds: Boundary values for which a tolerance of their own is known, by name.
        inputs: By a seed, inputs of the kind that the stages are made for; None where any will do.
        traced: Whether the stages are what was traced, run by torch, so that they are compared with
            the traced graph rather than with the model as written.
        axes: Axes of its inputs that the stages leave open, with sizes to verify them at.
    """

    stages: Sequence[StageFunction]
    tolerance: float
    bounds: Mapping[str, Allowed] = field(default_factory=dict)
    inputs: Callable[[int], Mapping[str, torch.Tensor] | None] = lambda _seed: None
    traced: bool = False
    axes: Axes = field(default_factory=Axes)

    def __post_init__(self) -> None:
        limits = [self.tolerance, *(bound.relative for bound in self.bounds.values())]
        wrong = [t for t in limits if not 0 <= t <= 1]
        if wrong:
            raise BackendError(
                "nothing could be verified with such a tolerance", got=wrong[0], want="0 to 1"
            )


class Backend(ABC):
    """One kind of artifact. Subclasses keep no state between calls but caches.

    What one target alone can do is a capability: a protocol of `pipec.compiler.capabilities`
    whose methods the subclass has.

    Attributes:
        name: What ``--target`` calls it.
        options: The options of `pipec compile` for this target alone.
        run_options: The options of `pipec run` for this target alone.
        route: How a value that skips stages travels: ``direct``, or ``relay`` from stage to stage
            where devices form a chain.
        fused_attention: Whether its stages can train with torch's fused kernels of attention.
        reads: How it wants a model read, fields of `LoadOptions`: ``open`` and ``paired``.
        runs_emitted_code: Whether `load` runs code out of the directory, such as C++, which a plan
            of somebody else may not; false where graphs are data that are interpreted.
        simulates: Whether `load` simulates the devices, so that its seconds are not theirs.
        families: Families of the devices that it emits for.
        devices: What `pipec compile` plans for where no devices are named.

    Example:
        >>> import pipec, tempfile, torch
        >>> class Listing(pipec.Backend):
        ...     name = "listing"
        ...     check = lambda self, plan: None
        ...     stage_seconds = lambda self, plan: [pipec.StageTiming(1e-3, 1e-3, "?")]
        ...     emit = lambda self, plan, out: (out / "code.py").write_text(str(plan))
        ...     load = lambda self, plan, out: None
        >>> plan = pipec.compile(torch.nn.Linear(4, 2), torch.zeros(1, 4), "1xv100", target=Listing)
        >>> plan.save(tempfile.mkdtemp() + "/out")
    """

    name: ClassVar[str]
    options: ClassVar[type[Options]] = Options
    run_options: ClassVar[type[Options]] = Options
    route: ClassVar[str] = "direct"
    fused_attention: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    runs_emitted_code: ClassVar[bool] = True
    simulates: ClassVar[bool] = False
    families: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})
    devices: ClassVar[str] = "2xcpu"

    @abstractmethod
    def check(self, plan: Plan) -> None:
        """See whether every stage can be emitted.

        Raises:
            BackendError: Something cannot; all findings are listed, by node and origin.
        """

    @abstractmethod
    def stage_seconds(self, plan: Plan) -> tuple[StageTiming, ...]:
        """Predict every stage on its device."""

    @abstractmethod
    def emit(self, plan: Plan, directory: Path) -> None:
        """Write the artifacts of all stages into ``directory``, which exists and is empty.

        The same plan gives the same bytes.
        """

    @abstractmethod
    def load(self, plan: Plan, directory: Path) -> Emitted:
        """What was emitted as functions, reading nothing but ``directory``.

        `pipec verify` compares every value that these functions give with the original model.

        Raises:
            BackendError: An artifact is damaged, or a tool that runs it is missing.
        """

    def run(self, plan: Plan, job: Job) -> None:
        """Run what was emitted: by default the functions of `load`, one stage after the other.

        Args:
            plan: As loaded from its directory, with a schedule.
            job: The options of `pipec run`.

        Raises:
            BackendError: The plan trains, which this engine cannot, or a stage fails.
        """
        if plan.trains:
            raise BackendError(
                f"the target {self.name} runs the forward pass alone, and this plan trains",
                where=job.directory,
                hint="pipec verify checks its gradients",
            )
        emitted = read_back(plan, job.directory)
        job.infer(Chain(plan, emitted.stages, job.batch(), emitted.axes), job.observers())


def load_backend(name: str) -> Backend:
    """The backend registered as ``name``.

    Raises:
        PipecError: There is none, or it declares what cannot be.
    """
    found = registry.load_class("pipec.backends", name, Backend)  # type: ignore[type-abstract]
    for attribute, fine, want in (
        ("route", found.route in ("direct", "relay"), "direct or relay"),
        ("reads", {*found.reads} <= {"open", "paired"}, "open, paired"),
        ("options", _declares(found.options), "a frozen dataclass, a subclass of Options"),
        ("run_options", _declares(found.run_options), "a frozen dataclass, a subclass of Options"),
    ):
        if not fine:
            what, got = f"{attribute} of the target {name}", getattr(found, attribute)
            raise BackendError(f"{what} is nothing that pipec knows", got=got, want=want)
    return found()


def _declares(options: object) -> bool:
    return isinstance(options, type) and issubclass(options, Options)


def read_back(plan: Plan, directory: Path) -> Emitted:
    """What a plan's backend loads of what it emitted: one function per stage.

    Raises:
        BackendError: It fails, or loads something else.
    """
    with user_code(f"the target {plan.target} cannot load its stages", error=BackendError):
        emitted: object = load_backend(plan.target).load(plan, directory)
    if isinstance(emitted, Emitted) and len(emitted.stages) == len(plan.stages):
        return emitted
    raise BackendError(
        f"the target {plan.target} does not load its stages",
        where=directory,
        got=f"{len(emitted.stages)} functions" if isinstance(emitted, Emitted) else repr(emitted),
        want=f"Emitted, with a function for each of {len(plan.stages)} stages",
    )


def lacking(backend: Backend, capability: Any, what: str) -> BackendError:
    """The error of a backend without a capability, which names the targets that have it."""
    others = _owners(lambda b: isinstance(b, capability))
    return BackendError(f"the target {backend.name} has no {what}", want=f"the target {others}")


def check_devices(backend: Backend, cluster: Cluster) -> None:
    """See that a target emits for the devices of a cluster.

    Raises:
        BackendError: It does not for one of them; the targets that do are named.
    """
    wrong = next((d for d in cluster.devices if d.family not in backend.families), None)
    if wrong is not None:
        raise BackendError(
            f"the target {backend.name} does not run on such devices",
            got=f"{wrong.kind} ({wrong.family})",
            want=" or ".join(sorted(backend.families)),
            hint=f"name other devices, or a target for these: "
            f"{_owners(lambda b: wrong.family in b.families)}",
        )


def _owners(has: Callable[[Backend], bool]) -> str:
    """Names of the registered targets of which something is true."""
    return ", ".join(b.name for b in _every() if has(b)) or "none"


def _every() -> list[Backend]:
    found = registry.list_working("pipec.backends", Backend)  # type: ignore[type-abstract]
    return [backend() for backend in found]


def settings_of(
    backend: Backend, given: Mapping[str, object], example_inputs: Mapping[str, torch.Tensor]
) -> dict[str, object]:
    """What a plan for a target must remember: its options, as given or by default.

    Raises:
        BackendError: The target has no such option; near names and other targets are suggested.
    """
    known = defaults(backend.options, given)
    for name in given.keys() - known.keys():
        owners = {o: b.name for b in (*_every(), backend) for o in defaults(b.options, {})}
        near = difflib.get_close_matches(name, owners, n=1)
        raise BackendError(
            f"the target {backend.name} has no option {name}",
            want=", ".join(known) or "none",
            hint=f"{near[0]!r} is an option of the target {owners[near[0]]}" if near else None,
        )
    for name, hint in typing.get_type_hints(backend.options).items():
        if name in known and not fits(known[name], hint):
            raise BackendError(f"{name}: of another type", got=repr(known[name]), want=hint)
    if isinstance(backend, Prepares):
        return backend.prepare(known, example_inputs)
    return known
