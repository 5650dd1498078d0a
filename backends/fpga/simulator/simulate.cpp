// The fast simulator: the semantics of plain.py, compiled.
//
// Input (whitespace-separated integers on stdin):
//   frames until_steady record
//   streams, then per stream its slots and the tokens that it holds at reset
//   processes, then each: depth, inputs n + stream numbers, outputs n + stream numbers,
//   length of its code + code; a run is "0 count delta reads writes", a loop "1 times length body"
// Output: "end CYCLE" per frame, "stream TOKENS EMPTY FULL LAST_EMPTY LAST_FULL DIGEST" per
//   stream, "steady 0|1"; or "wait PROCESS STREAM EMPTY" per blocked process. Handshake cycles go to the file argv[1].
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

namespace {

using i64 = int64_t;

i64 number() {
  i64 value = 0;
  if (std::scanf("%" SCNd64, &value) != 1) std::exit(2);
  return value;
}

struct fifo {
  i64 slots = 0, initial = 0, written = 0, read = 0, empty = 0, full = 0;
  i64 empty_before = 0, full_before = 0;
  i64 put = 0, get = 0;  // written and read modulo slots
  std::vector<i64> vis, free, log;
  uint64_t digest = 0xcbf29ce484222325u;
  int producer = -1, consumer = -1;
};

struct run {
  i64 count, delta, reads, writes;
};

// Walks a table's code: the runs in order, loops unrolled.
class walker {
 public:
  explicit walker(std::vector<i64> code) : code_(std::move(code)) {}

  bool next(run &r) {
    for (;;) {
      while (!loops_.empty() && at_ == loops_.back().end) {
        if (--loops_.back().left > 0) {
          at_ = loops_.back().begin;
        } else {
          loops_.pop_back();
        }
      }
      if (at_ == code_.size()) {
        at_ = 0;
        return false;
      }
      if (code_[at_] == 0) {
        r = {code_[at_ + 1], code_[at_ + 2], code_[at_ + 3], code_[at_ + 4]};
        at_ += 5;
        return true;
      }
      const std::size_t first = at_ + 3;
      loops_.push_back({code_[at_ + 1], first, first + std::size_t(code_[at_ + 2])});
      at_ = first;
    }
  }

 private:
  struct loop {
    i64 left;
    std::size_t begin, end;
  };
  std::vector<i64> code_;
  std::vector<loop> loops_;
  std::size_t at_ = 0;
};

bool keep_log = false;

struct process {
  process(i64 d, std::vector<fifo *> i, std::vector<fifo *> o, std::vector<i64> code)
      : depth(d), ins(std::move(i)), outs(std::move(o)), table(std::move(code)) {}

  i64 depth, left = 0, time = 0, frames = 0, blocked = -1;
  bool started = false, queued = false, blocked_empty = false;
  std::vector<fifo *> ins, outs, reads, writes;
  walker table;
  run now = {0, 0, 0, 0};
  std::vector<i64> times, shape, last_shape;

  bool done() const { return i64(times.size()) == frames; }

  void end_frame() {
    times.push_back(time);
    last_shape.swap(shape);
    shape.clear();
    for (const fifo *f : ins) {
      for (i64 k = 0; k < f->slots; ++k) {
        shape.push_back(f->free[std::size_t((f->get + k) % f->slots)] - time);
      }
    }
    for (const fifo *f : outs) see_newest(*f);
  }

  // Visibility times of the last tokens, as many as were there at reset.
  void see_newest(const fifo &f) {
    for (i64 k = f.written - f.initial; k < f.written; ++k) {
      shape.push_back(f.vis[static_cast<std::size_t>(k % f.slots)] - time);
    }
  }

  bool next_run() {
    while (!table.next(now)) {
      end_frame();
      if (done()) return false;
    }
    left = now.count;
    reads.clear();
    writes.clear();
    for (std::size_t k = 0; k < ins.size(); ++k) {
      if (now.reads >> k & 1) reads.push_back(ins[k]);
    }
    for (std::size_t k = 0; k < outs.size(); ++k) {
      if (now.writes >> k & 1) writes.push_back(outs[k]);
    }
    return true;
  }

  i64 ready(const std::vector<fifo> &all) {
    i64 can = left;
    for (const fifo *f : reads) {
      if (f->written - f->read < can) {
        can = f->written - f->read;
        blocked = f - all.data();
        blocked_empty = true;
      }
    }
    for (const fifo *f : writes) {
      if (f->slots - (f->written - f->read) < can) {
        can = f->slots - (f->written - f->read);
        blocked = f - all.data();
        blocked_empty = false;
      }
    }
    return can;
  }

