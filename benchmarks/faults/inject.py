"""Faults of an emitted directory, as functions that change it in place, by target.

A fault is injected into the files that run. Digests are computed anew afterwards, so that only
what the stages compute can give it away.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from safetensors.numpy import load_file, save_file

from benchmarks.faults.graphs import graph_changes
from benchmarks.faults.tables import Array, changes
from pipec.errors import GraphError, PipecError
from pipec.graph.printer import json_to_python
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.serialize import graph_from_json
from pipec.graph.torch_private import FakeTensorMode
from pipec.plan.manifest import PLAN, write_manifest
from pipec.plan.model import cut_stages
from pipec.plan.record import plan_from_record

Json = dict[str, Any]
MODEL = Path("model.json")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: What.
        where: In what.
        apply: Injects it into a directory.
    """

    kind: str
    where: str
    apply: Callable[[Path], None]


def print_graphs(directory: Path) -> None:
    """Write the graphs of stages as Python anew, where they can be."""
    for path in directory.glob("graphs/*/*.json"):
        with suppress(GraphError):
            text = json_to_python(json.loads(path.read_text("utf-8")))
            path.with_suffix(".py").write_text(text, encoding="utf-8")


def reseal(directory: Path) -> None:
    """Compute all digests of a changed directory anew, and the keys of stages that can be cut."""
    record = json.loads((directory / PLAN).read_text(encoding="utf-8"))
    with suppress(PipecError):
        text = (directory / MODEL).read_text(encoding="utf-8")
        graph = graph_from_json(json.loads(text), allowed=OWN_NAMESPACES, mode=FakeTensorMode())
        plan, rows = plan_from_record(record, graph), record["stages"]
        stages = cut_stages(graph, plan.home, len(rows), plan.channels)
        for row, stage in zip(rows, stages, strict=True):
            row["key"] = stage.key
    for key in ("format", "version", "files", "digest"):
        record.pop(key)
    (directory / PLAN).unlink()
    write_manifest(record, directory)


def faults(directory: Path, target: str) -> list[Fault]:
    """Every fault that can be injected into a clean directory."""
    own = {"torch": _torch, "onnx": _onnx, "fpga": _fpga}[target](directory)
    return [*own, *_of_stage_graphs(directory)]


def _torch(directory: Path) -> Iterator[Fault]:
    rng = np.random.default_rng(0)
    for path in sorted(directory.glob("stage*/weights.safetensors")):
        tables = {n: t for n, t in load_file(path).items() if t.dtype.itemsize <= 4}
        name = path.relative_to(directory)
        for kind, where, wrong in changes(tables, rng, _readers(directory)):
            yield Fault(kind, f"{path.parent.name} {where}", partial(_resave, name, wrong))
    yield from _of_graph(json.loads((directory / MODEL).read_text("utf-8")))
    into = defaultdict[int, list[int]](list)
    for k, channel in enumerate(json.loads((directory / PLAN).read_text("utf-8"))["channels"]):
        into[channel["dst"]].append(k)
    for stage, (first, *others) in into.items():
        if others:
            swap = partial(_relink, first, others[0])
            yield Fault("two channels of a link swapped", f"stage {stage}", swap)


def _readers(directory: Path) -> Counter[str]:
    """How many nodes of the model read a weight."""
    graph = json.loads((directory / MODEL).read_text("utf-8"))
    called = {i["node"]: i["name"] for i in graph["inputs"]}
    reads = re.findall(r'"%(\w+)"', json.dumps([n["args"] for n in graph["nodes"]]))
    return Counter(called[r] for r in reads if r in called)


def _resave(name: Path, wrong: Mapping[str, Array], directory: Path) -> None:
    save_file({**load_file(directory / name), **wrong}, directory / name)


def _of_graph(graph: Json) -> Iterator[Fault]:
    """Faults of the nodes of the model, from which the stages are cut when they run."""
    for k, node in enumerate(graph["nodes"]):
        for kind, args in _wrong_args(node["target"], node["args"]):
            yield Fault(kind, node["name"], partial(_rewrite, MODEL, ("nodes", k, "args"), args))
    fewer = graph["outputs"][1:]
    yield Fault("a dropped output", "the model", partial(_rewrite, MODEL, ("outputs",), fewer))


