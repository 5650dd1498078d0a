"""Equal stages share one saved graph; a `Binding` says what each of them calls its parts.

```text
graphs/3f9c…/F.json                  plan.json
  a = recv(channel='in0')              stage 1: in0 = s0.s1.add_3, out0 = s1.s2.add_7
  b = linear(a, w)                     stage 2: in0 = s1.s2.add_7, out0 = s2.s3.add_11,
  send(b, channel='out0')                       nodes = add_7, linear_9, ... by position
```
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipec.errors import PlanError
from pipec.graph.serialize import Json

_SLOTS = {
    "pipec.recv.default": ("channel", "in"),
    "pipec.send.default": ("channel", "out"),
    "pipec.fetch.default": ("slot", "slot"),
    "pipec.offload.default": ("slot", "slot"),
}


@dataclass(frozen=True)
class Binding:
    """What one stage calls the parts of a shared graph, all by position.

    Attributes:
        title: Class name of the stage's graph module.
        nodes: Names of its placeholders and calls.
        inputs: Names of its inputs (weights, user inputs, values).
        outputs: Names of its outputs.
        channels: Slot of the shared graph to channel of the plan.
        origins: Where each call came from, as `graph_to_json` writes it.
    """

    title: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: Mapping[str, str] = field(default_factory=dict)
    origins: tuple[Json | None, ...] = ()


def split(stage: Json, key: str) -> tuple[Json, Binding]:
    """A stage graph as the graph to share and what is the stage's own.

    Args:
        stage: What `graph_to_json` wrote of the stage graph.
        key: Its structural key.
    """
    binding = Binding(
        title=stage["title"],
        nodes=tuple(_names(stage)),
        inputs=tuple(row["name"] for row in stage["inputs"]),
        outputs=tuple(row["name"] for row in stage["outputs"]),
        channels={slot: channel for _, slot, channel in _comm(stage)},
        origins=tuple(row.get("origin") for row in stage["nodes"]),
    )
    rows = [dict(row) for row in stage["nodes"]]
    shared = {**stage, "title": f"Graph_{key}", "tied": {}, "nodes": rows}
    for index, slot, _ in _comm(stage):
        _rename_slot(rows[index], slot)
    return shared, binding


def join(shared: Json, binding: Binding) -> Json:
    """The stage graph again: the inverse of `split`.

    Raises:
        PlanError: The binding was made for another graph.
    """
    names = dict(zip(_names(shared), binding.nodes, strict=False))
    sizes = (len(list(_names(shared))), len(shared["inputs"]), len(shared["outputs"]))
    if sizes != (len(binding.nodes), len(binding.inputs), len(binding.outputs)):
        raise PlanError("a stage does not fit its graph", where=binding.title, want=sizes)
    stage = {**shared, "title": binding.title}
    for key, entries in (("inputs", binding.inputs), ("outputs", binding.outputs)):
        stage[key] = [
            {**row, "node": names[row["node"]], "name": name}
            for row, name in zip(shared[key], entries, strict=True)
        ]
    origins = binding.origins or (None,) * len(shared["nodes"])
    stage["nodes"] = [
        _renamed(row, names, origin) for row, origin in zip(shared["nodes"], origins, strict=True)
    ]
    for index, slot, _ in _comm(shared):
        _rename_slot(stage["nodes"][index], binding.channels[slot])
    return stage


def _names(stage: Json) -> Iterator[str]:
    yield from (row["node"] for row in stage["inputs"])
    yield from (row["name"] for row in stage["nodes"])


def _comm(stage: Json) -> Iterator[tuple[int, str, str]]:
    """(position among the calls, slot, channel) of every communication node.

    Channels are numbered per direction in graph order; an offload slot that occurs twice keeps
    one number.
    """
    numbers: dict[str, dict[str, int]] = {}
    for index, row in enumerate(stage["nodes"]):
        if row["target"] in _SLOTS:
            keyword, prefix = _SLOTS[row["target"]]
            name = row["kwargs"][keyword]["str"]
            seen = numbers.setdefault(prefix, {})
            yield index, f"{prefix}{seen.setdefault(name, len(seen))}", name


def _rename_slot(row: Json, name: str) -> None:
    keyword, _ = _SLOTS[row["target"]]
    row["kwargs"] = {**row["kwargs"], keyword: {"str": name}}


def _renamed(row: Json, names: Mapping[str, str], origin: Json | None) -> Json:
    new = {**row, "name": names[row["name"]], "args": [_argument(a, names) for a in row["args"]]}
    if "kwargs" in row:
        new["kwargs"] = {k: _argument(v, names) for k, v in row["kwargs"].items()}
    new.pop("origin", None)
    return {**new, "origin": origin} if origin else new


def _argument(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return f"%{names[value.removeprefix('%')]}"
    if isinstance(value, list):
        return [_argument(v, names) for v in value]
    if isinstance(value, dict) and "tuple" in value:
        return {"tuple": [_argument(v, names) for v in value["tuple"]]}
    return value
