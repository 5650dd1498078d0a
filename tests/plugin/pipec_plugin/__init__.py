"""A plug-in package: one pass, and one backend that writes plain C, found by entry point."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from pipec.compiler.backend import Backend, Emitted
from pipec.compiler.declared import Options, option
from pipec.compiler.job import StageFunction
from pipec.compiler.pass_base import Pass
from pipec.errors import BackendError
from pipec.graph.ir import Graph, nbytes, origin, tensor
from pipec.graph.lower import lower
from pipec.plan.model import Plan, StageTiming


@dataclass(frozen=True)
class TagLargest(Pass):
    """Remembers the node with the largest output in the plan's options."""

    name: ClassVar[str] = "tag-largest"
    key: str = "largest"

    def run(self, plan: Plan) -> Plan:
        largest = max(plan.graph.calls, key=nbytes)
        return plan.replace(options={**plan.options, self.key: largest.name})


OPS = """
#include <math.h>
static void op_linear(float *y, const float *x, const float *w, const float *b, int n, int k,
                      int m) {
  for (int i = 0; i < n; i++) for (int j = 0; j < m; j++) {
    float s = b ? b[j] : 0;
    for (int l = 0; l < k; l++) s += x[i * k + l] * w[j * k + l];
    y[i * m + j] = s;
  }
}
static void op_conv(float *y, const float *x, const float *w, const float *b, int n, int c, int h,
                 int v, int m, int r, int q, int s, int p, int oh, int ow) {
  for (int i = 0; i < n; i++) for (int o = 0; o < m; o++)
    for (int a = 0; a < oh; a++) for (int e = 0; e < ow; e++) {
      float t = b ? b[o] : 0;
      for (int d = 0; d < c; d++) for (int f = 0; f < r; f++) for (int g = 0; g < q; g++) {
        int u = a * s + f - p, z = e * s + g - p;
        if (u >= 0 && u < h && z >= 0 && z < v)
          t += x[((i * c + d) * h + u) * v + z] * w[((o * c + d) * r + f) * q + g];
      }
      y[((i * m + o) * oh + a) * ow + e] = t;
    }
}
static void op_pool(float *y, const float *x, int n, int h, int v, int r, int s, int oh, int ow) {
  for (int i = 0; i < n; i++) for (int a = 0; a < oh; a++) for (int e = 0; e < ow; e++) {
    float t = -INFINITY;
    for (int f = 0; f < r; f++) for (int g = 0; g < r; g++)
      t = fmaxf(t, x[(i * h + a * s + f) * v + e * s + g]);
    y[(i * oh + a) * ow + e] = t;
  }
}
"""


def code(n: fx.Node) -> str | None:
    """The C that computes a node into the array of its name; None if there is none."""
    x, y = n.all_input_nodes[0], n.name
    args: list[Any] = [*n.args, *[None] * 9]
    have, size = tensor(x).shape, tensor(n).numel()
    match str(n.target):
        case "aten.relu.default":
            return f"for (int i = 0; i < {size}; i++) {y}[i] = fmaxf({x}[i], 0);"
        case "aten.view.default" | "aten.flatten.using_ints" | "aten.reshape.default":
            return f"for (int i = 0; i < {size}; i++) {y}[i] = {x}[i];"
        case "aten.linear.default":
            w = tensor(args[1]).shape
            return (
                f"op_linear({y}, {x}, {args[1]}, {args[2] or 0}, {size // w[0]}, {w[1]}, {w[0]});"
            )
        case "aten.conv2d.default":
            w, s, p, d, g = tensor(args[1]).shape, *(args[k] for k in (3, 4, 5, 6))
            s, p = s or [1, 1], p or [0, 0]
            if len({*s}) > 1 or len({*p}) > 1 or d not in (None, [1, 1]) or g not in (None, 1):
                return None
            numbers = [*have, w[0], w[2], w[3], s[0], p[0], *tensor(n).shape[2:]]
            return f"op_conv({y}, {x}, {args[1]}, {args[2] or 0}, {', '.join(map(str, numbers))});"
        case "aten.max_pool2d.default":
            k, s = args[1], args[2] or args[1]
            if len({*k}) > 1 or len({*s}) > 1 or n.args[3:]:
                return None
            planes = have.numel() // (have[-2] * have[-1])
            numbers = [planes, have[-2], have[-1], k[0], s[0], *tensor(n).shape[-2:]]
            return f"op_pool({y}, {x}, {', '.join(map(str, numbers))});"
    return None


