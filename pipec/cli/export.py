"""``pipec export``: a plan's split, for a runtime that people already have.

Runtimes of ONNX files may cut between any two operations, so that they get the plan's own cut.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
from onnx import NodeProto

from pipec.cli.command import Command, refuse
from pipec.compiler import export
from pipec.errors import PartitionError
from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx.evaluation import evaluate_file
from pipec.graph.ir import Source, origin
from pipec.plan.model import Plan
from pipec.plan.store import load_plan

_OPENVINO = '''\
import openvino as ov

DEVICES = {devices}  # of the stages, in order: as `ov.Core().available_devices` has them
STAGE = {stages}  # of the values of the file


def placed(path):
    """The model, for compile_model(model, "HETERO:" + ",".join(DEVICES))."""
    model, stage, found = ov.Core().read_model(path), {{}}, set()
    for op in reversed(model.get_ordered_ops()):
        made = [STAGE[name] for o in op.outputs() for name in o.get_names() if name in STAGE]
        inputs = [i for o in op.outputs() for i in o.get_target_inputs()]
        readers = [i for i in inputs if i.get_node().get_name() in stage]
        # what has no name, as weights and parts of an operation, stands where it is read
        places = made or [stage[i.get_node().get_name()] for i in readers]
        at = min(places, default=len(DEVICES) - 1)
        stage[op.get_name()], op.get_rt_info()["affinity"] = at, DEVICES[at]
        found |= {{*made}}
        for i in readers if op.get_type_name() == "Constant" else ():
            reader = stage[i.get_node().get_name()]
            if reader != at:  # every stage has the weights that it reads
                copy = ov.op.Constant(op.get_tensor_view(), shared_memory=False)
                copy.get_rt_info()["affinity"] = DEVICES[reader]
                i.replace_source_output(copy.output(0))
    if found != {{*range(len(DEVICES))}}:
        raise ValueError(f"{{path}} is another model, or has another number of stages")
    return model
'''


def _openvino(plan: Plan, _: Path) -> str:
    """The device of every operation, for OpenVINO's plug-in HETERO."""
    if plan.graph.source.kind != "onnx":
        raise PartitionError(
            "OpenVINO takes devices for the nodes of an ONNX file",
            got=plan.graph.source.location,
            hint="compile the .onnx that OpenVINO reads",
        )
    export.check_one_per_device(plan)
    nodes = _nodes(plan.graph.source)
    stages = {
        value: plan.home[call.name]
        for call in plan.graph.calls
        if (index := origin(call).index) is not None
        for value in nodes[index].output
        if value
    }
    devices = [f"GPU.{k}" for k in range(len(plan.stages))]
    return _OPENVINO.format(devices=json.dumps(devices), stages=json.dumps(stages, indent=4))


def _nodes(source: Source) -> list[NodeProto]:
    """The nodes of the file that a plan was made of, as origins count them."""
    model = evaluate_file(Path(source.location), LoadOptions.of(source)).model
    if model.digest() != source.sha256:
        raise PartitionError(
            "the ONNX file is not the one that was compiled",
            where=source.location,
            hint="compile it again",
        )
    return list(model.proto.graph.node)


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


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "runtime",
    required=True,
    type=click.Choice(sorted({*FORMATS, *export.FORMATS})),
    help="Runtime.",
)
@click.option("--stages", type=click.IntRange(1), help="How many; as the plan has by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the text and the split as JSON.")
def command(directory: Path, runtime: str, stages: int | None, as_json: bool) -> None:
    """Cut the plan in DIRECTORY anew, between whole layers, and print it as RUNTIME wants it.

    onnxruntime-genai and openvino cut between any two operations: they get the plan's own cut.

    The text goes to the standard output, what it promises to the standard error.
    """
    plan = load_plan(directory, check_weights=False)
    if runtime in FORMATS:
        refuse(["stages"], f"not with {runtime}, which gets the plan's own cut")
        text = FORMATS[runtime](plan, directory)
        click.echo(json.dumps({"to": runtime, "text": text}, indent=2) if as_json else text)
        return
    split = export.split_layers(plan, stages)
    text = export.FORMATS[runtime](split)
    if as_json:
        click.echo(json.dumps({"to": runtime, "text": text, **asdict(split)}, indent=2))
        return
    click.echo(text)
    slowest = max(split.seconds)
    even = "the model allows no equal numbers of layers"
    if split.even is not None:
        longer = split.even / slowest
        even = f"with equal numbers of layers {split.even:.4g} s, {longer:.3g} times as long"
    text = f"# slowest stage {slowest:.4g} s, bound {split.lower_bound:.4g} s; {even}"
    click.echo(text, err=True)
