"""What test benches accept of values that stand for integers: as `pipec verify` does."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[3] / "backends" / "fpga" / "hls" / "tb"
PROGRAM = """#include "port_files.h"
#include <cstring>
static double value(const char *place) {
  float number;
  std::memcpy(&number, place, sizeof(number));
  return number;
}
int main(int argc, char **argv) {
  const std::string folder = argv[1];
  std::vector<float> found(60);
  tb::read_file(folder, "found", found.data(), found.size(), sizeof(float));
  const double step = 1.01 * 0.25 / 4;  // of a largest value of 4
  const tb::allowed by = argc > 2 ? tb::allowed(step, 4 * step) : tb::allowed(step);
  return tb::agree(found.data(), 60, 4, {value, 4}, folder, "want", 1, by) ? 0 : 1;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "main.cpp").write_text(PROGRAM)
    sources = [folder / "main.cpp", BENCH / "port_files.cpp"]
    subprocess.run(["g++", "-std=c++17", "-I", BENCH, *sources, "-o", folder / "main"], check=True)
    return folder / "main"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("apart", "few", "ok"),
    [([1] * 60, True, True), ([4, 4, 4], True, True), ([4] * 4, True, False), ([5], True, False),
     ([], True, True), ([1], False, True), ([4], False, False)],
)  # fmt: skip
def test_few_places_may_be_four_steps_apart(
    program: Path, tmp_path: Path, apart: list[int], few: bool, ok: bool
) -> None:
    want = np.linspace(-4, 4, 60, dtype=np.float32)
    found = want.copy()
    found[: len(apart)] += np.array(apart, dtype=np.float32) * np.float32(0.25)
    want.tofile(tmp_path / "want.bin")
    found.tofile(tmp_path / "found.bin")
    done = subprocess.run([program, tmp_path, *["few"] * few], capture_output=True, check=False)
    assert (done.returncode == 0) is ok, done.stdout
