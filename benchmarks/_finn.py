"""FINN+'s SetFolding and cycle estimates on matrix-vector units; runs as `_fpga_site.ask` says.

Question: ``{"layers": [[vectors, columns, rows], ...], "targets": [[cycles, width], ...]}``; the
result has a row ``[interval, units, seconds]`` per target.
"""

import json
import logging
import sys
import time

from finn.analysis.fpgadataflow.exp_cycles_per_layer import exp_cycles_per_layer
from finn.transformation.fpgadataflow.set_folding import SetFolding
from onnx import NodeProto, TensorProto, ValueInfoProto, helper
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.custom_op.registry import getCustomOp

from benchmarks._fpga_site import reply

DOMAIN = "finn.custom_op.fpgadataflow.rtl"


def unit(k: int, vectors: int, columns: int, rows: int) -> NodeProto:
    """An MVAU_rtl in int8."""
    return helper.make_node(
        "MVAU_rtl", [f"x{k}", f"w{k}"], [f"y{k}"], name=f"mvau{k}", domain=DOMAIN,
        backend="fpgadataflow", MW=columns, MH=rows, SIMD=1, PE=1, inputDataType="INT8",
        weightDataType="INT8", outputDataType="INT32", numInputVectors=[1, vectors],
        noActivation=1, binaryXnorMode=0, ActVal=0, mem_mode="internal_decoupled",
    )  # fmt: skip


def model(layers: list[list[int]]) -> ModelWrapper:
    """The units side by side: neither folding nor estimates look at what is between them."""

    def values(name: str, shapes: list[list[int]]) -> list[ValueInfoProto]:
        return [
            helper.make_tensor_value_info(f"{name}{k}", TensorProto.FLOAT, shape)
            for k, shape in enumerate(shapes)
        ]

    inputs = values("x", [[1, n, columns] for n, columns, _ in layers])
    weights = values("w", [[columns, rows] for _, columns, rows in layers])
    outputs = values("y", [[1, n, rows] for n, _, rows in layers])
    nodes = [unit(k, *layer) for k, layer in enumerate(layers)]
    graph = helper.make_graph(nodes, "units", inputs + weights, outputs)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    return ModelWrapper(helper.make_model(graph, opset_imports=opsets))


def fold_for(layers: list[list[int]], target: int, width: int) -> list[float]:
    """Interval, units and seconds of the processor for one target."""
    began = time.process_time()
    found = model(layers).transform(SetFolding(target, width, two_pass_relaxation=True))
    cycles = found.analysis(exp_cycles_per_layer)
    seconds = time.process_time() - began
    nodes = [getCustomOp(node) for node in found.graph.node]
    units = sum(n.get_nodeattr("PE") * n.get_nodeattr("SIMD") for n in nodes)
    return [max(cycles.values()), units, seconds]


if __name__ == "__main__":
    logging.disable()
    question = json.load(sys.stdin)
    reply([fold_for(question["layers"], *target) for target in question["targets"]])
