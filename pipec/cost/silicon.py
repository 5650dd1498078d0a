"""Times of kernels that others measured: the tables of the PyPI package ``aiconfigurator-core``.

NVIDIA publishes with it (Apache-2.0) what GEMMs, collectives and others take on ten GPUs, in CUDA
graphs: ``systems/data/GPU/gemm/FRAMEWORK/VERSION/gemm_perf.parquet`` and so on. Only these files
are read; the package itself is not imported.

| node | kernels |
|---|---|
| product in half precision | the table of GEMMs |
| its backward | the same table: ``dX = dY W`` is m x k x n, ``dW = dY' X`` is n x k x m |
| all others: attention, norms, elementwise | the roofline of the device |
| all-reduce, where all devices are joined alike | the table of NCCL between two GPUs |

Kernels go through one `Queue`, so that a node takes what it adds to the end of all.
"""

import importlib
import importlib.util
import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import fx

from pipec.cluster.cluster import Cluster
from pipec.cluster.device import Device
from pipec.cost.model import Roofline, dtype_of
from pipec.cost.stage import MessageCost
from pipec.cost.table import NodeCost
from pipec.errors import CostError
from pipec.graph.ir import Graph, InputKind, nbytes, tensors

PACKAGE, PREFIX = "aiconfigurator_core", "silicon:"
MISALIGNED = 3.0
"""How much longer a product takes where rows of an operand do not begin at multiples of 16 bytes:
"tripling the execution time" of a head with such a vocabulary (Netflix Technology Blog, "Scaling
LLM Post-Training at Netflix", 2026). The tables have aligned sizes alone."""
PASS = 3e-6
"""Seconds of a kernel that streams memory beside those of its bytes: what the package adds for any
GPU (``mem_empirical_constant_latency`` of its ``systems``)."""
_HALF = ("bfloat16", "float16")
_INSTALL = "pip install 'pipec[silicon]'"
_PRODUCTS = {"linear", "addmm", "mm", "matmul", "bmm", "baddbmm"}
_SPLITS = {"split", "split_with_sizes", "chunk", "unbind"}
_READ_AGAIN = {"softmax", "_softmax", "log_softmax", "_log_softmax", "gelu", "silu", "layer_norm",
               "native_layer_norm", "rms_norm"}  # fmt: skip


class Products:
    """Rate of GEMMs: between measured sizes straight lines in the logarithms of size and rate.

    Each row is m, n, k and the seconds of a measured GEMM.

    Rates change less with the size than times do. Beyond the largest and smallest sizes the rate
    stays, and nothing is faster than the fastest entry.
    """

    def __init__(self, rows: Iterable[tuple[float, float, float, float]]) -> None:
        from scipy.interpolate import NearestNDInterpolator, RegularGridInterpolator  # takes 0.7 s

        m, n, k, seconds = (np.asarray(c, np.float64) for c in zip(*rows, strict=True))
        sizes, rate = np.log2(np.stack([m, n, k], 1)), np.log2(2 * m * n * k / seconds)
        self._floor, self._axes = float(seconds.min()), [np.unique(c) for c in sizes.T]
        grid = np.stack(np.meshgrid(*self._axes, indexing="ij"), -1)
        filled = NearestNDInterpolator(sizes, rate)(grid)  # some corners were not measured
        self._rate = RegularGridInterpolator(self._axes, filled)

    def seconds(self, m: int, n: int, k: int) -> float:
        """Of (m x k) times (k x n)."""
        ends = [(axis[0], axis[-1]) for axis in self._axes]
        point = [np.clip(np.log2(v), *e) for v, e in zip((m, n, k), ends, strict=True)]
        return max(self._floor, float(2.0 * m * n * k / 2 ** self._rate(point)[0]))


class Queue:
    """Kernels that a host launches one by one and a device runs in this order.

    ``launch`` is the seconds that the host takes for one operation.

    A kernel starts when the one before it has ended and the host has launched it: where kernels are
    long the host gets ahead, where they are short the device waits for it.
    """

    def __init__(self, launch: float) -> None:
        self._launch, self._host, self._end = launch, 0.0, 0.0

    def add(self, kernels: Sequence[float]) -> float:
        """Seconds by which an operation of these kernels makes the end later; a view has none."""
        before = self._end
        for kernel in kernels:
            self._end = max(self._end, self._host) + kernel
            self._host += self._launch
        if not kernels:
            self._host += self._launch
        return self._end - before


