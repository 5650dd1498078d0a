"""Rules and audit find nothing in what is emitted, and every mutation of what is changed."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipec.backends.fpga.audit import check as audit
from pipec.backends.fpga.banks import ddr_ports
from pipec.backends.fpga.emit.stage import write_stage
from pipec.backends.fpga.engines.mvu import Mvu
from pipec.backends.fpga.fifo import size_fifos
from pipec.backends.fpga.folding import design_at
from pipec.backends.fpga.lowering.lower import lower
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import emit, make_plan
from pipec.errors import BackendError
from tests.fpga.design.models import MODELS, graph_of, made
from tests.fpga.lint.bounds import constants
from tests.fpga.lint.loops import check_loops
from tests.fpga.lint.pragmas import check_pragmas, words_of
from tests.fpga.lint.source import parse, parse_pragma
from tests.fpga.lint.stage import lint


def written(name: str, directory: Path) -> Path:
    model, x = made(name)
    network = lower(graph_of(model, x))
    streamed = {
        layer.name: 1 for layer in network.layers if isinstance(layer.nest, Mvu) and name == "vgg"
    }
    design = size_fifos(design_at(network, 1_000, streamed=streamed))
    design = replace(design, ddr=ddr_ports(design))
    write_stage(design, directory, golden=None)
    return directory


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written("resnet", tmp_path_factory.mktemp("lint") / "resnet")


@pytest.mark.parametrize("name", MODELS)
def test_what_is_emitted_is_clean(name: str, tmp_path: Path) -> None:
    directory = written(name, tmp_path)
    assert lint(directory) == []
    audit(directory)
    known = constants(json.loads((directory / "stage.json").read_text()))
    structs = [b for b in parse((directory / "src/types.h").read_text()).all() if b.head]
    held = [
        (s.head.removeprefix("struct "), line.split()[3])
        for s in structs
        for _, line in s.lines
        if line.startswith("static constexpr")
    ]
    assert held
    assert [(s, c) for s, c in held if known[s](c) is None] == []


def test_every_engine_is_one_loop() -> None:
    """Or says what it pauses: no header is left out, whatever the models use, nor a pragma."""
    folder = Path(__file__).parents[3] / "backends/fpga/hls/engines"
    headers = {p.name: parse(p.read_text()) for p in sorted(folder.glob("*.h"))}
    words = words_of(headers.values()) | {"lane"}
    assert len(headers) > 20
    assert [f for name in headers for f in check_loops(name, headers[name])] == []
    assert [f for name in headers for f in check_pragmas(name, headers[name], words)] == []


KERNEL, TYPES, MVU, SWG, DOT, LRN = (
    "src/stage_top.cpp", "src/types.h", "src/engines/mvu.h", "src/engines/swg.h",
    "src/engines/dot.h", "src/engines/norm.h",
)  # fmt: skip

SECOND = """  for (int t = 0; t < 3; ++t) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
  }
