"""Writing all stages of a plan that infers, and what narrow numbers lose in them.

That is measured in C simulation, all stages one after the other, against the model in float32.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipec.backends.fpga import audit
from pipec.backends.fpga.csim.run import load_stages
from pipec.backends.fpga.design import StageDesign
from pipec.backends.fpga.designs import designs_of, folders_of, lower_stages, networks, types_of
from pipec.backends.fpga.emit.link import Site
from pipec.backends.fpga.emit.stage import SEED, Golden, golden_chain, write_stage
from pipec.backends.fpga.numbers import int8_format, round_to, saturate
from pipec.backends.fpga.quantise.bound import Bound, bounds_of, tolerance_of
from pipec.backends.fpga.quantise.samples import keep, random_frames, unseen_frames
from pipec.backends.fpga.stagejson import Json, read_record, write_record
from pipec.backends.fpga.toolchain import has_compiler
from pipec.compiler.comparison import MOST_STEPS, SAME_KERNELS, Allowed, rounding_tolerance
from pipec.compiler.stage_timing import device_of
from pipec.graph.ir import Graph
from pipec.graph.lower import lower
from pipec.graph.quantised import DEQUANTIZE
from pipec.plan.model import Plan


@dataclass(frozen=True)
class Accuracy:
    """One value that leaves a stage, over all frames.

    Attributes:
        stage: The stage that computes it.
        value: Name of the value.
        frames: Sets of inputs that were run.
        max_relative_error: Largest difference, over the largest magnitude.
        mean_relative_error: Mean difference, over the mean magnitude.
        top1_agreement: Share of rows whose largest element is at the same place; None for what
            is no matrix of rows and classes.
    """

    stage: int
    value: str
    frames: int
    max_relative_error: float
    mean_relative_error: float
    top1_agreement: float | None


def _compare(stage: int, value: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> Accuracy:
    found, want = (torch.stack(side).double() for side in zip(*pairs, strict=True))
    error, size = (found - want).abs(), want.abs()
    same = None
    if want.dim() == 3 and want.shape[-1] > 1:  # frames of [rows, classes]
        same = float((found.argmax(-1) == want.argmax(-1)).double().mean())
    largest, mean = (float(of(error) / of(size).clamp_min(1e-30)) for of in (torch.max, torch.mean))
    return Accuracy(stage, value, len(pairs), largest, mean, same)


def describe(item: Accuracy, bound: Allowed) -> str:
    """The measured error and the one that the formats explain, in one line for people.

    Example:
        >>> describe(Accuracy(0, "y", 4, 0.0125, 0.002, 1.0), Allowed(0.031, "likely"))
        'y: max error 1.25 % of 3.1 % (likely bound), mean 0.2 %, top-1 agrees in 100 %'
    """
    text = f"{item.value}: max error {100 * item.max_relative_error:.3g} % "
    text += f"of {100 * bound.relative:.3g} % ({bound.basis} bound), "
    text += f"mean {100 * item.mean_relative_error:.3g} %"
    if item.top1_agreement is not None:
        text += f", top-1 agrees in {100 * item.top1_agreement:.4g} %"
    return text


def emit_inference(plan: Plan, directory: Path) -> None:
    """Write a directory per stage; with narrow numbers, run them all and note what they lose.

    Raises:
        BackendError: Something cannot be emitted, or an emitted stage fails.
    """
    designs = designs_of(plan)
    ends = [lower(stage.graph) for stage in plan.stages]
    graphs = [end.graph for end in ends]
    types, bounds = types_of(plan), list[Bound]()
    frames = unseen_frames(plan) if types.narrow else random_frames(plan.graph, SEED)
    if types.narrow:
        bounds = bounds_of(lower_stages(plan), networks(plan), types.precision, frames)
    golden = golden_chain(graphs, frames[0])
    folders = folders_of(plan, directory)
    for k, (design, frame) in enumerate(zip(designs, golden, strict=True)):
        known = [b for b in bounds if b.stage == k]
        # A model of 16-bit floats rounds, where boards compute in float32.
        tolerance = max(tolerance_of(known), rounding_tolerance(plan.graph, SAME_KERNELS))
        crossing = [transfer.value for transfer in (*ends[k].receives, *ends[k].sends)]
        site = Site.of(device_of(plan, plan.stages[k]).fpga, crossing=crossing, hosted=True)
        accepted = allow_golden(design, frame, tolerance)
        steps = _steps(design, graphs[k])
        largest = {value: max(float(frame.outputs[value].abs().max()), 1e-30) for value in steps}
        unit = {value: 1.01 * step / largest[value] for value, step in steps.items()}
        own = {value: (one, MOST_STEPS * one) for value, one in unit.items()}
        facts: Json = {"tolerance": tolerance, **({"steps": steps} if steps else {})}
        if types.narrow:
            facts["bounds"] = [b.to_json() for b in known]
        write_stage(design, folders[k], frame, tolerance=accepted, own=own, site=site, facts=facts)
        audit.check(folders[k])
    if types.narrow:
        keep(frames, directory)
    if types.narrow and has_compiler():
        for item in measure(graphs, folders, frames):
            record = read_record(folders[item.stage])
            record.setdefault("accuracy", []).append(dataclasses.asdict(item))
            write_record(record, folders[item.stage])


def _steps(design: StageDesign, graph: Graph) -> dict[str, float]:
    """Outputs in 8-bit integers that the model itself asks for, to what one of them stands for."""
    formats = {p: int8_format(design.streams[p.stream].dtype) for p in design.outputs}
    named = {node.name for node in graph.calls if node.target is DEQUANTIZE}
    return {
        port.value: form.scale
        for port, form in formats.items()
        if form is not None and port.node in named
    }


def allow_golden(design: StageDesign, golden: Golden, tolerance: float) -> float:
    """The error allowed against golden outputs, which are rounded to their streams' types too.

    A result within ``tolerance`` of the model's, relative to the largest magnitude in float32, is
    that much farther from the model's as stored.
    """
    found = tolerance
    for port in design.outputs:
        want, dtype = golden.outputs[port.value], design.streams[port.stream].dtype
        if dtype == "float32" or not want.dtype.is_floating_point:
            continue
        want = want.float()[want.isfinite()]
        stored = round_to(want, dtype)
        if not stored.any():
            continue
        rounded = float((stored - saturate(want, dtype)).abs().max())
        allowed = tolerance * float(want.abs().max()) + rounded
        found = max(found, allowed / float(stored.abs().max()))
    return min(1.0, found)


def measure(
    graphs: Sequence[Graph], folders: Sequence[Path], frames: Sequence[Mapping[str, Tensor]]
) -> list[Accuracy]:
    """Run every frame through the emitted stages and compare what leaves them with float32.

    One item per floating-point value, in order of the stages.
    """
    stages, found = load_stages(folders), dict[tuple[int, str], list[tuple[Tensor, Tensor]]]()
    for frame in frames:
        want, known = dict[str, Tensor](), dict(frame)
        for golden in golden_chain(graphs, frame):
            want |= golden.outputs
        for k, stage in enumerate(stages):
            results = stage(known)
            known |= results
            for name, value in results.items():
                if value.dtype.is_floating_point:
                    found.setdefault((k, name), []).append((value, want[name]))
    return [_compare(k, name, pairs) for (k, name), pairs in found.items()]


def accuracy_of(folders: Sequence[Path]) -> list[Accuracy]:
    """The accuracy measured when stages were written; none in float32, or without a compiler.

    Raises:
        BackendError: A ``stage.json`` cannot be read.
    """
    return [Accuracy(**item) for f in folders for item in read_record(f).get("accuracy", ())]
