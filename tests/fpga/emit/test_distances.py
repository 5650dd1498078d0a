"""What ``DEPENDENCE`` pragmas promise, seen while the emitted code runs.

A pragma says that no iteration reads what one of the last few has written. HLS takes its word: a
promise that does not hold gives other numbers on a board, and in no simulation. Here each array of
a pragma notes in which iteration a word was written, and stops where it is read too soon.
"""

import re
from pathlib import Path

import pytest

from pipec.backends.fpga.csim.run import load_stages, run_timed
from pipec.backends.fpga.emit.stage import Golden, write_stage
from pipec.compiler.sizes import run_graph
from pipec.errors import BackendError
from tests.fpga.emit.harness import design_of, run
from tests.fpga.emit.test_compute_engines import mvu_case, pool_case, window_case
from tests.fpga.training.test_phases import kernel, read_by, truth

WATCH = """
#pragma once
#include <cstdio>
#include <cstdlib>
namespace watch {
template <typename T, int N, int DISTANCE>
struct memory {
  T word[N] = {};
  long now = 0, wrote[N] = {};
  struct slot {
    memory &in;
    int at;
    operator T() const {
      const long since = in.now - in.wrote[at];
      if (in.wrote[at] != 0 && since > 0 && since < DISTANCE) {
        std::fprintf(stderr, "read after %ld of %d iterations\\n", since, DISTANCE);
        std::exit(9);
      }
      return in.word[at];
    }
    void operator=(const T &value) { in.word[at] = value; in.wrote[at] = in.now; }
  };
  slot operator[](int at) { return {*this, at}; }
};
template <typename M> void fire(M &memory) { ++memory.now; }
template <typename M, int N> void fire(M (&memories)[N]) { for (M &m : memories) ++m.now; }
}
"""
PRAGMA = re.compile(r"#pragma HLS DEPENDENCE variable = (\w+) .*distance = (\S+) true")


def watch(folder: Path, tight: str = "") -> set[str]:
    """Let every array of a pragma look at its reads; the headers that have one.

    Args:
        folder: An emitted stage.
        tight: A header whose pragmas promise an iteration more than they do.
    """
    found = set()
    for path in sorted((folder / "src/engines").glob("*.h")):
        lines = path.read_text().splitlines()
        for k, line in enumerate(lines):
            said = PRAGMA.match(line)
            if not said or said[1] == "memory":  # of DDR: a sum that the next frame reads
                continue
            array = re.compile(rf"  static (.+) {said[1]}((?:\[[^]]*\])*)\[([^]]*)\];")
            at = max(n for n in range(k) if array.match(lines[n]))
            kind, others, words = array.match(lines[at]).groups()  # type: ignore[union-attr]
            distance = f"({said[2]}) + {int(path.name == tight)}"
            lines[at] = f"  static watch::memory<{kind}, {words}, {distance}> {said[1]}{others};"
            end = next(n for n in range(k, len(lines)) if lines[n] == "}")
            for n in range(k, end):
                lines[n] = lines[n].replace("FIRE(", f"watch::fire({said[1]}); FIRE(")
            found.add(path.name)
        if path.name in found:
            path.write_text("\n".join(['#include "watch.h"', *lines]))
    (folder / "src/engines/watch.h").write_text(WATCH)
    return found


BLOCK = {"n": 4, "rows": 7, "taps": 2, "channels": 5, "pe": 3, "simd": 3, "streamed": True}
WINDOW = {"batch": 2, "h": 6, "w": 5, "lanes": 3, "kh": 3, "kw": 3, "pt": 1, "pl": 1, "oh": 6,
          "ow": 5, "cf": 2, "groups": 2}  # fmt: skip
CASES = {
    "mvu.h": [mvu_case("two", **BLOCK, block=2), mvu_case("four", **BLOCK, block=4, partial=3)],
    "swg.h": [window_case("rows", **WINDOW, kp=3), window_case("whole", **WINDOW, kp=9)],
    "reduce.h": [pool_case("mean", "sum", n=2, window=7, cf=3, lanes=2, scale=1 / 7, partial=4)],
}


@pytest.mark.parametrize("header", CASES)
def test_engines_keep_their_distances(tmp_path: Path, header: str) -> None:
    for tight in ("", header):
        folder = tmp_path / f"tight {tight}"
        write_stage(design_of(CASES[header]), folder, golden=None)
        assert header in watch(folder, tight)
        (stage,) = load_stages([folder])
        if not tight:
            run(stage, CASES[header])
            continue
        with pytest.raises(BackendError, match="iterations"):
            run(stage, CASES[header])


def test_gradients_keep_their_distances(tmp_path: Path) -> None:
    """Outer products and gradients of pooling, of two frames."""
    want, orders = truth("cnn"), dict[str, tuple[int, ...]]()
    known = dict(want.inputs)
    for phase, graph in (("F", want.phases.F), ("B", want.phases.B)):
        design, read = kernel(graph, orders), read_by(graph, known, want.graph)
        known |= run_graph(graph, read)
        for tight in ("", "outer.h", "poolgrad.h") if phase == "B" else ("",):
            folder = tmp_path / f"{phase} {tight}"
            write_stage(design, folder, Golden(read, known))
            assert {*CASES, tight} - {""} <= watch(folder, tight)
            if not tight:
                run_timed(folder, 2)
                continue
            with pytest.raises(BackendError, match="iterations"):
                run_timed(folder, 2)
