"""Engines between streams and memory, several frames in one call, beside numpy."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipec.backends.fpga.csim import build
from pipec.backends.fpga.toolchain import compiler

HLS = Path(__file__).parents[3] / "backends/fpga/hls"
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "engines/mover.h"

struct config {{
  using T = float;
  static constexpr int TOKENS = 6, LANES = 2, SLOTS = 4, CHUNK = {chunk}, FIRINGS = {firings};
  static constexpr int II = 1, DEPTH = 1;
}};
using token = vec<float, 2>;

int main(int, char **told) {{
  const int frames = std::atoi(told[1]), first = std::atoi(told[2]), each = std::atoi(told[3]);
  hls::stream<token> a("a"), b("b"), c("c"), d("d"), e("e");
  hls::stream<vec<int32_t, 1>> full("full");
  std::vector<token> ring(4 * 6), sum(6), chunks(4 * {chunk} * 8);
  for (int i = 0; i < 6; ++i) sum[std::size_t(i)] = {{{{1000, 1000}}}};
  for (int i = 0; i < frames * 6; ++i) {{
    const token x = {{{{float(2 * i), float(2 * i + 1)}}}};
    a.write(x), b.write(x), c.write(x);
  }}
  engine::store<config>(frames, a, ring.data(), first);
  engine::fetch<config>(frames, d, ring.data(), first);
  engine::accumulate<config>(frames, b, sum.data(), first, each);
  for (int f = 0; f < frames; ++f) {{
    engine::spill<config>(1, c, full, chunks.data());
    engine::refill<config>(1, full, e, chunks.data());
  }}
  const auto print = [](const token &x) {{ std::printf("%g %g\\n", x.lane[0], x.lane[1]); }};
  for (const token &x : ring) print(x);
  for (const token &x : sum) print(x);
  for (int i = 0; i < frames * 6; ++i) print(d.read());
  for (int i = 0; i < frames * 6; ++i) print(e.read());
}}
"""


CALLS = [(3, 0, 8), (4, 6, 4), (3, 3, 2), (1, 5, 3)]
"""Frames, the microbatch of the first one, microbatches of an update."""


@pytest.mark.parametrize(("firings", "chunk"), [(6, 3), (11, 6)])
@pytest.mark.usefixtures("compiled_for_users")
def test_frames_of_one_call_go_where_their_microbatch_says(
    tmp_path: Path, firings: int, chunk: int
) -> None:
    """Around the ring, across the end of an update, and with firings that read nothing."""
    (tmp_path / "main.cpp").write_text(PROGRAM.format(firings=firings, chunk=chunk))
    flags = ["-std=c++14", "-O1", *build.FLAGS, "-Werror", "-fsanitize=address,undefined"]
    command = [compiler(), *flags, f"-I{HLS}", f"-I{HLS}/csim", "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for frames, first, each in CALLS:
        told = ["./main", str(frames), str(first), str(each)]
        done = subprocess.run(told, cwd=tmp_path, check=True, capture_output=True, text=True)
        found = np.array(done.stdout.split(), dtype=np.float32).reshape(-1, 12)
        sent = np.arange(frames * 12, dtype=np.float32).reshape(frames, 12)
        ring, total = np.zeros((4, 12)), np.full(12, 1000.0)
        for microbatch, frame in enumerate(sent, first):
            ring[microbatch % 4] = frame
            total = frame + (0 if microbatch % each == 0 else total)
        assert np.array_equal(found[:4], ring)
        assert np.array_equal(found[4], total)
        assert np.array_equal(found[5:], np.concatenate([sent, sent]))
