// The simulator: handshakes of a network of processes, by the rule of runs.py (free pipelines) or, in
// style `stall`, by that of a rigid pipeline: a shift register with one enable, that moves in steps.
//   push   a firing that starts in step p writes in step p + D - 1; vis = c(p + D - 1) + 1
//   stall  it starts in step (one before + delta), and cycle c(p) waits for its inputs, and for slots
//          of the tokens that leave in step p
// With `stall` the last results of a frame leave only when the inputs of the next one arrive; frames
// are therefore run on, as far as the first ones need it. In a `call` there are no more frames than
// asked for: the loop of a process ends behind its last one, and what is in flight leaves.
//
// Input (whitespace-separated integers on stdin):
//   frames until_steady call record
//   streams, then per stream its slots and the tokens that it holds at reset
//   processes, then each: depth, whether it is free, inputs n + stream numbers, outputs n + stream numbers, items of its
//   table + items; a run is "0 count delta reads n + ports writes n + ports", a loop "1 times n" in
//   front of its n items. A port of number -1, or of none, leads outside: it is always ready
// Output: "end CYCLE" per frame, "stream TOKENS EMPTY FULL LAST_EMPTY LAST_FULL DIGEST" per
//   stream, "steady 0|1"; or "wait PROCESS STREAM EMPTY" per blocked process. Handshake cycles go to
//   the file argv[1].
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

// A number in [0, end), where `end` is the size of what it indexes.
std::size_t below(std::size_t end) {
  const i64 value = number();
  if (value < 0 || static_cast<std::size_t>(value) >= end) std::exit(3);
  return static_cast<std::size_t>(value);
}

// FNV-1a over whole words.
struct hash {
  uint64_t value = 0xcbf29ce484222325u;
  void see(i64 word) { value = (value ^ uint64_t(word)) * 0x100000001b3u; }
};

struct fifo {
  i64 slots = 0, initial = 0, written = 0, read = 0, empty = 0, full = 0;
  i64 empty_before = 0, full_before = 0;
  i64 put = 0, get = 0;  // written and read modulo slots
  std::vector<i64> vis, free, log;
  hash digest;
  int producer = -1, consumer = -1;
};

// A run of firings, or the head of a loop that ends before item `end`.
struct item {
  bool loop;
  i64 count, delta;
  std::size_t end;
  std::vector<fifo *> reads, writes;
};

using table = std::vector<item>;

// Walks a table: the runs in order, loops unrolled.
class walker {
 public:
  explicit walker(table items) : items_(std::move(items)) {}

  const item *next() {
    for (;;) {
      while (!loops_.empty() && at_ == loops_.back().end) {
        if (--loops_.back().left > 0) {
          at_ = loops_.back().begin;
        } else {
          loops_.pop_back();
        }
      }
      if (at_ == items_.size()) {
        at_ = 0;
        return nullptr;
      }
      const item &found = items_[at_++];
      if (!found.loop) return &found;
      loops_.push_back({found.count, at_, found.end});
    }
  }

 private:
  struct loop {
    i64 left;
    std::size_t begin, end;
  };
  table items_;
  std::vector<loop> loops_;
  std::size_t at_ = 0;
};

bool keep_log = false;
bool call = false;  // pipelines end behind the last frame

// Tokens of a firing on their way through a rigid pipeline, and the step in which they leave it.
struct leaving {
  i64 step;
  const std::vector<fifo *> *outs;
};

struct process {
  process(i64 d, bool f, std::vector<fifo *> i, std::vector<fifo *> o, table items)
      : depth(d), free(f), ins(std::move(i)), outs(std::move(o)), runs(std::move(items)) {}

  i64 depth, left = 0, time = 0, frames = 0, blocked = -1;
  int part = 0;  // of the network: parts have no stream in common
  i64 step = 0, lag = 0;  // rigid: the step of the last firing, and cycle less step
  bool free;
  bool started = false, queued = false, blocked_empty = false;
  std::vector<fifo *> ins, outs;
  walker runs;
  const item *now = nullptr;
  std::deque<leaving> flight;
  std::vector<i64> times;
  std::vector<uint64_t> shapes;  // per frame what the future depends on, relative to its end

  bool done() const { return i64(times.size()) == frames; }

  void end_frame() {
    times.push_back(time);
    hash shape;
    for (const fifo *f : ins) {
      for (i64 k = 0; k < f->slots; ++k) {
        shape.see(f->free[std::size_t((f->get + k) % f->slots)] - time);
      }
    }
    for (const fifo *f : outs) {  // the last tokens, as many as were there at reset
      for (i64 k = f->written - f->initial; k < f->written; ++k) {
        shape.see(f->vis[static_cast<std::size_t>(k % f->slots)] - time);
      }
    }
    shapes.push_back(shape.value);
  }

  bool next_run() {
    while ((now = runs.next()) == nullptr) {
      end_frame();
      if (done()) return false;
    }
    left = now->count;
    return true;
  }

