"""A cost graph file and the devices it asks for; which of the two formats it is."""

from dataclasses import dataclass
from math import inf
from pathlib import Path

from pipec.cluster.cluster import Link
from pipec.errors import PartitionError
from pipec.partition.costgraph import CostGraph, check_acyclic
from pipec.partition.devices import Device

ACCELERATOR, CPU = "accelerator", "cpu"


@dataclass(frozen=True, eq=False)
class Workload:
    """A cost graph and the devices its file asks for.

    Attributes:
        graph: The problem.
        priced: Transfers are given in seconds per value; else in bytes, and need a link.
        accelerators: Number of accelerators, 0 if the file does not say.
        cpus: Number of CPUs.
        memory_bytes: Limit of an accelerator.
        links: What joins neighbouring devices, if the file says so; then every device is used.
    """

    graph: CostGraph
    priced: bool
    accelerators: int = 0
    cpus: int = 0
    memory_bytes: float = inf
    links: tuple[Link, ...] = ()

    def devices(self, accelerators: int | None = None, cpus: int | None = None) -> list[Device]:
        """Accelerators, then CPUs, which pay no communication; by default as the file says."""
        count = self.accelerators if accelerators is None else accelerators
        hosts = self.cpus if cpus is None else cpus
        accelerator = Device(ACCELERATOR, self.memory_bytes)
        return [accelerator] * count + [Device(CPU, pays=False)] * hosts


def read_workload(path: Path) -> Workload:
    """Reads dnn-partitioning JSON (it starts with a brace) or a PipeDream profile.

    Raises:
        PartitionError: Unreadable, truncated, malformed or cyclic, with the line or node at fault.
    """
    from pipec.partition.formats.dnn_json import parse_dnn_json
    from pipec.partition.formats.profile import parse_profile

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a directory that pipec compile wrote, a workload (JSON), or a graph.txt"
        raise PartitionError(
            "cannot read the cost graph", where=path, got=error, hint=hint
        ) from error
    if not text.strip():
        raise PartitionError("the cost graph is empty", where=path)
    parse = parse_dnn_json if text.lstrip()[0] in "{[" else parse_profile
    workload = parse(text, str(path))
    check_acyclic(workload.graph)
    return workload
