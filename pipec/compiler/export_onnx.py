"""A plan's own cut for runtimes of ONNX files, which may cut between any two operations."""

import json
from collections.abc import Callable
from pathlib import Path

from pipec.errors import PartitionError
from pipec.graph.ir import origin
from pipec.plan.model import Plan

_OPENVINO = '''\
import openvino as ov

DEVICES = {devices}  # of the stages, in order: as `ov.Core().available_devices` has them
STAGE = {stages}


def placed(path):
    """The model, for compile_model(model, "HETERO:" + ",".join(DEVICES))."""
    model, stage = ov.Core().read_model(path), {{}}
    for op in model.get_ordered_ops():  # what has no entry stands behind all that it reads
        before = [stage[i.get_source_output().get_node().get_friendly_name()] for i in op.inputs()]
        name = op.get_friendly_name()
        stage[name] = STAGE.get(name, max(before, default=0))
    for op in model.get_ordered_ops():
        readers = [i.get_node() for o in op.outputs() for i in o.get_target_inputs()]
        if not op.inputs() and readers:  # weights stand where they are read
            stage[op.get_friendly_name()] = min(stage[r.get_friendly_name()] for r in readers)
        op.get_rt_info()["affinity"] = DEVICES[stage[op.get_friendly_name()]]
    return model
'''


def _openvino(plan: Plan, _: Path) -> str:
    """The device of every operation, for OpenVINO's plug-in HETERO."""
    if plan.graph.source.kind != "onnx":
        raise PartitionError(
            "OpenVINO is told devices of the nodes of an ONNX file",
            got=plan.graph.source.location,
            hint="compile the .onnx that OpenVINO reads",
        )
    assert plan.partition is not None
    stages: dict[str, int] = {}
    for node in plan.graph.calls:
        name = origin(node).name
        stages[name] = max(plan.partition.stage_of[node.name], stages.get(name, 0))
    devices = [f"GPU.{k}" for k in range(len(plan.stages))]
    return _OPENVINO.format(devices=json.dumps(devices), stages=json.dumps(stages, indent=4))


def _genai(plan: Plan, directory: Path) -> str:
    """The stages as ``model.decoder.pipeline`` of a genai_config.json in the plan's directory."""
    if plan.target != "onnx":
        raise PartitionError(
            "onnxruntime-genai runs stages that are ONNX files",
            got=f"a plan for {plan.target}",
            hint="pipec compile MODEL --target onnx",
        )
    stages = []
    for k in range(len(plan.stages)):
        names = json.loads((directory / f"stage{k}" / "names.json").read_text())
        ends = {end: list(names[end].values()) for end in ("inputs", "outputs")}
        stages.append({f"stage{k}": {"filename": f"stage{k}/stage{k}.onnx", **ends}})
    model = {"type": "decoder-pipeline", "decoder": {"pipeline": stages}}
    return json.dumps({"model": model}, indent=2)


FORMATS: dict[str, Callable[[Plan, Path], str]] = {
    "onnxruntime-genai": _genai,
    "openvino": _openvino,
}
"""Runtime to the text for it, of a plan and its directory; a PartitionError says what it lacks."""