"""

MUTATIONS = [
    ("name", MVU, "#pragma HLS PIPELINE", "#pragma HLS PIPELIN"),
    ("option", KERNEL, "#pragma HLS STREAM variable", "#pragma HLS STREAM varable"),
    ("option", MVU, "PIPELINE II = G::II", "PIPELINE II = G::II style = fast"),
    ("option", SWG, "type = ram_2p", "type = ram_9p"),
    ("option", KERNEL, "BIND_STORAGE variable", "BIND_STORAGE complete variable"),
    ("target", KERNEL, "STREAM variable = relu_out", "STREAM variable = relu_uot"),
    ("target", SWG, "AGGREGATE variable = above", "AGGREGATE variable = aboves"),
    ("option", SWG, "direction = RAW distance = 2", "direction = RAW distance = 3"),
    ("option", SWG, "direction = RAW distance = 2", "direction = RAW"),
    ("option", SWG, "distance = 2 true", "distance = 2"),
    ("target", KERNEL, "AGGREGATE variable = table::", "AGGREGATE variable = table::no_"),
    ("partition", DOT, "variable = product complete", "variable = product"),
    ("partition", DOT, "variable = product complete", "variable = product cyclic"),
    ("partition", DOT, "variable = product complete", "variable = product complete dim = 2"),
    ("partition", DOT, "product complete", "product cyclic factor = PE + 1"),
    ("partition", LRN, "variable = line complete", "variable = line cyclic factor = G::C"),
    ("placement", MVU, "          FIRE(G::II, G::DEPTH);", "          FIRE(1, G::DEPTH);"),
    ("placement", MVU, "          FIRE(G::II, G::DEPTH);\n", ""),
    ("placement", DOT, "#pragma HLS INLINE", "#pragma HLS PIPELINE"),
    ("placement", MVU, "#pragma HLS PIPELINE II = G::II\n", ""),
    ("placement", MVU, "  for (int b = 0;", f"{SECOND}  for (int b = 0;"),
    ("placement", MVU, "        for (int s = 0;", "        int k = 0;\n        for (int s = 0;"),
    ("placement", MVU, "s < G::SF; ++s", "s < G::SF + f; ++s"),
    ("target", DOT, "ARRAY_PARTITION variable", "ARRAY_PARTITION varible"),
    ("target", KERNEL, "AGGREGATE variable = table::", "AGGREGATE variable = tabl::"),
    ("partition", DOT, "#pragma HLS ARRAY_PARTITION variable = all complete\n", ""),
    ("partition", DOT, "#pragma HLS ARRAY_PARTITION variable = product complete\n", ""),
    ("storage", KERNEL, "#pragma HLS BIND_STORAGE variable = table::", "#pragma HLS INLINE // "),
    ("storage", KERNEL, "impl = bram", "impl = uram"),
    ("storage", KERNEL, "#pragma HLS AGGREGATE variable = table::", "#pragma HLS INLINE // "),
    ("interface", KERNEL, "#pragma HLS INTERFACE m_axi port", "#pragma HLS INLINE // "),
    ("unroll", SWG, "#pragma HLS UNROLL\n    const int ky", "    const int ky"),
    ("dataflow", KERNEL, "#pragma HLS DATAFLOW\n", ""),
    ("dataflow", KERNEL, "  TASK(engine::axis_in", "  if (frames > 1) TASK(engine::axis_in"),
    ("dataflow", KERNEL, "  DATAFLOW_END;", "  int more = 0;\n  DATAFLOW_END;"),
    ("dataflow", KERNEL, "<cfg::relu_map>", "<cfg::relu_1_map>"),
    ("stream", KERNEL, "(frames, relu_in0, relu_out)", "(frames, relu_in0, relu_1_out)"),
    ("stream", KERNEL, ' relu_out("relu_out")', ' relu_xy("relu_xy")'),
    ("depth", KERNEL, "variable = relu_out depth = 8", "variable = relu_out depth = 9"),
    ("depth", KERNEL, ', 8> relu_out("', ', 4> relu_out("'),
    ("bound", TYPES, "static constexpr int SF = ", "static constexpr int SF = 1"),
    ("bound", TYPES, "static constexpr int DEPTH = 1;", "static constexpr int DEPTH = 2;"),
    ("bound", TYPES, "static constexpr int PE = ", "static constexpr int PE = 1"),
    ("interface", KERNEL, "INTERFACE axis port = in_x", "INTERFACE axis port = in_y"),
    ("interface", KERNEL, "#pragma HLS INTERFACE s_axilite port = frames\n", ""),
    ("interface", KERNEL, "INTERFACE axis port = in_x", "INTERFACE s_axilite port = in_x"),
    ("option", MVU, "PIPELINE II = G::II", "PIPELINE II = G::II off"),
    ("option", DOT, "#pragma HLS UNROLL", "#pragma HLS UNROLL off"),
    ("option", DOT, "#pragma HLS UNROLL", "#pragma HLS UNROLL factor = 2"),
    ("option", KERNEL, "variable = relu_out depth = 8", "variable = relu_out depth = 8 off"),
    ("option", KERNEL, "HLS DATAFLOW", "HLS DATAFLOW disable_start_propagation"),
    ("condition", MVU, "#pragma HLS PIPELINE II = G::II", "#if 0\n#pragma HLS PIPELINE\n#endif"),
    ("repeated", MVU, "#pragma HLS PIPELINE", "#pragma HLS UNROLL\n#pragma HLS PIPELINE"),
    ("library", MVU, "f < G::NF", "f < G::NF / 2"),
    ("library", SWG, "static ", ""),
    ("call", KERNEL, "(frames, relu_in0, relu_out)", "(frames, relu_out, relu_in0)"),
    ("call", KERNEL, "(frames, relu_in0, relu_out)", "(1, relu_in0, relu_out)"),
    ("call", KERNEL, "engine::map1<cfg::relu_map>", "engine::fork<cfg::relu_map>"),
    ("call", KERNEL, "TASK(engine::axis_in", "TASK(engine::axis_out"),
    ("call", KERNEL, "table::conv2d_1_mvu_weight)", "table::conv2d_2_mvu_weight)"),
    ("stream", KERNEL, "hls::stream<vec<float, ", "hls::stream<vec<double, "),
    ("bound", TYPES, "using T = float", "using T = double"),
    ("bound", TYPES, "static constexpr int SF = ", "static constexpr int SF = 1 * "),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "file", "old", "new"), MUTATIONS)
def test_every_mutation_is_found(
    stage: Path, tmp_path: Path, rule: str, file: str, old: str, new: str
) -> None:
    copy = tmp_path / "stage"
    shutil.copytree(stage, copy)
    text = (copy / file).read_text()
    if file == LRN and old not in text:  # this network has no such engine
        text = (Path(__file__).parents[3] / "backends/fpga/hls/engines/norm.h").read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    found = lint(copy)
    assert rule in {f.rule for f in found}, found
    assert all(f.line > 0 for f in found)
    with pytest.raises(BackendError, match="not as they were written"):
        audit(copy)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every number and text in JSON data, with the way there."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


FREE = {
    "clock_mhz", "part", "precision", "interval", "latency", "node", "sources", "initial", "bits",
    "bank", "banks", "slots", "period", "bytes_per_frame", "bytes_per_second", "word_bits",
    "second", "result", "alpha", "beta", "eps", "k", "size", "rows_in", "taps", "operand", "value",
}  # fmt: skip
"""Estimates, names of what is elsewhere, and what the first engine that has it does not use."""


def test_every_figure_of_the_record_is_held_against_the_rest(tmp_path: Path) -> None:
    """One of each kind is changed; only estimates and names of what is elsewhere may pass."""
    seen, passed = set[tuple[Any, ...]](), set[str]()
    for name in ("resnet", "vgg"):
        copy = written(name, tmp_path / name)
        passed |= passing_figures(copy, seen)
    assert len(seen) > 50
    assert [p for p in sorted(passed) if p.split(".")[-1] not in FREE] == []


def passing_figures(copy: Path, seen: set[tuple[Any, ...]]) -> set[str]:
    """Kinds of figures, but those already seen, that may be changed without a word."""
    record, passed = json.loads((copy / "stage.json").read_text()), set[str]()
    for path, value in leaves(record):
        kind = tuple(p for p in path if isinstance(p, str))
        if kind in seen or isinstance(value, bool) or "resources" in kind:
            continue
        seen.add(kind)
        changed = json.loads(json.dumps(record))
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = f"{value}x" if isinstance(value, str) else (value or 0) + 1
        (copy / "stage.json").write_text(json.dumps(changed))
        try:
            audit(copy)
        except BackendError:
            continue
        passed.add(".".join(kind))
    return passed


def test_what_stands_around_a_kernel_is_made_anew_too(tmp_path: Path) -> None:
    model, x = made("resnet")
    emit(make_plan(graph_of(model, x), parse_cluster("3xu280"), "fpga"), tmp_path / "out")
    paths = [p for way in ("mover", "link") for p in tmp_path.glob(f"out/*/{way}/*.cpp")]
    assert {p.parent.name for p in paths} == {"mover", "link"}
    for path in paths:
        text = path.read_text()
        path.write_text(text.replace("frames", "1", 1))
        with pytest.raises(BackendError, match=path.name):
            audit(path.parent.parent)
        path.write_text(text)
        audit(path.parent.parent)


def test_pragmas_are_read_whole() -> None:
    found = parse_pragma(3, "#pragma HLS LOOP_TRIPCOUNT min = S::A max = S::A + S::B")
    assert found is not None
    assert found.options == {"min": "S::A", "max": "S::A + S::B"}
    found = parse_pragma(1, "#pragma HLS ARRAY_PARTITION variable = w.lane dim = 2 complete")
    assert found is not None
    assert set(found.flags) == {"complete"}
    assert found.options["dim"] == "2"
    assert parse_pragma(1, "#pragma once") is None
