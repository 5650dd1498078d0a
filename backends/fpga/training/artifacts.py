"""Writing the kernels of a training plan.

```text
stage0_xcvu9p/
  forward/  backward/  update/  saved/  each a kernel with sources, tables, test bench, scripts
  training.json                         saved values and their places, parameters in update order
  connections.cfg or connections.tcl    what joins the kernels on their board
```

The test bench of ``backward`` reads the gradients that torch computes for a seeded microbatch.
Running statistics of batch normalisations are inputs and outputs of ``forward``; ``state/`` holds
their first values, and those of the parameters as they lie in memory (``update/state/w.bin``).

``connections.cfg`` is for ``v++ --link``, ``connections.tcl`` a block design of all kernels where
the board has no Vitis platform; names are those of `pipec.backends.fpga.emit.link`. Streams that
cross to another board are named, and left to the user: values go down the pipeline and gradients up
it, over one pair of links.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import to_builtins

from pipec.backends.fpga import audit
from pipec.backends.fpga.cpp import identifier
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.designs import folders_of
from pipec.backends.fpga.emit.link import (
    Connections,
    Site,
    board_design,
    connect,
    connectivity,
    instance,
    pin,
)
from pipec.backends.fpga.emit.source import top_name
from pipec.backends.fpga.emit.stage import SEED, Golden, golden_chain, write_stage, write_tables
from pipec.backends.fpga.quantise.samples import random_frames
from pipec.backends.fpga.stagejson import Json
from pipec.backends.fpga.training.phases import gradient_name
from pipec.backends.fpga.training.stage import TrainedStage, make_stages
from pipec.backends.fpga.training.update import ROW, Sgd, put_tokens, set_rates
from pipec.backends.fpga.wire import ports_of, wires_of
from pipec.cluster.device import FpgaResources
from pipec.compiler.stage_timing import device_of
from pipec.errors import BackendError
from pipec.graph.ir import Graph, OutputKind
from pipec.plan.model import Plan
from pipec.schedule.in_flight import in_flight

CONNECTIONS = "connections"
CROSSING = ("value", "gradient")
"""Kinds of inputs and outputs that come from other stages, or go there."""

_WAY = (("forward", "out"), ("saved", "in"), ("saved", "out"), ("backward", "in"))
"""Kernels and sides that a value on chip comes through."""


def ports_of_saved(stage: TrainedStage) -> dict[str, dict[tuple[str, str], str]]:
    """Value on chip to its port at every side: of ``forward``, ``saved`` twice, ``backward``."""
    designs, found = stage.designs, dict[str, dict[tuple[str, str], str]]()
    values = {p.value for p in designs["saved"].outputs} if "saved" in designs else set()
    for kernel, way in _WAY if values else ():
        for p in ports_of(designs[kernel]).values():
            if p.port.value in values and p.is_input is (way == "in"):
                found.setdefault(p.port.value, {})[kernel, way] = p.name
    return found


def connections(
    stage: TrainedStage, designs: Mapping[str, StageDesign], fabric: FpgaResources | None
) -> tuple[str, str]:
    """Name and text of the file that joins the kernels of a board, by folder.

    Without a fabric, memory is one DDR port and there is no platform.
    """
    pairs = [
        [(kernel, ends[kernel, way]) for kernel, way in two]
        for ends in ports_of_saved(stage).values()
        for two in (_WAY[:2], _WAY[2:])
    ]
    taken = {end for pair in pairs for end in pair}
    tops = {folder: top_name(design) for folder, design in designs.items()}
    kernels = {
        folder: (design, _connect(stage, design, fabric, {p for k, p in taken if k == folder}))
        for folder, design in designs.items()
    }
    if fabric is not None and fabric.has_platform:
        ends = [[pin(tops[kernel], port) for kernel, port in pair] for pair in pairs]
        elsewhere = [
            pin(tops[folder], port)
            for folder, (_, found) in kernels.items()
            for port in (*found.receives, *found.sends)
        ]
        text = connectivity(list(kernels.values()), {}, joints=ends, elsewhere=elsewhere)
        return f"{CONNECTIONS}.cfg", text
    cells = {}
    for folder, (design, found) in kernels.items():  # what crosses to other boards is the user's
        host = (*found.receives, *found.sends, *found.host)
        cells[instance(tops[folder])] = design, dataclasses.replace(found, host=host)
    ends = [[f"{instance(tops[kernel])}/{port}" for kernel, port in pair] for pair in pairs]
    folders = [f"{folder}/build_hls" for folder in designs]
    name = identifier(stage.kernels.F.name.removesuffix("_forward"))
    return f"{CONNECTIONS}.tcl", board_design(name, cells, folders, joints=ends)


def _connect(
    stage: TrainedStage, design: StageDesign, fabric: FpgaResources | None, inside: set[str]
) -> Connections:
    """The connections of a kernel, but for the ports that another one of its board feeds."""
    graphs = (stage.phases.F, stage.phases.B)
    arriving = {i.name for graph in graphs for i in graph.inputs if i.kind in CROSSING}
    leaving = {o.name for graph in graphs for o in graph.outputs if o.kind in CROSSING}
    found = connect(design, Site.of(fabric, crossing=sorted(arriving | leaving)))
    return dataclasses.replace(found, host=tuple(p for p in found.host if p not in inside))


KERNELS = ("forward", "backward", "update", "saved")
"""Folders of kernels; the last two only where something is trained, or waits on chip."""
RECORD = "training.json"

Tensors = Mapping[str, torch.Tensor]


def emit_training(plan: Plan, directory: Path) -> None:
    """Write all kernels of all stages of a differentiated plan with weights.

    Raises:
        BackendError: The rings of saved values are shorter than the schedule needs.
    """
    stages = make_stages(plan)
    golden = golden_training(plan.graph, stages, random_frames(plan.graph, SEED)[0])
    folders = folders_of(plan, directory)
    needs = in_flight(plan.schedule) if plan.schedule is not None else ()
    # the mean of the gradients over the microbatches of the schedule
    sgd = Sgd(scale=1.0 / (plan.schedule.microbatches if plan.schedule is not None else 1))
    for k, (stage, need) in enumerate(zip_longest(stages, needs)):
        if need is not None and need.most > stage.sets:
            raise BackendError(
                "the schedule keeps more microbatches in flight than a stage has room for",
                where=f"stage{k}",
                got=need.most,
                want=f"at most {stage.sets}",
                hint="--schedule 1f1b-as or fbp-as",
            )
        fabric = device_of(plan, plan.stages[k]).fpga
        emit_stage(stage, folders[k], golden[k], plan.graph.weights, sgd, fabric)


def emit_stage(
    stage: TrainedStage,
    folder: Path,
    golden: tuple[Golden, Golden],
    weights: Tensors,
    settings: Sgd,
    fabric: FpgaResources | None = None,
) -> None:
    """Write the kernels of one stage, with a golden frame of F and of B.

    Without a fabric, memory is one DDR port and there is no platform.
    """
    waiting = Golden(golden[0].outputs, golden[0].outputs)
    frames = dict(zip(KERNELS, (*golden, _update_frame(stage, settings), waiting), strict=True))
    designs = stage.designs
    if stage.update is not None:
        designs["update"] = set_rates(stage.update, settings)
    for name, design in designs.items():
        site = Site.of(fabric, alone=False)
        write_stage(design, folder / name, frames[name], site=site)
        audit.check(folder / name)
    _write_state(stage, folder, weights)
    counters = {n: int(weights[n]) for n in stage.phases.counters}
    more = {"update": dataclasses.asdict(settings), "counters": counters}
    record = training_record(stage) | more
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    name, text = connections(stage, designs, fabric)
    (folder / name).write_text(text, encoding="utf-8")


def reload_tables(plan: Plan, directory: Path) -> None:
    """Write the tables of F and B anew after an update: what a host sends to the boards.

    The weights of the plan that was emitted have new values, in the same tensors.
    """
    for stage, folder in zip(make_stages(plan), folders_of(plan, directory), strict=True):
        for name, design in zip(KERNELS, (stage.kernels.F, stage.kernels.B), strict=False):
            write_tables(design, folder / name / "src/weights")


def _write_state(stage: TrainedStage, folder: Path, weights: Tensors) -> None:
    """First values of the running statistics and of the parameters, as the kernels read them."""
    state, design = folder / "forward/state", stage.kernels.F
    state.mkdir()
    for wire in wires_of(design):
        if wire.is_input and wire.port.value in weights:
            wire.tokens(weights[wire.port.value]).tofile(state / wire.file)
    if stage.update is None:
        return
    (folder / "update/state").mkdir()
    image = np.zeros((_rows(stage), ROW), dtype=np.float32)
    sums = {w.port.value: w for w in wires_of(stage.kernels.B) if w.in_memory and not w.is_input}
    for part in stage.parameters:
        wire = sums[gradient_name(part.parameter)]
        put_tokens(image, part, wire.tokens(weights[part.parameter]))
    image.tofile(folder / "update/state/w.bin")


def _rows(stage: TrainedStage) -> int:
    return stage.parameters[-1].first + stage.parameters[-1].rows


def training_record(stage: TrainedStage) -> dict[str, Any]:
    """The contents of ``training.json``."""
    fifos = _fifos(stage)
    return {
        "schema": 1,
        "interval": stage.kernels.interval,
        "parameters": [
            {**to_builtins(part), "ddr_bytes_per_microbatch": 2 * 4 * ROW * part.rows}
            for part in stage.parameters
        ],
        "masks": [dataclasses.asdict(m) for m in stage.phases.masks],
        "update_rows_of": ROW,
        "microbatches_in_flight": stage.sets,
        "saved": [
            {
                "value": f.value,
                "bytes": f.stream.nbytes,
                "microbatches": f.sets,
                "memory": f.memory.value,
                "ddr_bytes_per_microbatch": f.traffic,
                **fifos.get(f.value, {}),
            }
            for f in stage.kernels.features
        ],
    }


def _fifos(stage: TrainedStage) -> dict[str, Json]:
    """Saved values that stay on chip: the ports that they go through, and the FIFO."""
    design = stage.kernels.saved
    if design is None:
        return {}
    depths = {p.value: design.streams[p.stream] for p in design.outputs}
    return {
        value: {
            **{f"{kernel}_{way}": port for (kernel, way), port in ports.items()},
            "fifo_depth": depths[value].depth,
            "fifo_width_bits": depths[value].token_bits,
        }
        for value, ports in ports_of_saved(stage).items()
    }


def golden_training(
    model: Graph, stages: Sequence[TrainedStage], inputs: Tensors
) -> list[tuple[Golden, Golden]]:
    """A frame of F and of B of every stage: what torch computes, F's downwards, B's upwards."""
    known, forward = {**inputs, **model.weights}, list[Golden]()
    for stage in stages:
        masks = {m.name: m.draw_mask(int) for m in stage.phases.masks}
        forward += golden_chain([stage.phases.F], {**known, **masks})
        known = {**forward[-1].outputs, **known}
    backward: list[Golden] = []
    gradients: dict[str, torch.Tensor] = {}
    for stage, own in zip(reversed(stages), reversed(forward), strict=True):
        local = {**known, **gradients, **own.inputs, **own.outputs}
        (frame,) = golden_chain([stage.phases.B], local)
        backward.append(frame)
        for o in stage.phases.B.outputs_of(OutputKind.GRADIENT):
            gradients[o.name] = frame.outputs[o.name] + gradients.get(o.name, 0)
    return list(zip(forward, reversed(backward), strict=True))


def _update_frame(stage: TrainedStage, sgd: Sgd) -> Golden | None:
    """One update of random numbers by torch.optim.SGD's rule."""
    if stage.update is None:
        return None
    generator = torch.Generator().manual_seed(1)
    w, g, m = (torch.randn(_rows(stage), ROW, generator=generator) for _ in range(3))
    new_m = sgd.momentum * m + sgd.scale * g + sgd.decay * w
    return Golden({"w": w, "gradient": g, "m": m}, {"new_w": w - sgd.rate * new_m, "new_m": new_m})
