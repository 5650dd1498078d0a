"""What the nodes of an ONNX file take in onnxruntime, by its own profile."""

import json
import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.evaluation import evaluate_file
from pipec.frontends.onnx.frontend import session
from pipec.graph.arrays import to_array
from pipec.graph.ir import Graph, origin

_KERNEL = re.compile(r"#(\d+)_kernel_time")


def profile(graph: Graph, inputs: Mapping[str, Tensor], runs: int) -> dict[str, float]:
    """Seconds of every call of a graph that was an ONNX file.

    Of each ONNX node the fastest run counts, as onnxruntime's clock goes on while others have the
    processor. The first of the calls that stand for a node has them all.

    Raises:
        FrontendError: The file cannot be read, or onnxruntime refuses it.
    """
    evaluation = evaluate_file(Path(graph.source.location), LoadOptions.of(graph.source))
    fed = {
        n: v if isinstance(v, np.ndarray) else to_array(inputs[n])
        for n, v in evaluation.inputs.items()
    }
    names = [o.name for o in evaluation.model.proto.graph.output]
    with tempfile.TemporaryDirectory() as folder:
        engine = session(evaluation.model, profile=Path(folder) / "profile")
        for _ in range(runs):
            engine.run(names, fed)
        events = json.loads(Path(engine.end_profiling()).read_text(encoding="utf-8"))
    took = dict[int | None, float]()
    for event in events:
        if found := _KERNEL.fullmatch(event["name"]):
            k = int(found[1])
            took[k] = min(took.get(k, math.inf), event["dur"] * 1e-6)
    return {n.name: took.pop(origin(n).index, 0.0) for n in graph.calls}