class Silicon:
    """Products by the tables of one GPU, everything else by its roofline.

    Args:
        gpu: A folder of the package's, such as ``a100_sxm``.

    Attributes:
        launch: Seconds from one operation to the next in an eager framework; None if not measured.

    Raises:
        CostError: The package is missing or has no GEMMs of this GPU.
    """

    name = "silicon"

    def __init__(self, gpu: str) -> None:
        folder = _folder(gpu)
        self.launch = _eager_launch(folder)
        self._products = Products(
            (float(r["m"]), float(r["n"]), float(r["k"]), float(r["latency"]) / 1e3)
            for r in _table(folder, "gemm") if r["gemm_dtype"] in _HALF
        )  # fmt: skip
        self._sums = sorted(
            (2 * int(r["message_size"]), float(r["latency"]) / 1e3)  # elements of two bytes
            for r in _table(folder, "nccl")
            if (r["op_name"], int(r["num_gpus"]), r["nccl_dtype"]) == ("all_reduce", 2, "half")
        )

    def seconds(
        self, graph: Graph, costs: Mapping[str, NodeCost], device: Device
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of every node, forward in their order and then backward, through one queue."""
        queue = Queue(device.launch_seconds if self.launch is None else self.launch)
        calls = [n for n in graph.calls if n.target is not operator.getitem]
        weights = {graph.nodes[i.node] for i in graph.inputs_of(InputKind.PARAMETER)}
        forward, backward = (dict.fromkeys((n.name for n in graph.calls), 0.0) for _ in range(2))
        for n in calls:
            forward[n.name] = queue.add(self._forward(n, costs[n.name], device))
        for n in reversed(calls):
            kernels = self._backward(n, costs[n.name], device, weights)
            if costs[n.name].backward:
                backward[n.name] = queue.add(kernels)
        return forward, backward

    def messages(self, cluster: Cluster, kind: str) -> MessageCost | None:
        """Messages and all-reduces of equal devices in one node; None where links are unlike."""
        alike = not cluster.links and not cluster.levels
        if not self._sums or not alike or {d.kind for d in cluster.devices} != {kind}:
            return None
        device = cluster.devices[0]
        sizes, sums = zip(*self._sums, strict=True)
        way = tuple(s / device.link_bandwidth + device.link_latency for s in sizes)
        none = (0.0,) * len(sizes)
        return MessageCost(sizes, way, none, none, sums)

    def _forward(self, node: fx.Node, cost: NodeCost, device: Device) -> list[float]:
        """Seconds of each kernel."""
        if not cost.flops and not cost.bytes_written:
            return []
        if size := product_size(node):
            return [self._product(node, size.forward)]
        return [_estimate_stream(node, cost, device) + PASS]

    def _backward(
        self, node: fx.Node, cost: NodeCost, device: Device, weights: set[fx.Node]
    ) -> list[float]:
        """Of a product one GEMM for each operand that needs a gradient, and one pass for its bias.

        Weights of a norm take one pass over gradient and input, a function of one value reads what
        it saved, what was split is joined again, and gradients of weights are added to those of the
        microbatches before.
        """
        rate, packet = device.memory_bandwidth * device.memory_efficiency, _packet(node)
        one = cost.output_bytes / rate
        kernels = [3 * nbytes(w) / rate + PASS for w in node.all_input_nodes if w in weights]
        if packet in _SPLITS:
            return [*kernels, 2 * one + PASS]
        if size := product_size(node):
            wanted = size.gradients[int(cost.backward < 2) :]  # of one: nearly always the weight
            kernels += [self._product(node, s) for s in wanted]
            return kernels + [one + PASS] * (len(node.all_input_nodes) > 2)
        passes = 1.5 if packet in _READ_AGAIN else 1.0  # gradient, saved value, result
        if self._forward(node, cost, device):
            kernels.append(cost.backward * passes * _estimate_stream(node, cost, device) + PASS)
        return kernels + [2 * one + PASS] * ("_norm" in packet)

    def _product(self, node: fx.Node, size: tuple[int, int, int]) -> float:
        width = tensors(node)[0].element_size()
        rows = (tensors(n)[0].shape[-1] for n in (node, *node.all_input_nodes))
        slower = MISALIGNED if any(r * width % 16 for r in rows) else 1.0
        return slower * self._products.seconds(*size)


class ProductSize(NamedTuple):
    """m, n and k of a product and of the two products that are its gradients, of left and right."""

    forward: tuple[int, int, int]
    gradients: tuple[tuple[int, int, int], tuple[int, int, int]]


def product_size(node: fx.Node) -> ProductSize | None:
    """What a table times: a product in half precision; None if the node is no such.

    Products of a batch of matrices are taken as one of all their rows: 5 and 19 % slower on average
    than the table of such products of compressed attention, where a roofline is 54 and 36 % faster.
    """
    packet = _packet(node)
    first = int(packet in ("addmm", "baddbmm"))
    factors = [a for a in node.args[first : first + 2] if isinstance(a, fx.Node)]
    if packet not in _PRODUCTS or dtype_of(node) not in _HALF or len(factors) < 2:
        return None
    left, right = (tensors(f)[0] for f in factors)
    if min(left.ndim, right.ndim) < 2:
        return None
    k = left.shape[-1]
    out, batch = tensors(node)[0], math.prod(right.shape[:-2])
    rows, n = out.numel() // out.shape[-1], out.shape[-1]
    if right.ndim > 2:
        return ProductSize((rows, n, k), ((rows, k, n), (batch * k, n, rows // batch)))
    return ProductSize((rows, n, k), ((rows, k, n), (min(n, k), max(n, k), rows)))


@cache
def load_silicon(gpu: str) -> Silicon:
    """The model of one GPU, read once.

    Raises:
        CostError: As `Silicon`.
    """
    return Silicon(gpu)


def with_tables(cluster: Cluster, costs: str) -> Cluster:
    """The cluster whose devices of the named kinds are timed by tables.

    Args:
        cluster: Devices and links.
        costs: ``silicon:a100`` or ``silicon:a100,h100``: kinds of devices.

    Raises:
        CostError: The package is missing, it has no such GPU, or the cluster has none.
    """
    kinds = costs.removeprefix(PREFIX).split(",")
    there = {d.kind for d in cluster.devices}
    if missing := [k for k in kinds if k not in there]:
        raise CostError(
            "the cluster has no device of this kind", where=f"--costs {costs}",
            got=", ".join(missing), want=", ".join(sorted(there)),
        )  # fmt: skip
    folders = {kind: _folder(kind).name for kind in kinds}
    for folder in folders.values():
        load_silicon(folder)
    devices = (replace(d, tables=folders.get(d.kind, d.tables)) for d in cluster.devices)
    return replace(cluster, devices=tuple(devices))


def _estimate_stream(node: fx.Node, cost: NodeCost, device: Device) -> float:
    """Seconds of a node's bytes and operations alone."""
    return Roofline().seconds(node, cost, replace(device, launch_seconds=0.0))


def _packet(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")


def _folder(gpu: str) -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise CostError(
            "the tables of measured kernels are not installed", want="aiconfigurator-core",
            hint=_INSTALL,
        )  # fmt: skip
    data = Path(found.submodule_search_locations[0]) / "systems" / "data"
    known = sorted(p.name for p in data.iterdir() if _paths(p, "gemm")) if data.is_dir() else []
    for name in (gpu, f"{gpu}_sxm"):
        if name in known:
            return data / name
    raise CostError("there are no tables of this GPU", got=gpu, want=", ".join(known) or data)


def _eager_launch(folder: Path) -> float | None:
    """What a small all-reduce takes longer when it is called than in a CUDA graph.

    Both run the same kernel, so the rest is the host's way from Python to the launch; the median
    over frameworks. Where operations are short the device waits for this.
    """
    found = []
    for path in _paths(folder, "custom_allreduce"):
        least: dict[str, float] = {}
        for r in _read_table(path):
            how = str(r.get("backend", "")).rpartition("_")[2]
            least[how] = min(least.get(how, np.inf), float(r["latency"]) / 1e3)
        if {"eager", "graph"} <= least.keys():
            found.append(least["eager"] - least["graph"])
    return statistics.median(found) if found else None


def _paths(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*/*/*/{kind}_perf.parquet"))


def _table(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The table of most rows among those of several frameworks and versions."""
    return max((_read_table(path) for path in _paths(folder, kind)), key=len, default=[])


def _read_table(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = (
            importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
        )
    except ImportError as error:
        raise CostError("reading this table needs pyarrow", where=path, hint=_INSTALL) from error
    except (OSError, ValueError) as error:
        raise CostError("a table cannot be read", where=path, got=error) from error
    return rows
