"""From a model to the fastest plan: what ``explore`` and ``compile --schedule auto`` both run.

Explorations that were made before are found by the content of everything that they depend on.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from msgspec import convert

from pipec.cluster.cluster import Cluster
from pipec.cost.table import CostTable
from pipec.errors import PartitionError, PipecError
from pipec.explore.candidate import INFERENCE, Candidate, list_candidates
from pipec.explore.explore import Exploration, Progress, explore
from pipec.explore.make import Maker
from pipec.explore.rebatch import Rebatched
from pipec.files import PACKAGE, code_of, text_digest, write_file
from pipec.graph.structure import structural_key
from pipec.options import parse_one
from pipec.plan.model import Plan
from pipec.schedule.registry import ASYNCHRONOUS, plain_name


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pipec/explore``, or that below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pipec" / "explore"


def content_key(maker: Maker, candidates: Sequence[Candidate], batch: int, **more: bool) -> str:
    """Digest of graph, costs, cluster, candidates, batch, target, options and pipec's own code."""
    base = maker.cost_model(maker.traced_batch)
    assert base.costs is not None
    content = {
        "pipec": code_of(PACKAGE),
        "graph": structural_key(base.graph),
        "costs": base.costs.to_json(),
        "cluster": maker.cluster.to_json(),
        "candidates": [str(c) for c in candidates],
        "more": more,
        "batch": [batch, maker.traced_batch],
        "made": [maker.target, bool(maker.model.resized), maker.costs is None],
        "options": {name: str(value) for name, value in maker.options.items()},
    }
    return text_digest(json.dumps(content, sort_keys=True))[:32]


def recall(key: str) -> Exploration | None:
    """The exploration stored under ``key``; None if there is none or it is not what was written."""
    try:
        digest, _, text = _entry(key).read_text(encoding="utf-8").partition("\n")
    except (OSError, RuntimeError, UnicodeError):
        return None
    if digest != text_digest(text):
        return None
    return convert(json.loads(text), Exploration)


def remember(key: str, exploration: Exploration) -> None:
    """Store an exploration with its digest; a cache that cannot be written is no error."""
    text = json.dumps(asdict(exploration))
    with suppress(PipecError, OSError, RuntimeError):  # no space, no right, no home
        path = _entry(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, f"{text_digest(text)}\n{text}")


def _entry(key: str) -> Path:
    return cache_directory() / f"{key}.json"


SAMPLES = 8
"""Traced batches of one step and device, where the batch is not given."""


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Attributes:
        model: The model, with its loss if it is trained.
        cluster: Devices and links.
        target: Name of the backend.
        batch: Samples of one step; ``microbatches`` traced batches, or 8 per device, if not given.
        schedules: Names instead of those of the devices' family.
        asynchronous: Whether schedules without a flush are among those of the family.
        stages: Number of stages, if it is fixed.
        microbatches: Microbatches of one step over all replicas, if they are fixed.
        costs: Measured costs at the traced batch, instead of a model's.
        settings: What passes and the backend must remember.
        cached: Whether an equal exploration of before is taken, and this one kept.
    """

    model: Rebatched
    cluster: Cluster
    target: str = "torch"
    batch: int | None = None
    schedules: tuple[str, ...] = ()
    asynchronous: bool = False
    stages: int | None = None
    microbatches: int | None = None
    costs: CostTable | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    cached: bool = True

    def run(self, watch: Progress | None = None) -> tuple[Exploration, Plan]:
        """The exploration, and the plan of its best candidate, which keeps it.

        Args:
            watch: Told how many candidates are done, of how many.

        Raises:
            PlanError: No input of the model has a dimension.
            PartitionError: No candidate is as asked for, or none fits; or schedules are named for a
                model without a loss, which has one.
        """
        maker = self.maker
        batch = self.batch
        if batch is None:
            count = max(self.microbatches or 0, 0) or SAMPLES * self.cluster.size
            batch = maker.traced_batch * count
        tried = self._candidates(maker, batch)
        more = {"synthesized": not self.schedules, "parts": not self.schedules and not self.stages}
        key = content_key(maker, tried, batch, **more)
        known = recall(key) if self.cached else None
        if known is not None:
            return known, maker.make(known.best.candidate).replace(explored=known.summarize())
        found, plan = explore(maker, tried, batch, watch, **more)
        if self.cached:
            remember(key, found)
        return found, plan

    @cached_property
    def maker(self) -> Maker:
        """What makes plans of candidates."""
        return Maker(self.model, self.cluster, self.target, self.costs, self.settings)

    def _candidates(self, maker: Maker, batch: int) -> list[Candidate]:
        """Those that are as asked for; a model that cannot be read again keeps its microbatch."""
        names = self.schedules or None
        if (names or self.asynchronous) and not maker.trains:
            raise PartitionError(
                "a model without a loss has one schedule",
                got=", ".join(names or ["--asynchronous"]),
                want=INFERENCE,
                hint="name a loss with --loss, or let the factory return one",
            )
        if maker.trains and any(plain_name(name) == INFERENCE for name in names or ()):
            raise PartitionError(
                "a model with a loss is trained",
                got=INFERENCE,
                want="a schedule of training",
                hint="explore the model without its loss: pipec compile --inference",
            )
        for name in self.schedules:
            if {"replicas", "adjacent"} & parse_one(name, PartitionError)[1].keys():
                raise PartitionError(
                    "an exploration chooses replicas, and what is adjacent, by itself",
                    got=name,
                    hint=f"{plain_name(name)} without them; pipec compile --schedule takes them",
                )
        kept = None if self.model.resized else maker.traced_batch
        every = list_candidates(
            self.cluster, batch, names, trains=maker.trains, asynchronous=self.asynchronous,
            microbatches=self.microbatches, microbatch=kept,
        )  # fmt: skip
        found = [c for c in every if self.stages in (None, c.stages)]
        if not found:
            raise PartitionError(
                "no candidate is as asked for",
                got=f"stages={_format(self.stages)}, microbatches={_format(self.microbatches)}, "
                f"a batch of {batch} on {self.cluster}, traced at {maker.traced_batch} samples",
                want="stages for which there are devices, and microbatches that divide the batch",
                hint="leave --stages or --microbatches open, or name another --batch"
                + (f"; a model in memory keeps its microbatch of {kept} samples" if kept else ""),
            )
        tried = {c.schedule for c in found}
        unused = [n for n in self.schedules if n not in tried]
        if self.asynchronous and tried.isdisjoint(ASYNCHRONOUS):
            unused = ["--asynchronous"]
        if unused:
            raise PartitionError(
                "no candidate has this schedule",
                got=f"{', '.join(unused)}, stages={_format(self.stages)} on {self.cluster}",
                want="a pipeline of several devices; zbv, dualpipev: of twice as many stages",
                hint="leave it out, or leave --stages open",
            )
        return found


def _format(count: int | None) -> str:
    return "any" if count is None else str(count)
