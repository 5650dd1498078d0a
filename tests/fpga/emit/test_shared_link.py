"""The kernels that lead several values over one link, run as threads over slow, bounded wires."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipec.backends.fpga.design import Port, StageDesign, Stream
from pipec.backends.fpga.emit.share import PACKET, WINDOW, link_files, shared
from pipec.backends.fpga.toolchain import compiler

HLS_STREAM = r"""
#ifndef HLS_STREAM_H
#define HLS_STREAM_H
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>
namespace hls {
// A bounded queue between threads.
template <typename T>
class stream {
 public:
  void write(const T &token) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < depth; });
    queue_.push_back(token);
    ++count;
    most = queue_.size() > most ? queue_.size() : most;
    changed_.notify_all();
  }
  T read() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !queue_.empty(); });
    return pop();
  }
  bool read_nb(T &token) {
    std::this_thread::yield();
    std::unique_lock<std::mutex> lock(mutex_);
    if (queue_.empty()) return false;
    token = pop();
    return true;
  }
  std::size_t depth = 1000, most = 0;
  std::atomic<std::size_t> count{0};

 private:
  T pop() {
    const T token = queue_.front();
    queue_.pop_front();
    changed_.notify_all();
    return token;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> queue_;
};
}  // namespace hls
#define TASK(...) tasks.emplace_back([&] { __VA_ARGS__; })
#define DATAFLOW_END for (std::thread &t : tasks) t.join()
#endif
"""

DEPTH = r"#pragma HLS STREAM variable = (\w+) depth = (\d+)"
FREE = r'for (auto &s : beats) std::printf("%zu free\n", s.depth - s.most);'
"""What is said of the receiving FIFOs at the end, in the order of the values' names."""
OUT = 4
"""Beats that have left such a FIFO for a port of three that nobody reads: one is in hand."""
MAIN = r"""
#include <cstdio>
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

int main() {
  const int frames = %(frames)d;
  links::axis_stream<64> there, back;
  there.depth = back.depth = 2;
%(streams)s
  std::vector<std::thread> running;
%(feeds)s
  running.emplace_back([&] { stage0_link_tx(%(outs)s, back, there, frames); });
  running.emplace_back([&] { stage1_link_rx(%(ins)s, there, back, frames); });
%(waits)s
  int wrong = 0;
%(drains)s
  for (std::thread &t : running) t.join();
  std::printf("%%d wrong\n", wrong);
  return wrong != 0;
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


def program(values: dict[str, tuple[int, int]], frames: int, folder: Path) -> Path:
    """Compile both kernels with a driver that drains the last value first, whole."""
    sender, receiver = ends(values)
    texts = dict[str, str]()
    for design, way, prefix in ((sender, "tx", "out"), (receiver, "rx", "in")):
        kernel = shared(design, [f"{prefix}_{v}" for v in values], way)
        texts |= link_files(design, [kernel], platform=True)
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        code = text.replace("frames) {", "frames) {\n  std::vector<std::thread> tasks;")
        code = re.sub(DEPTH, r"for (auto &s : \1) s.depth = \2;", code)
        if path.stem == "link_rx":
            code = code.replace("DATAFLOW_END;", f"DATAFLOW_END;\n  {FREE}")
        path.write_text(code if name.endswith(".cpp") else text)
    (folder / "hls_stream.h").write_text(HLS_STREAM)
    order = sorted(values)
    lines: dict[str, list[str]] = {"streams": [], "feeds": [], "waits": [], "drains": []}
    for v, (lanes, tokens) in values.items():
        bytes_of, index = 4 * lanes, order.index(v)
        lines["streams"].append(f"  links::axis_stream<{bytes_of}> a_{v}, b_{v};")
        lines["streams"].append(f"  a_{v}.depth = b_{v}.depth = 3;")
        count = frames * tokens
        lines["feeds"].append(f"  running.emplace_back([&] {{ feed(a_{v}, {index}, {count}); }});")
        lines["drains"].insert(0, f"  wrong += drain(b_{v}, {index}, {count}, {tokens});")
        if v in waiting(values):
            lines["waits"].append(f"  while (a_{v}.count < {TAKEN}) std::this_thread::yield();")
    main = MAIN % {
        "sources": '#include "link_tx.cpp"\n#include "link_rx.cpp"',
        "frames": frames,
        **{name: "\n".join(text) for name, text in lines.items()},
        "outs": ", ".join(f"a_{v}" for v in order),
        "ins": ", ".join(f"b_{v}" for v in order),
    }
    (folder / "main.cpp").write_text(main)
    csim = Path(__file__).parents[3] / "backends/fpga/hls/csim"
    (folder / "ap_axi_sdata.h").write_text((csim / "ap_axi_sdata.h").read_text())
    flags = "-std=c++14 -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas -pthread -I. -Ilink"
    command = [compiler(), *flags.split(), "main.cpp", "-o", "run"]
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
    binary = program(values, 3, tmp_path)
    done = subprocess.run([binary], capture_output=True, text=True, check=False, timeout=60)
    *free, wrong = done.stdout.splitlines()
    assert (done.returncode, wrong) == (0, "0 wrong")
    for value, found in zip(sorted(values), free, strict=True):
        assert value not in waiting(values) or int(found.split()[0]) <= OUT


def test_a_packet_is_one_datagram() -> None:
    """A network layer takes payloads of up to 1,408 bytes."""
    assert (PACKET + 1) * 64 <= 1408
    sender, _ = ends({"x": (16, 8)})
    assert link_files(sender, [], platform=True) == {}