  i64 ready(const std::vector<fifo> &all) {
    i64 can = left;
    for (const fifo *f : now->reads) {
      if (f->written - f->read < can) {
        can = f->written - f->read;
        blocked = f - all.data();
        blocked_empty = true;
      }
    }
    for (const fifo *f : now->writes) {
      if (f->slots - (f->written - f->read) < can) {
        can = f->slots - (f->written - f->read);
        blocked = f - all.data();
        blocked_empty = false;
      }
    }
    return can;
  }

  static void pop(fifo *f, i64 at) {
    f->free[std::size_t(f->get)] = at + 1;
    if (++f->get == f->slots) f->get = 0;
    ++f->read;
  }

  static void push(fifo *f, i64 at) {
    f->vis[std::size_t(f->put)] = at;
    f->digest.see(at);
    if (++f->put == f->slots) f->put = 0;
    ++f->written;
    if (keep_log) f->log.push_back(at);
  }

  // A cycle not before t at which tokens (slots) are there; delays are charged to who causes them.
  static i64 wait_tokens(const std::vector<fifo *> &reads, i64 t) {
    for (fifo *f : reads) {
      const i64 at = f->vis[std::size_t(f->get)];
      if (at > t) {
        f->empty += at - t;
        t = at;
      }
    }
    return t;
  }

  static i64 wait_slots(const std::vector<fifo *> &writes, i64 t) {
    for (fifo *f : writes) {
      const i64 at = f->free[std::size_t(f->put)];
      if (at > t) {
        f->full += at - t;
        t = at;
      }
    }
    return t;
  }

  void fire(i64 times_now) {
    i64 t = started ? time : -now->delta;
    for (i64 i = 0; i < times_now; ++i) {
      t = wait_slots(now->writes, wait_tokens(now->reads, t + now->delta));
      for (fifo *f : now->reads) pop(f, t);
      for (fifo *f : now->writes) push(f, t + depth);
    }
    time = t;
    started = true;
  }

  bool has_slots(const std::vector<fifo *> &outs_now, const std::vector<fifo> &all) {
    for (const fifo *f : outs_now) {
      if (f->slots > f->written - f->read) continue;
      blocked = f - all.data();
      blocked_empty = false;
      return false;
    }
    return true;
  }

  bool has_tokens(const std::vector<fifo> &all) {
    for (const fifo *f : now->reads) {
      if (f->written > f->read) continue;
      blocked = f - all.data();
      blocked_empty = true;
      return false;
    }
    return true;
  }

  void leave() {
    for (fifo *f : *flight.front().outs) push(f, flight.front().step + lag + 1);
    flight.pop_front();
  }

  // What happens in one step of a rigid pipeline waits for one another: a firing, and the tokens
  // of an earlier one that leave. Tokens that leave before the next firing is due need no firing.
  bool advance_rigid(const std::vector<fifo> &all) {
    bool moved = false;
    while (!done()) {
      if (left == 0 && !next_run()) return drained(all) || true;
      const i64 due = started ? step + now->delta : 0;
      while (!flight.empty() && flight.front().step < due) {
        if (!has_slots(*flight.front().outs, all)) return moved;
        lag = wait_slots(*flight.front().outs, flight.front().step + lag) - flight.front().step;
        leave();
        moved = true;
      }
      if (!has_tokens(all)) return moved;
      if (!now->writes.empty()) flight.push_back({due + depth - 1, &now->writes});
      const bool leaves = !flight.empty() && flight.front().step == due;
      if (leaves && !has_slots(*flight.front().outs, all)) {
        if (!now->writes.empty()) flight.pop_back();
        return moved;
      }
      i64 t = wait_tokens(now->reads, due + lag);
      if (leaves) t = wait_slots(*flight.front().outs, t);
      lag = t - due;
      for (fifo *f : now->reads) pop(f, t);
      if (leaves) leave();
      step = due;
      time = t;
      started = moved = true;
      --left;
    }
    return drained(all) || moved;
  }

