"""The kernels that lead several values over one link, run on one clock over wires with a flight."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.beside import files_beside, share
from pipec.backends.fpga.links import PACKET, WINDOW, Frame, link_cycles
from pipec.backends.fpga.toolchain import compile_cached, compiler
from pipec.cluster.cluster import Link

HLS_STREAM = r"""
#ifndef HLS_STREAM_H
#define HLS_STREAM_H
#include <ucontext.h>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>
// All processes on one clock: a write takes a cycle, and so does a look at an empty stream.
namespace sim {
struct process {
  std::function<void()> body;
  ucontext_t here;
  std::vector<char> stack = std::vector<char>(1 << 18);
  bool done = false;
};
inline long now = 0;
inline std::vector<std::unique_ptr<process>> all;
inline process *current;
inline ucontext_t scheduler;
inline void tick() { swapcontext(&current->here, &scheduler); }
inline void begin() {
  current->body();
  current->done = true;
  tick();
}
inline process &spawn(std::function<void()> body) {
  all.push_back(std::make_unique<process>());
  process &made = *all.back();
  made.body = std::move(body);
  getcontext(&made.here);
  made.here.uc_stack.ss_sp = made.stack.data();
  made.here.uc_stack.ss_size = made.stack.size();
  makecontext(&made.here, begin, 0);
  return made;
}
inline void wait_for(const std::vector<process *> &others) {
  for (const process *other : others) while (!other->done) tick();
}
inline bool run(long most) {
  for (bool busy = true; busy; ++now) {
    if (now == most) return false;
    busy = false;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k]->done) continue;
      busy = true;
      current = all[k].get();
      swapcontext(&scheduler, &current->here);
    }
  }
  return true;
}
}  // namespace sim
namespace hls {
// A queue of a depth, or a wire: with a flight time, cycles that each token takes, and in front of
// it a few that wait, as in the FIFO of a core for serial links.
template <typename T>
class stream {
 public:
  void write(const T &token) {
    while (queue_.size() >= depth || next_ - sim::now > 8 * pace) sim::tick();
    next_ = next_ > sim::now ? next_ : double(sim::now);
    queue_.emplace_back(long(next_) + flight, token);
    next_ += pace;
    ++count;
    most = queue_.size() > most ? queue_.size() : most;
    sim::tick();
  }
  T read() {
    while (queue_.empty() || queue_.front().first > sim::now) sim::tick();
    return pop();
  }
  bool read_nb(T &token) {
    if (queue_.empty() || queue_.front().first > sim::now) {
      sim::tick();
      return false;
    }
    token = pop();
    return true;
  }
  std::size_t depth = 100000, most = 0, count = 0;
  long flight = 1;
  double pace = 1;

 private:
  T pop() {
    const T token = queue_.front().second;
    queue_.pop_front();
    return token;
  }
  double next_ = 0;
  std::deque<std::pair<long, T>> queue_;
};
}  // namespace hls
#define TASK(...) tasks.push_back(&sim::spawn([&] { __VA_ARGS__; }))
#define DATAFLOW_END sim::wait_for(tasks)
#endif
"""

FLAGS = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
DEPTH = r"#pragma HLS STREAM variable = (\w+) depth = (\d+)"
FREE = r'for (auto &s : beats) std::printf("%zu free\n", s.depth - s.most);'
"""What is said of the receiving FIFOs at the end, in the order of the values' names."""
OUT = 4
"""Beats that have left such a FIFO for a port of three that nobody reads: one is in hand."""
MAIN = r"""
#include <cstdio>
#include <cstdlib>
#include "link.h"
%(sources)s

template <int BYTES>
links::raw<BYTES> beat(int value, int n) {
  links::raw<BYTES> data;
  for (int i = 0; i < BYTES; ++i) data.byte[i] = static_cast<unsigned char>(31 * n + 7 * i + value);
  return data;
}

template <int BYTES>
void feed(links::axis_stream<BYTES> &to, int value, int count) {
  for (int n = 0; n < count; ++n) to.write(links::worded(beat<BYTES>(value, n), false));
}

template <int BYTES>
int drain(links::axis_stream<BYTES> &from, int value, int count, int frame) {
  int wrong = 0;
  for (int n = 0; n < count; ++n) {
    const links::word<BYTES> got = from.read();
    const links::raw<BYTES> want = beat<BYTES>(value, n);
    for (int i = 0; i < BYTES; ++i) wrong += got.data.byte[i] != want.byte[i];
    wrong += bool(got.last) != (n %% frame == frame - 1);
  }
  return wrong;
}

int main(int, char **argv) {
  const int frames = std::atoi(argv[1]);
  links::axis_stream<64> there, back;
  there.flight = back.flight = std::atol(argv[2]);
  there.pace = std::atof(argv[3]);
%(streams)s
%(feeds)s
  sim::spawn([&] { stage0_link_tx(%(outs)s, back, there, frames); });
  sim::spawn([&] { stage1_link_rx(%(ins)s, there, back, frames); });
  int wrong = 0;
%(drains)s
  const bool ended = sim::run(%(most)d);
  std::printf("%%ld cycles\n%%d wrong\n", sim::now, wrong);
  return wrong != 0 || !ended;
}
"""