  void fire(i64 times_now) {
    i64 t = started ? time : -now.delta;
    for (i64 i = 0; i < times_now; ++i) {
      t += now.delta;
      for (fifo *f : reads) {
        const i64 at = f->vis[std::size_t(f->get)];
        if (at > t) {
          f->empty += at - t;
          t = at;
        }
      }
      for (fifo *f : writes) {
        const i64 at = f->free[std::size_t(f->put)];
        if (at > t) {
          f->full += at - t;
          t = at;
        }
      }
      for (fifo *f : reads) {
        f->free[std::size_t(f->get)] = t + 1;
        if (++f->get == f->slots) f->get = 0;
      }
      for (fifo *f : writes) {
        f->vis[std::size_t(f->put)] = t + depth;
        f->digest = (f->digest ^ uint64_t(t + depth)) * 0x100000001b3u;
        if (++f->put == f->slots) f->put = 0;
        if (keep_log) f->log.push_back(t + depth);
      }
    }
    for (fifo *f : reads) f->read += times_now;
    for (fifo *f : writes) f->written += times_now;
    time = t;
    started = true;
  }

  bool advance(const std::vector<fifo> &all) {
    bool moved = false;
    while (!done()) {
      if (left == 0 && !next_run()) return true;
      const i64 can = ready(all);
      if (can > 0) {
        fire(can);
        left -= can;
        moved = true;
      }
      if (left > 0) return moved;
    }
    return moved;
  }
};

void one_frame(std::vector<process> &all, const std::vector<fifo> &fifos) {
  std::deque<int> queue;
  for (std::size_t k = 0; k < all.size(); ++k) {
    ++all[k].frames;
    all[k].queued = true;
    queue.push_back(int(k));
  }
  const auto wake = [&](int k) {
    if (k < 0 || all[std::size_t(k)].queued || all[std::size_t(k)].done()) return;
    all[std::size_t(k)].queued = true;
    queue.push_back(k);
  };
  while (!queue.empty()) {
    process &p = all[std::size_t(queue.front())];
    queue.pop_front();
    p.queued = false;
    if (p.done() || !p.advance(fifos)) continue;
    for (const fifo *f : p.ins) wake(f->producer);
    for (const fifo *f : p.outs) wake(f->consumer);
  }
}

bool is_steady(const std::vector<process> &all) {
  const std::size_t n = all[0].times.size();
  if (n < 2) return false;
  const i64 step = all[0].times[n - 1] - all[0].times[n - 2];
  return std::all_of(all.begin(), all.end(), [&](const process &p) {
    return p.times[n - 1] - p.times[n - 2] == step && p.shape == p.last_shape;
  });
}

std::vector<fifo *> ports(std::vector<fifo> &fifos, int process, bool reads) {
  std::vector<fifo *> found(static_cast<std::size_t>(number()));
  for (fifo *&f : found) {
    f = &fifos[static_cast<std::size_t>(number())];
    (reads ? f->consumer : f->producer) = process;
  }
  return found;
}

std::vector<process> read_processes(std::vector<fifo> &fifos) {
  std::vector<process> all;
  const int count = int(number());
  for (int k = 0; k < count; ++k) {
    const i64 depth = number();
    std::vector<fifo *> ins = ports(fifos, k, true), outs = ports(fifos, k, false);
    std::vector<i64> code(static_cast<std::size_t>(number()));
    for (i64 &word : code) word = number();
    all.emplace_back(depth, std::move(ins), std::move(outs), std::move(code));
  }
  return all;
}

void print_ends(const std::vector<process> &all) {
  const bool any = std::any_of(all.begin(), all.end(), [](auto &p) { return p.outs.empty(); });
  for (std::size_t f = 0; f < all[0].times.size(); ++f) {
    i64 end = 0;
    for (const process &p : all) {
      if (p.outs.empty() || !any) end = std::max(end, p.times[f] + p.depth);
    }
    std::printf("end %" PRId64 "\n", end);
  }
}

void write_logs(const std::vector<fifo> &fifos, const char *path) {
  std::FILE *file = std::fopen(path, "wb");
  if (file == nullptr) std::exit(2);
  for (const fifo &f : fifos) std::fwrite(f.log.data(), sizeof(i64), f.log.size(), file);
  if (std::fclose(file) != 0) std::exit(2);
}

}  // namespace

int main(int argc, char **argv) {
  const i64 frames = number(), until_steady = number();
  keep_log = number() != 0 && argc > 1;
  std::vector<fifo> fifos(static_cast<std::size_t>(number()));
  for (fifo &f : fifos) {
    f.slots = number();
    f.initial = f.written = number();
    f.put = f.initial % f.slots;
    f.vis.assign(std::size_t(f.slots), 0);
    f.free.assign(std::size_t(f.slots), 0);
  }
  std::vector<process> all = read_processes(fifos);
  bool steady = false;
  for (i64 frame = 0; frame < frames && !(until_steady != 0 && steady); ++frame) {
    for (fifo &f : fifos) {
      f.empty_before = f.empty;
      f.full_before = f.full;
    }
    one_frame(all, fifos);
    bool waits = false;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k].done()) continue;
      std::printf("wait %zu %" PRId64 " %d\n", k, all[k].blocked, int(all[k].blocked_empty));
      waits = true;
    }
    if (waits) return 0;
    steady = is_steady(all);
  }
  print_ends(all);
  for (const fifo &f : fifos) {
    std::printf("stream %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64 "\n",
                f.written - f.initial, f.empty, f.full, f.empty - f.empty_before, f.full - f.full_before,
                f.digest);
  }
  std::printf("steady %d\n", int(steady));
  if (keep_log) write_logs(fifos, argv[1]);
  return 0;
}