  // What is in flight leaves behind the last frame of a call.
  bool drained(const std::vector<fifo> &all) {
    bool moved = false;
    while (call && !flight.empty() && has_slots(*flight.front().outs, all)) {
      const i64 at = wait_slots(*flight.front().outs, flight.front().step + lag);
      lag = at - flight.front().step;
      leave();
      moved = true;
    }
    return moved;
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

// Advance all until nothing more is known; whether a connected process of these parts moved.
bool settle(std::vector<process> &all, const std::vector<fifo> &fifos,
            const std::vector<bool> &parts) {
  bool any = false;
  std::deque<int> queue;
  for (std::size_t k = 0; k < all.size(); ++k) {
    all[k].queued = true;
    queue.push_back(int(k));
  }
  const auto wake = [&](int k) {
    if (k < 0 || all[std::size_t(k)].queued) return;
    all[std::size_t(k)].queued = true;
    queue.push_back(k);
  };
  while (!queue.empty()) {
    process &p = all[std::size_t(queue.front())];
    queue.pop_front();
    p.queued = false;
    if (!(p.free ? p.advance(fifos) : p.advance_rigid(fifos))) continue;
    any = any || (parts[std::size_t(p.part)] && !(p.ins.empty() && p.outs.empty()));
    for (const fifo *f : p.ins) wake(f->producer);
    for (const fifo *f : p.outs) wake(f->consumer);
  }
  return any;
}

// Run every process through a frame. Of rigid pipelines the last results of a frame may leave only
// when the next one arrives, so frames are run on as far as this one needs it. What stands still is
// not waited for: another part of the network could run for ever.
void one_frame(std::vector<process> &all, const std::vector<fifo> &fifos, std::size_t frame) {
  const auto behind = [&](const process &p) { return p.times.size() < frame; };
  const i64 before = all.empty() ? 0 : all[0].frames;
  for (i64 limit = std::max(before, i64(frame));; ++limit) {
    for (process &p : all) p.frames = limit;
    std::vector<bool> late(all.size());
    for (const process &p : all) {
      if (behind(p)) late[std::size_t(p.part)] = true;
    }
    const bool moved = settle(all, fifos, late);
    const bool rigid = std::any_of(all.begin(), all.end(), [](auto &p) { return !p.free; });
    if (call || !rigid || std::none_of(all.begin(), all.end(), behind)) return;
    if (!moved && limit > before) return;
  }
}

bool is_steady(const std::vector<process> &all, std::size_t n) {
  if (n < 2) return false;
  if (all.empty()) return true;
  const i64 step = all[0].times[n - 1] - all[0].times[n - 2];
  return std::all_of(all.begin(), all.end(), [&](const process &p) {
    return p.times[n - 1] - p.times[n - 2] == step && p.shapes[n - 1] == p.shapes[n - 2];
  });
}

// The streams of a process's ports, null where they lead outside.
std::vector<fifo *> ports(std::vector<fifo> &fifos, int process, bool reads) {
  std::vector<fifo *> found(static_cast<std::size_t>(number()));
  for (fifo *&f : found) {
    const i64 stream = number();
    if (stream == -1) continue;
    if (stream < 0 || static_cast<std::size_t>(stream) >= fifos.size()) std::exit(3);
    f = &fifos[static_cast<std::size_t>(stream)];
    (reads ? f->consumer : f->producer) = process;
  }
  return found;
}

std::vector<fifo *> inner(std::vector<fifo *> of) {
  of.erase(std::remove(of.begin(), of.end(), nullptr), of.end());
  return of;
}

std::vector<fifo *> some(const std::vector<fifo *> &of) {
  std::vector<fifo *> found(static_cast<std::size_t>(number()));
  for (fifo *&f : found) {
    const auto port = static_cast<std::size_t>(number());
    f = port < of.size() ? of[port] : nullptr;
  }
  return inner(found);
}

table read_table(const std::vector<fifo *> &ins, const std::vector<fifo *> &outs) {
  table items(static_cast<std::size_t>(number()));
  for (std::size_t k = 0; k < items.size(); ++k) {
    item &t = items[k];
    t.loop = number() != 0;
    t.count = number();
    if (t.loop) {
      t.end = k + 1 + below(items.size() - k);
    } else {
      t.delta = number();
      t.reads = some(ins);
      t.writes = some(outs);
    }
  }
  return items;
}

std::vector<process> read_processes(std::vector<fifo> &fifos) {
  std::vector<process> all;
  const int count = int(number());
  for (int k = 0; k < count; ++k) {
    const i64 depth = number();
    const bool free = number() != 0;
    const std::vector<fifo *> ins = ports(fifos, k, true), outs = ports(fifos, k, false);
    table items = read_table(ins, outs);
    all.emplace_back(depth, free, inner(ins), inner(outs), std::move(items));
    all.back().part = k;
  }
  for (const fifo &f : fifos) {
    if (f.producer < 0 || f.consumer < 0) continue;
    const int from = all[std::size_t(f.producer)].part, to = all[std::size_t(f.consumer)].part;
    for (process &p : all) p.part = p.part == from ? to : p.part;
  }
  return all;
}

void print_ends(const std::vector<process> &all, std::size_t frames) {
  const bool any = std::any_of(all.begin(), all.end(), [](auto &p) { return p.outs.empty(); });
  for (std::size_t f = 0; f < frames; ++f) {
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
  call = number() != 0;
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
  for (process &p : all) p.frames = call ? frames : 0;
  bool steady = false;
  std::size_t done = 0;
  while (i64(done) < frames && !(until_steady != 0 && steady)) {
    for (fifo &f : fifos) {
      f.empty_before = f.empty;
      f.full_before = f.full;
    }
    one_frame(all, fifos, ++done);
    if (std::any_of(all.begin(), all.end(), [&](auto &p) { return p.times.size() < done; })) {
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (all[k].done()) continue;
        std::printf("wait %zu %" PRId64 " %d\n", k, all[k].blocked, int(all[k].blocked_empty));
      }
      return 0;
    }
    steady = is_steady(all, done);
  }
  print_ends(all, done);
  for (const fifo &f : fifos) {
    std::printf("stream %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64 "\n",
                f.written - f.initial, f.empty, f.full, f.empty - f.empty_before, f.full - f.full_before,
                f.digest.value);
  }
  std::printf("steady %d\n", int(steady));
  if (keep_log) write_logs(fifos, argv[1]);
  return 0;
}
