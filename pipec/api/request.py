"""What is compiled and how, besides the model: for `pipec.compile` and ``pipec compile`` alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipec.cluster.cluster import Cluster
from pipec.compiler.backend import Backend, settings_of
from pipec.compiler.driver import default_passes, make_plan
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import Observer, parse_pipeline
from pipec.cost.file import load_costs
from pipec.cost.silicon import PREFIX, with_tables
from pipec.cost.table import CostTable
from pipec.errors import PassError, PipecError
from pipec.explore.rebatch import Rebatched
from pipec.explore.search import Search
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.factory import is_factory
from pipec.frontends.load import load
from pipec.graph.ir import Graph, OutputKind
from pipec.plan.model import Plan
from pipec.schedule.registry import ASYNCHRONOUS

Passes = str | Sequence[str | Pass] | None

MOST_MICROBATCHES = 1_000_000
"""Of one plan, which holds the times of all of them."""


@dataclass(frozen=True)
class Request:
    """One compilation.

    Attributes:
        backend: The target.
        cluster: Devices and links.
        settings: Options of the target.
        cached: With ``auto``: whether an equal exploration of before is taken.
        schedules: With ``auto``: names instead of those of the devices' family.

    The others are the arguments of `pipec.compile`.

    Raises:
        PipecError: An option has no effect beside the others.
    """

    backend: Backend
    cluster: Cluster
    schedule: str = "fastest"
    stages: int | None = None
    microbatches: int | None = None
    batch: int | None = None
    passes: Passes = None
    costs: Path | str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    cached: bool = True
    schedules: tuple[str, ...] = ()
    asynchronous: bool = False
    recompute: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    offload_optimizer: bool = False

    def __post_init__(self) -> None:
        beside = {"schedule": self.schedule != "fastest", "stages": self.stages is not None,
                  "microbatches": self.microbatches is not None,
                  "recompute": bool(self.recompute), "offload": bool(self.offload),
                  "offload_optimizer": self.offload_optimizer}  # fmt: skip
        if self.passes is not None and any(beside.values()):
            raise PipecError(
                "passes take their own options",
                got=f"passes beside {', '.join(n for n, given in beside.items() if given)}",
                hint="write it as an option: partition{stages=4}, schedule{generator=1f1b}",
            )
        if (self.microbatches or 0) > MOST_MICROBATCHES:
            raise PipecError(
                "too many microbatches", got=self.microbatches, want=f"at most {MOST_MICROBATCHES}"
            )
        if self.schedules and self.asynchronous:
            raise PipecError(
                "schedules that are named are all that are tried",
                got="asynchronous beside schedules",
                hint=f"name them too: {', '.join(ASYNCHRONOUS)}",
            )
        if self.explores and (self.recompute or self.offload or self.offload_optimizer):
            raise PipecError(
                "auto chooses by itself what is computed again and what waits in host memory",
                got="recompute or offload beside schedule='auto'",
                hint="name a schedule",
            )
        beside = {"no cache": not self.cached, f"batch {self.batch}": self.batch is not None,
                  "asynchronous": self.asynchronous}  # fmt: skip
        if not self.explores and any(beside.values()):
            raise PipecError(
                "this option has no effect without an exploration",
                got=", ".join(name for name, given in beside.items() if given),
                hint="schedule='auto', or --schedule auto",
            )

    @property
    def explores(self) -> bool:
        """Whether all that can be varied is, where there is a loss."""
        return self.schedule == "auto" and self.passes is None

    def pipeline(self) -> list[Pass]:
        """The passes where nothing is explored.

        Raises:
            PassError: An item is neither text nor a pass, or the text cannot be read.
        """
        usual = default_passes(
            stages=self.stages,
            schedule="fastest" if self.explores else self.schedule,
            microbatches=8 if self.microbatches is None else self.microbatches,
            recompute=self.recompute,
            offload=self.offload,
            offload_optimizer=self.offload_optimizer,
        )
        if self.passes is None:
            return usual
        found: list[Pass] = []
        for item in [self.passes] if isinstance(self.passes, str) else self.passes:
            if isinstance(item, Pass):
                found.append(item)
            elif isinstance(item, str):
                found += usual if item == "default" else parse_pipeline(item)
            else:
                raise PassError(
                    "this is no pass", got=repr(item), want="text, or an object of a Pass"
                )
        return found

    def plan(
        self,
        loaded: Loaded,
        spec: str,
        options: LoadOptions,
        *,
        observe: Observer | None = None,
        search: Callable[[Search], Plan] = lambda search: search.run()[1],
    ) -> Plan:
        """Explore, or run the passes.

        Args:
            loaded: The model.
            spec: Where it is read again with another batch; empty if it cannot be.
            options: Options with which it was read.
            observe: Called after every pass.
            search: Runs an exploration.

        Raises:
            PipecError: An option has no effect as the model has no loss.
        """
        if self.explores and loaded.graph.outputs_of(OutputKind.LOSS):
            return search(self.search(loaded, spec, options))
        if self.batch is not None or self.asynchronous:
            raise PipecError(
                "this option has no effect on a model without a loss",
                got="asynchronous" if self.asynchronous else f"batch {self.batch}",
                hint="let the factory return a loss, or give one: loss=, --loss",
            )
        costs, settings = self._costs(loaded), self._settings(loaded)
        return make_plan(
            loaded.graph, self._add_costs(), self.backend.name, passes=self.pipeline(), costs=costs,
            options=settings, observe=observe,
        )  # fmt: skip

    def search(self, loaded: Loaded, spec: str, options: LoadOptions) -> Search:
        """The exploration of all that is left open; arguments as of `plan`."""

        def read(shapes: Mapping[str, tuple[int, ...]]) -> Graph:
            return load(spec, replace(options, shapes={**options.shapes, **shapes})).graph

        again = loaded.resized if is_factory(spec) else read if spec else None
        return Search(
            Rebatched(loaded.graph, again), self._add_costs(), self.backend.name,
            batch=self.batch, schedules=self.schedules, stages=self.stages,
            microbatches=self.microbatches, costs=self._costs(loaded),
            settings=self._settings(loaded), cached=self.cached, asynchronous=self.asynchronous,
        )  # fmt: skip

    def _costs(self, loaded: Loaded) -> CostTable | None:
        if self.costs is None or str(self.costs).startswith(PREFIX):
            return None
        table = load_costs(Path(self.costs), loaded.graph)
        for device in self.cluster.devices:
            table.of(device.kind)
        return table

    def _add_costs(self) -> Cluster:
        source = str(self.costs or "")
        return with_tables(self.cluster, source) if source.startswith(PREFIX) else self.cluster

    def _settings(self, loaded: Loaded) -> dict[str, object]:
        return settings_of(self.backend, self.settings, loaded.example_inputs)