def _of_stage_graphs(directory: Path) -> Iterator[Fault]:
    """Faults of the training graphs, which run, and of stage graphs, which are to be looked at."""
    for path in sorted(directory.glob("graphs/*/*.json")):
        for kind, where, keys, value in graph_changes(path):
            name = path.relative_to(directory)
            change = partial(_rewrite, name, keys, value)
            yield Fault(f"{path.stem}: {kind}", f"{path.parent.name} {where}", change)
            if path.stem == "B" and keys[0] == "nodes":
                change = partial(_rewrite_each, path.parent.relative_to(directory), where, value)
                yield Fault(f"B, I and W: {kind}", f"{path.parent.name} {where}", change)


def _wrong_args(target: str, args: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    if target.startswith("aten.sub.") and args[0] != args[1]:
        yield "operands of a subtraction swapped", [args[1], args[0], *args[2:]]
    if target in ("aten.softmax.int", "aten._softmax.default"):
        axis = args[1] - 1 if args[1] != 0 else 1
        yield "a wrong axis", [args[0], axis, *args[2:]]
    if target == "aten.cat.default":
        yield "a wrong axis", [args[0], 0 if len(args) > 1 and args[1] else 1]
    if target == "aten.mean.dim":
        yield "a wrong axis", [args[0], [1, 2], *args[2:]]
    if target == "aten.permute.default":
        yield "a wrong permutation", [args[0], list(range(len(args[1])))]
    if target == "aten.transpose.int":
        yield "a wrong permutation", [args[0], 0, 0]
    if target.startswith(("aten.conv2d", "aten.max_pool2d")):
        for at in range(3, len(args)):
            if isinstance(args[at], list) and len(args[at]) == 2:
                off = [n + 1 for n in args[at]]
                yield "a stride or pad off by one", [*args[:at], off, *args[at + 1 :]]


def _rewrite(name: Path, keys: tuple[Any, ...], value: object, directory: Path) -> None:
    data = json.loads((directory / name).read_text("utf-8"))
    at = data
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    (directory / name).write_text(json.dumps(data), encoding="utf-8")


def _rewrite_each(folder: Path, node: str, args: object, directory: Path) -> None:
    """In B, and where the same node is in I and W, there too: they are no other computation."""
    for kind in "BIW":
        name = folder / f"{kind}.json"
        for k, row in enumerate(json.loads((directory / name).read_text("utf-8"))["nodes"]):
            if row["name"] == node:
                _rewrite(name, ("nodes", k, "args"), args, directory)


def _relink(a: int, b: int, directory: Path) -> None:
    """A stage takes what arrives on one channel for what arrives on another."""
    path = directory / PLAN
    data = json.loads(path.read_text("utf-8"))
    one, other = (data["channels"][k] for k in (a, b))
    one["value"], other["value"] = other["value"], one["value"]
    path.write_text(json.dumps(data), encoding="utf-8")


def _onnx(directory: Path) -> Iterator[Fault]:
    rng = np.random.default_rng(0)
    for path in sorted(directory.glob("stage*/*.onnx")):
        graph, name = onnx.load(path).graph, path.relative_to(directory)
        held = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        tables = {n: t for n, t in held.items() if t.dtype.itemsize <= 4}
        readers = Counter(i for n in graph.node for i in n.input)
        for kind, where, wrong in changes(tables, rng, readers):
            yield Fault(kind, f"{path.stem} {where}", partial(_reinitialise, name, wrong))
        for k, node in enumerate(graph.node):
            for kind, changed in _wrong_nodes(node):
                where = f"{path.stem} {node.name or node.op_type}"
                yield Fault(kind, where, partial(_renode, name, k, changed))
        if graph.output:
            yield Fault("a dropped output", path.stem, partial(_drop, name))
        names = json.loads(path.with_name("names.json").read_text("utf-8"))
        for side in ("inputs", "outputs"):
            if len(names[side]) > 1:
                wrong = dict(zip(names[side], [*names[side].values()][::-1], strict=True))
                at = path.with_name("names.json").relative_to(directory)
                where = f"{path.stem} {side}"
                swap = partial(_rewrite, at, (side,), wrong)
                yield Fault("two channels of a link swapped", where, swap)


def _wrong_nodes(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    def with_(**attributes: object) -> onnx.NodeProto:
        kept = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return helper.make_node(
            node.op_type, node.input, node.output, node.name, domain=node.domain,
            **{**kept, **attributes},
        )  # fmt: skip

    held = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Sub" and node.input[0] != node.input[1]:
        swapped = onnx.NodeProto()
        swapped.CopyFrom(node)
        swapped.input[0], swapped.input[1] = node.input[1], node.input[0]
        yield "operands of a subtraction swapped", swapped
    if node.op_type in ("Softmax", "Concat", "Gather", "LayerNormalization"):
        axis = held.get("axis", 0)
        yield "a wrong axis", with_(axis=axis - 1 if axis else 1)
    if node.op_type == "Transpose":
        yield "a wrong permutation", with_(perm=list(range(len(held["perm"]))))
    if node.op_type in ("Conv", "MaxPool"):
        yield (
            "a stride or pad off by one",
            with_(strides=[s + 1 for s in held.get("strides", [1, 1])]),
        )
        yield "a stride or pad off by one", with_(pads=[p + 1 for p in held.get("pads", [0] * 4)])


def _reinitialise(name: Path, wrong: Mapping[str, Array], directory: Path) -> None:
    model = onnx.load(directory / name)
    for t in model.graph.initializer:
        if t.name in wrong:
            t.CopyFrom(numpy_helper.from_array(wrong[t.name], t.name))
    onnx.save(model, directory / name)


def _renode(name: Path, index: int, node: onnx.NodeProto, directory: Path) -> None:
    model = onnx.load(directory / name)
    model.graph.node[index].CopyFrom(node)
    onnx.save(model, directory / name)


def _drop(name: Path, directory: Path) -> None:
    """The file, and its list of names, have one output less."""
    model = onnx.load(directory / name)
    gone = model.graph.output[0].name
    del model.graph.output[0]
    onnx.save(model, directory / name)
    path = (directory / name).with_name("names.json")
    names = json.loads(path.read_text("utf-8"))
    names["outputs"] = {k: v for k, v in names["outputs"].items() if v != gone}
    path.write_text(json.dumps(names), encoding="utf-8")


def _fpga(directory: Path) -> Iterator[Fault]:
    """Of the tables that the C simulation reads when it runs, and of its ports."""
    rng = np.random.default_rng(0)
    for stage in sorted(directory.glob("stage*/")):
        whole = json.loads((stage / "stage.json").read_text("utf-8"))["precision"] == "int8"
        tables = {
            str(p.relative_to(directory)): np.fromfile(p, np.int8 if whole else np.float32)
            for p in sorted(stage.glob("src/weights/*.bin"))
        }
        for kind, where, wrong in changes(tables, rng):
            yield Fault(kind, where, partial(_retable, wrong))
        name = (stage / "stage.json").relative_to(directory)
        record = json.loads((directory / name).read_text("utf-8"))
        for side in ("inputs", "outputs"):
            ports = record[side]
            for k, port in enumerate(ports):
                order, shape = port["order"], port["shape"]
                if sum(n > 1 for n in shape) > 1:
                    wrong_order = sorted(order) if order != sorted(order) else order[::-1]
                    where = f"{stage.name} {port['value']}"
                    change = partial(_rewrite, name, (side, k, "order"), wrong_order)
                    yield Fault("a wrong permutation", where, change)
            if len(ports) > 1:
                a, b = (port["stream"] for port in ports[:2])
                crossed = [{**ports[0], "stream": b}, {**ports[1], "stream": a}, *ports[2:]]
                swapped = partial(_rewrite, name, (side,), crossed)
                yield Fault("two channels of a link swapped", f"{stage.name} {side}", swapped)
            if side == "outputs":
                fewer = partial(_rewrite, name, (side,), ports[1:])
                yield Fault("a dropped output", stage.name, fewer)


def _retable(wrong: Mapping[str, Array], directory: Path) -> None:
    for name, table in wrong.items():
        table.tofile(directory / name)
