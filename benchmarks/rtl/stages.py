"""Whole stages as configurations: models of pipec's tests, and every engine's own sample."""

from functools import partial

from benchmarks.rtl.case import Case
from benchmarks.rtl.generate import Json
from benchmarks.rtl.style import Style
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.backends.fpga.stagejson import stage_record
from tests.fpga.design.models import SAMPLES, graph_of, made

SIZED = {
    "resnet": 19_600, "inception": 15_552, "dense": 13_824, "shuffle": 3_317, "vgg": 7_200,
    "attention": 1_920, "encoder": 6_048,
}  # fmt: skip
"""Models of pipec's tests, and the interval that each is folded for."""


def stage(model: str, depth: int | None = None) -> Json:
    """A model as pipec folds it and sizes its FIFOs, or with FIFOs of one depth; no ports."""
    found = stage_record(size_fifos(design_at(lower(graph_of(*made(model))), SIZED[model])))
    fifos = [{**f, "depth": depth or f["depth"]} for f in found["fifos"]]
    return {**found, "ports": {}, "fifos": fifos}


def rigid_stages(first: int) -> list[Case]:
    """The same stages as below in rigid pipelines."""
    chosen = [(model, style) for style in (Style.FLUSH, Style.STALL) for model in SIZED]
    return [
        Case(f"rigid{k:02}", f"{style.value}: {model}", partial(stage, model), 3, style)
        for k, (model, style) in enumerate(chosen, first)
    ]


def stage_cases() -> list[Case]:
    """Whole stages as pipec folds them, from the models of its tests."""
    chosen = [*((model, None) for model in SIZED), ("resnet", 8), ("inception", 8), ("vgg", 2)]
    return [
        Case(
            f"stage{k:02}",
            f"{model}, " + (f"FIFOs of {depth}" if depth else "FIFOs as pipec sizes them"),
            partial(stage, model, depth),
            3,
        )
        for k, (model, depth) in enumerate(chosen, 1)
    ]


def sample(kind: str) -> Json:
    """The stage of a kind's own sample; no ports."""
    found = stage_record(size_fifos(design_at(lower(graph_of(*made(kind))), SAMPLE_TARGET)))
    return {**found, "ports": {}}


SAMPLE_TARGET = 80
"""Cycles per frame for which samples are folded: several lanes, last tokens that are not full."""


def lay_apart(kind: str) -> Json:
    """The engines of a kind in its sample side by side, the padding of what they read not zero."""
    record = sample(kind)
    engines = [e for e in record["engines"] if e["kind"] == kind]
    ends = {e["name"]: e for e in engines}
    fifos = [
        {**f, "from": f["from"] if f["from"] in ends else None,
         "to": f["to"] if f["to"] in ends else None}
        for f in record["fifos"] if {f["from"], f["to"]} & ends.keys()
    ]  # fmt: skip
    return {**record, "engines": engines, "fifos": fifos}


def sample_cases() -> list[Case]:
    """Every kind of engine that says how it is to be tested: nothing here names one."""
    found = list[Case]()
    for kind in sorted(SAMPLES):
        styles = (Style.FREE, Style.STALL, Style.FLUSH)
        ways = [(f"{style.value}: its sample", sample, style) for style in styles]
        for k, (what, make, style) in enumerate([*ways, ("each alone", lay_apart, Style.FREE)], 1):
            found.append(Case(f"{kind}{k:02}", what, partial(make, kind), 3, style))
    return found