def ends(values: dict[str, tuple[int, int]]) -> tuple[StageDesign, StageDesign]:
    """Two stages: one sends these values (lanes, tokens), one receives them, in another order."""
    streams = {v: Stream(v, n, lanes, lanes) for v, (lanes, n) in values.items()}
    ports = [Port(v, v, v, (n, lanes), (0, 1), "float32") for v, (lanes, n) in values.items()]
    first = StageDesign("stage0", (), streams, (), tuple(ports), part="p")
    second = replace(first, name="stage1", inputs=tuple(reversed(ports)), outputs=())
    return first, second


TAKEN = PACKET * WINDOW + 2 * PACKET + 1 + 3
"""Beats of a value that nobody reads which its sender takes: a window of packets is under way, two
wait for them, one is in hand, and three are at the port."""


def waiting(values: dict[str, tuple[int, int]]) -> list[str]:
    """Values of more beats than that which the driver does not read at first."""
    return [v for v in values if v != [*values][-1] and values[v][1] > TAKEN]


def program(values: dict[str, tuple[int, int]], folder: Path, *, together: bool = False) -> Path:
    """Compile both kernels with a driver that drains the last value first, whole.

    The program takes frames, cycles of a beat on its way, and those that it takes of the link.

    Args:
        values: Lanes and tokens of each.
        folder: Where to.
        together: Whether all values are drained at the same time.
    """
    sender, receiver = ends(values)
    texts = dict[str, str]()
    for design, way, prefix in ((sender, "tx", "out"), (receiver, "rx", "in")):
        kernel = share(design, [f"{prefix}_{v}" for v in values], way)
        texts |= files_beside(design, [kernel], platform=True)
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        code = text.replace("frames) {", "frames) {\n  std::vector<sim::process *> tasks;")
        code = re.sub(DEPTH, r"for (auto &s : \1) s.depth = \2;", code)
        if path.stem == "link_rx":
            code = code.replace("DATAFLOW_END;", f"DATAFLOW_END;\n  {FREE}")
        path.write_text(code if name.endswith(".cpp") else text)
    (folder / "hls_stream.h").write_text(HLS_STREAM)
    order = sorted(values)
    lines: dict[str, list[str]] = {"streams": [], "feeds": [], "drains": []}
    taken = [f"while (a_{v}.count < {TAKEN}) sim::tick();" for v in waiting(values)]
    for v, (lanes, tokens) in values.items():
        bytes_of, index = 4 * lanes, order.index(v)
        lines["streams"].append(f"  links::axis_stream<{bytes_of}> a_{v}, b_{v};")
        lines["streams"].append(f"  a_{v}.depth = b_{v}.depth = 3;")
        count = f"frames * {tokens}"
        lines["feeds"].append(f"  sim::spawn([&] {{ feed(a_{v}, {index}, {count}); }});")
        lines["drains"].insert(0, f"wrong += drain(b_{v}, {index}, {count}, {tokens});")
    if together:
        lines["drains"] = [f"  sim::spawn([&] {{ {line} }});" for line in lines["drains"]]
    else:
        lines["drains"] = ["  sim::spawn([&] {", *taken, *lines["drains"], "  });"]
    main = MAIN % {
        "sources": '#include "link_tx.cpp"\n#include "link_rx.cpp"',
        "most": 1_000_000,
        **{name: "\n".join(text) for name, text in lines.items()},
        "outs": ", ".join(f"a_{v}" for v in order),
        "ins": ", ".join(f"b_{v}" for v in order),
    }
    (folder / "main.cpp").write_text(main)
    csim = Path(__file__).parents[3] / "backends/fpga/hls/csim"
    (folder / "ap_axi_sdata.h").write_text((csim / "ap_axi_sdata.h").read_text())
    header = ["-x", "c++-header", str(folder / "hls_stream.h")]
    known = compile_cached("shared_link.h.gch", [*FLAGS, *header], "the clock").with_suffix("")
    command = [compiler(), *FLAGS, "-include", str(known), "-I.", "-Ilink", "main.cpp", "-o", "run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.parametrize(
    "values",
    [
        {"x": (16, 700), "y": (3, 41)},
        {"alone": (16, 300)},
        {"late": (1, 1), "early": (16, 1_000), "middle": (8, PACKET * WINDOW)},
    ],
)
def test_values_cross_whole_and_none_waits_for_another(
    values: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    """The driver reads one value to its end before it looks at the next: more than any window.

    What waits meanwhile fills the FIFO where it arrives, and the FIFO is no deeper than that.
    """
    binary = program(values, tmp_path)
    done = subprocess.run(
        [binary, "3", "3", "1"], capture_output=True, text=True, check=False, timeout=60
    )
    *free, _, wrong = done.stdout.splitlines()
    assert (done.returncode, wrong) == (0, "0 wrong")
    for value, found in zip(sorted(values), free, strict=True):
        assert value not in waiting(values) or int(found.split()[0]) <= OUT


@pytest.mark.parametrize(
    ("values", "links"),
    [
        ({"x": (16, 4_096), "y": (3, 40)}, [(20, 2.0, "the link"), (900, 1.0, "credits")]),
        ({"x": (8, 4_096), "y": (16, 1_024)}, [(20, 3.0, "the link")]),
        ({"x": (16, 4_096), "y": (16, 2_048)}, [(1_500, 1.0, "credits"), (20, 1.0, "the kernel")]),
        ({"x": (6, 4_096), "y": (3, 40)}, [(900, 1.0, "credits")]),
        ({"x": (1, 4_096), "y": (3, 40)}, [(20, 1.0, "the port")]),
    ],
)
def test_the_emitted_kernels_need_the_cycles_that_the_estimate_says(
    values: dict[str, tuple[int, int]], links: list[tuple[int, float, str]], tmp_path: Path
) -> None:
    """Frame after frame: where the link's rate bounds them, its window, or a token per cycle.

    A loop's beginning and end take no time in the simulation, so the estimate of a sender that
    does nothing but send packets is above it.
    """
    binary = program(values, tmp_path, together=True)
    for flight, pace, bound in links:
        ends = []
        for frames in (3, 6):
            command = [str(word) for word in (binary, frames, flight, pace)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            ends.append(int(done.stdout.split(" cycles")[0].splitlines()[-1]))
        crossing, clock = [Frame(tokens, 4 * lanes) for lanes, tokens in values.values()], 200e6
        link = Link(64 / pace * clock, (flight - 1) / clock)
        found, want = (ends[1] - ends[0]) / 3, link_cycles(crossing, link, clock)
        at_once = link_cycles(crossing, Link(64 / pace * clock), clock)
        assert (want > 1.2 * at_once) == (bound == "credits")
        want = max(want, *(frame.tokens for frame in crossing))
        assert found == pytest.approx(want, rel=0.2 if bound == "the kernel" else 0.02), bound
        assert bound != "the kernel" or found < want


def test_a_packet_is_one_datagram() -> None:
    """A network layer takes payloads of up to 1,408 bytes."""
    assert (PACKET + 1) * 64 <= 1408
    sender, _ = ends({"x": (16, 8)})
    assert files_beside(sender, [], platform=True) == {}