@dataclass(frozen=True)
class COptions(Options):
    """What `pipec compile` may be told for C."""

    optimize: int = option(2, "The level -O of the C compiler.", least=0)


class CBackend(Backend):
    """Each stage as one C file and a file of weights, for float32 MLPs and small CNNs."""

    name: ClassVar[str] = "c"
    options: ClassVar[type[Options]] = COptions

    def check(self, plan: Plan) -> None:
        """Every node has C code, and every value is float32."""
        wrong = [
            f"{n.name}: {n.target} from {origin(n)}"
            for n in plan.graph.calls
            if tensor(n).dtype is not torch.float32 or code(n) is None
        ]
        if wrong:
            raise BackendError("there is no C for these nodes", got="\n    ".join(wrong))

    def stage_seconds(self, plan: Plan) -> tuple[StageTiming, ...]:
        """As the partition predicted."""
        seconds = plan.partition.seconds if plan.partition else ()
        return tuple(StageTiming(s, s, "roofline") for s in seconds)

    def emit(self, plan: Plan, directory: Path) -> None:
        """``stage0.c`` and ``stage0.bin`` and so on; the weights lie in the order of the inputs."""
        for stage in plan.stages:
            graph, level = lower(stage.graph).graph, plan.options.get("optimize", 2)
            path = directory / f"stage{stage.index}.c"
            path.write_text(f"/* cc -O{level} */{OPS}{_function(graph)}")
            weights = [graph.weights[i.name] for i in graph.inputs if i.kind.is_weight]
            data = b"".join(w.detach().contiguous().numpy().tobytes() for w in weights)
            path.with_suffix(".bin").write_bytes(data)

    def load(self, plan: Plan, directory: Path) -> Emitted:
        """The C files, compiled."""
        return Emitted([_runner(lower(s.graph).graph, directory / f"stage{s.index}")
                        for s in plan.stages], 1e-5)  # fmt: skip


def _function(graph: Graph) -> str:
    lines = [f"const float *{i.node} = in[{k}];" for k, i in enumerate(graph.inputs)]
    for n in graph.calls:
        lines += [f"static float {n.name}[{tensor(n).numel()}];", str(code(n))]
    times = os.environ.get("PIPEC_PLUGIN_TIMES", "1")  # a fault on purpose, which tests inject
    for k, o in enumerate(graph.outputs):
        size = tensor(graph.node(o.node)).numel()
        lines.append(f"for (int i = 0; i < {size}; i++) out[{k}][i] = {times} * {o.node}[i];")
    return "\nvoid stage(const float **in, float **out) {\n  " + "\n  ".join(lines) + "\n}\n"


def _runner(graph: Graph, path: Path) -> StageFunction:
    with tempfile.TemporaryDirectory() as name:
        library, source = Path(name) / "stage.so", path.with_suffix(".c")
        level = source.read_text().split()[2]
        subprocess.run(["cc", level, "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
        stage = ctypes.CDLL(str(library)).stage
    sizes = [tensor(graph.node(i.node)).numel() for i in graph.inputs if i.kind.is_weight]
    parts = torch.frombuffer(bytearray(path.with_suffix(".bin").read_bytes()), dtype=torch.float32)
    stored = parts.split(sizes)

    def run(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights = iter(stored)
        given = [next(weights) if i.kind.is_weight else values[i.name].contiguous()
                 for i in graph.inputs]  # fmt: skip
        made = {o.name: torch.empty(tensor(graph.node(o.node)).shape) for o in graph.outputs}
        pointers = [
            (ctypes.c_void_p * len(ts))(*[t.data_ptr() for t in ts])
            for ts in (given, list(made.values()))
        ]
        stage(*pointers)
        return made

    return run
