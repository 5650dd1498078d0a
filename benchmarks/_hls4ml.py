"""hls4ml's project for an ONNX file and its C simulation; runs as `_fpga_site.ask` says.

Question: ``{"model", "images" (.npy), "precision", "reuse", "folder"}``. Answer: logits, units
(weights over the reuse factor of their layer), the interval that the pragmas of its sources ask
for (a dense layer takes its reuse factor, a convolution on a stream as much per padded pixel), and
seconds of the processor.
"""

import json
import sys
from typing import Any

import hls4ml
import numpy as np
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.transformation.channels_last import ConvertToChannelsLastAndClean
from qonnx.transformation.gemm_to_matmul import GemmToMatMul
from qonnx.util.cleanup import cleanup_model

from benchmarks._fpga_site import cpu_seconds, reply

PART, PERIOD = "xcvu9p-flga2104-2L-e", 5


def engines(model: Any) -> tuple[int, int]:
    """Units and interval."""
    units = interval = 0
    for layer in model.get_layers():
        weight = layer.weights.get("weight")
        if weight is None or layer.class_name not in ("Dense", "Conv2D", "PointwiseConv2D"):
            continue
        reuse, of = layer.get_attr("reuse_factor"), layer.get_attr
        units += weight.data.size // reuse
        pixels = 1
        if layer.class_name != "Dense":
            height = of("in_height") + of("pad_top") + of("pad_bottom")
            pixels = height * (of("in_width") + of("pad_left") + of("pad_right"))
        interval = max(interval, pixels * reuse)
    return units, interval


def main() -> None:
    """Answer the question on stdin."""
    question, began = json.load(sys.stdin), cpu_seconds()
    graph = cleanup_model(ModelWrapper(question["model"]))
    graph = graph.transform(ConvertToChannelsLastAndClean()).transform(GemmToMatMul())
    graph = cleanup_model(graph)
    config = hls4ml.utils.config_from_onnx_model(
        graph, granularity="name", backend="Vitis", default_precision=question["precision"],
        default_reuse_factor=question["reuse"],
    )  # fmt: skip
    config["Model"]["Strategy"] = "Latency" if question["reuse"] == 1 else "Resource"
    model = hls4ml.converters.convert_from_onnx_model(
        graph, output_dir=question["folder"], io_type="io_stream", backend="Vitis",
        hls_config=config, part=PART, clock_period=PERIOD,
    )  # fmt: skip
    model.compile()
    images = np.load(question["images"])
    if images.ndim == 4:  # channels last
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    logits = model.predict(images).reshape(len(images), -1)
    seconds = cpu_seconds() - began
    units, interval = engines(model)
    reply({"logits": logits.tolist(), "units": units, "interval": interval, "seconds": seconds})


if __name__ == "__main__":
    main()
