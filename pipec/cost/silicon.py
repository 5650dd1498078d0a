"""Times of kernels that others measured: the tables of the PyPI package ``aiconfigurator-core``.

NVIDIA publishes with it (Apache-2.0) what GEMMs, collectives and others take on ten GPUs, in CUDA
graphs: ``systems/data/GPU/gemm/FRAMEWORK/VERSION/gemm_perf.parquet`` and so on. Only these files
are read; the package itself is not imported.

| node | seconds |
|---|---|
| product of a matrix with weights in half precision | the table of GEMMs |
| its backward | the same table: ``dX = dY W`` is m x k x n, ``dW = dY' X`` is n x k x m |
| all others: attention, batched products, norms, elementwise | the roofline of the device |
| any, at least | its launch in an eager framework |
| all-reduce, where all devices are joined alike | the table of NCCL between two GPUs |
"""

import importlib
import importlib.util
import statistics
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import NearestNDInterpolator, RegularGridInterpolator
from torch import fx

from pipec.cluster.cluster import Cluster
from pipec.cluster.device import Device
from pipec.cost.model import Roofline, dtype_of
from pipec.cost.stage import MessageCost
from pipec.cost.table import NodeCost
from pipec.errors import CostError
from pipec.graph.ir import tensors

PACKAGE, PREFIX = "aiconfigurator_core", "silicon:"
MISALIGNED = 3.0
"""How much longer a product takes where rows of an operand do not begin at multiples of 16 bytes:
"tripling the execution time" of a head with such a vocabulary (Netflix Technology Blog, "Scaling
LLM Post-Training at Netflix", 2026). The tables have aligned sizes alone."""
_HALF = ("bfloat16", "float16")
_INSTALL = "pip install 'pipec[silicon]'"
_PRODUCTS = {"linear", "addmm", "mm", "matmul"}
_READ_AGAIN = {"softmax", "_softmax", "log_softmax", "_log_softmax", "gelu", "silu", "layer_norm",
               "native_layer_norm", "rms_norm"}  # fmt: skip


class Products:
    """Rate of GEMMs: between measured sizes straight lines in the logarithms of size and rate.

    Rates change less with the size than times do. Beyond the largest and smallest sizes the rate
    stays, and nothing is faster than the fastest entry.

    Args:
        rows: m, n, k and seconds of every measured GEMM.
    """

    def __init__(self, rows: Iterable[tuple[float, float, float, float]]) -> None:
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


class Silicon(Roofline):
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

    def seconds(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        """Forward seconds: of the device, or of the host if its launch takes longer."""
        if not cost.flops and not cost.bytes_written:
            return 0.0
        return max(self._forward(node, cost, device), self._launch(device))

    def backward(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        """Backward seconds: of a product one GEMM for each operand that needs a gradient.

        Its bias takes one pass over the gradient, weights of a norm take one over gradient and
        input, a function of one value reads what it saved, and what was split is joined again.
        """
        one = cost.output_bytes / (device.memory_bandwidth * device.memory_efficiency)
        packet, size = _packet(node), product_size(node)
        if not cost.backward or not (cost.flops or cost.bytes_written or packet == "split"):
            return 0.0
        if packet == "split":
            kernels = [2 * one]
        elif size:
            m, n, k = size
            wanted = [(m, k, n), (min(n, k), max(n, k), m)]
            if cost.backward < 2:  # of one operand: nearly always the first layer's weight
                del wanted[0]
            kernels = [_slower(size) * self._products.seconds(*s) for s in wanted]
            kernels += [one] * (len(node.all_input_nodes) > 2)
        else:
            passes = 1.5 if packet in _READ_AGAIN else 1.0  # gradient, saved value, result
            kernels = [cost.backward * passes * self._forward(node, cost, device)]
            kernels += [2 * one] * ("_norm" in packet)
        return sum(max(kernel, self._launch(device)) for kernel in kernels)

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

    def _forward(self, node: fx.Node, cost: NodeCost, device: Device) -> float:
        if size := product_size(node):
            return _slower(size) * self._products.seconds(*size)
        return super().seconds(node, cost, replace(device, launch_seconds=0.0))

    def _launch(self, device: Device) -> float:
        return device.launch_seconds if self.launch is None else self.launch


def product_size(node: fx.Node) -> tuple[int, int, int] | None:
    """m, n and k of what a table times, a half-precision product with a matrix; else None."""
    packet = _packet(node)
    first = int(packet == "addmm")
    factors = [a for a in node.args[first : first + 2] if isinstance(a, fx.Node)]
    if packet not in _PRODUCTS or dtype_of(node) not in _HALF or len(factors) < 2:
        return None
    left, right = (tensors(f)[0] for f in factors)
    k = left.shape[-1]
    return (left.numel() // k, right.numel() // k, k) if right.ndim == 2 else None


def _slower(size: tuple[int, int, int]) -> float:
    return MISALIGNED if any(2 * s % 16 for s in size[1:]) else 1.0


@cache
def silicon(gpu: str) -> Silicon:
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
        silicon(folder)
    devices = (replace(d, tables=folders.get(d.kind, d.tables)) for d in cluster.devices)
    return replace(cluster, devices=tuple(devices))


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
        for r in _read(path):
            how = str(r.get("backend", "")).rpartition("_")[2]
            least[how] = min(least.get(how, np.inf), float(r["latency"]) / 1e3)
        if {"eager", "graph"} <= least.keys():
            found.append(least["eager"] - least["graph"])
    return statistics.median(found) if found else None


def _paths(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*/*/*/{kind}_perf.parquet"))


def _table(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The table of most rows among those of several frameworks and versions."""
    return max((_read(path) for path in _paths(folder, kind)), key=len, default=[])


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = (
            importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
        )
    except ImportError as error:
        raise CostError("reading this table needs pyarrow", where=path, hint=_INSTALL) from error
    except (OSError, ValueError) as error:
        raise CostError("a table cannot be read", where=path, got=error) from error
    return rows
