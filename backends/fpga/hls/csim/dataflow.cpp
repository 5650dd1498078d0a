// Bounded streams on coroutines, with or without time.
//
// Pipelines are rigid: each is a shift register with one enable that moves in steps. A firing that
// starts in step p writes in step p + D - 1, and a stream has as many slots as it is deep. A firing
// is atomic: what it reads counts when the next firing begins (or the engine ends), although C++ reads
// before it writes. With time, step p happens in cycle
//
//   c(p) = max(c(p-1) + 1, cycle at which each token read in it is visible, cycle at which the slot
//              of each token that leaves in it is free)
//
// a token that leaves in step p is visible at c(p) + 1, and the slot of one that is read in it is free
// then. What is in flight when an engine ends leaves by itself. An engine that cannot go on switches
// straight to the one that can help it; where this chain of waits closes, the dataflow deadlocks, and
// its streams are named.
#if defined(PIPEC_TIMED) || defined(PIPEC_BOUNDED)
#include "dataflow.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace csim {

// Tokens of a firing on their way through a pipeline, and the step in which they leave it.
struct leaving {
  int64_t step;
  std::vector<fifo *> outs;
};

// An engine: a coroutine, and the firing that it is in, whose step is `step` and whose cycle `time`.
struct task {
  std::string name;
  void (*run)(const void *body);
  const void *body;
  void (*drop)(const void *body);
  bool started = false, done = false;
  int visited = 0;
  jmp_buf here;
  ucontext_t first;
  void *stack = nullptr;
  fifo *waits = nullptr;  // what it waits for: a token of this stream, or a slot
  bool for_token = false;
  bool fired = false;
  int64_t step = 0, time = 0, depth = 1, gap = 0;
  std::vector<fifo *> reads, writes;
  std::deque<leaving> flight;
};

constexpr std::size_t STACK = std::size_t(1) << 20;

struct world {
  std::vector<std::unique_ptr<task>> tasks;
  std::multimap<std::string, task *> users;  // identifier in a call to the tasks that have it
  std::vector<const fifo *> fifos;  // in the order in which they were first written
  task *current = nullptr;
  jmp_buf scheduler;
  int visit = 0;
};

static world &the() {
  static world w;
  return w;
}

[[noreturn]] static void deadlock(task *from);
static void block(fifo *on, bool for_token);

// Slots, and the cycles at which each is free and each token visible.
class fifo {
 public:
  fifo(const char *name, int depth) : name_(name), declared_(depth) {}

  void before_write() {
    task *me = the().current;
    if (me == nullptr) return;  // the test bench fills a port
    if (!opened_) open(declared_);
    me->writes.push_back(this);
  }

  // Waits for a slot; the cycle in which there is one.
  int64_t room() {
    if (slots_ == 0) return 0;
    while (written_ - read_ == slots_) block(this, false);
    return stamp(free_, written_);
  }

  void before_read() {
    task *me = the().current;
    if (me == nullptr || declared_ == 0) return;
    while (written_ == read_) block(this, true);
    me->time = std::max(me->time, stamp(visible_, read_));
    me->reads.push_back(this);
  }

  // The end of a firing that started at `time`.
  void end_read(int64_t time) {
    set(free_, read_, time + 1);
    ++read_;
  }
  void end_write(int64_t visible) {
    set(visible_, written_, visible);
    ++written_;
#ifdef PIPEC_TIMED
    digest_ = (digest_ ^ uint64_t(visible)) * 0x100000001b3u;
    if (declared_ == 0 || keep_all()) log_.push_back(visible);
#endif
  }

  const char *name() const { return name_; }
  bool helps(bool for_token) const {
    return for_token ? written_ > read_ : written_ - read_ < slots_;
  }
  int64_t written() const { return written_; }
  uint64_t digest() const { return digest_; }
  // Cycles at which its tokens become visible: of a port, or of any stream if all are kept.
  const std::vector<int64_t> &log() const { return log_; }

 private:
  static bool keep_all() {
    static const bool all = std::getenv("PIPEC_ALL_HANDSHAKES") != nullptr;
    return all;
  }

  void open(int64_t slots) {
    opened_ = true;
    slots_ = slots;
    the().fifos.push_back(this);
#ifdef PIPEC_TIMED
    free_.assign(std::size_t(slots), 0);
    visible_.assign(std::size_t(slots), 0);
#endif
  }

#ifdef PIPEC_TIMED
  int64_t stamp(const std::vector<int64_t> &ring, int64_t token) const {
    return ring[std::size_t(token % slots_)];
  }
  void set(std::vector<int64_t> &ring, int64_t token, int64_t cycle) {
    if (slots_ > 0) ring[std::size_t(token % slots_)] = cycle;
  }
#else
  static int64_t stamp(const std::vector<int64_t> &, int64_t) { return 0; }
  static void set(std::vector<int64_t> &, int64_t, int64_t) {}
#endif

  const char *name_;
  int64_t declared_, slots_ = 0, written_ = 0, read_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325u;
  bool opened_ = false;
  std::vector<int64_t> free_, visible_, log_;
};

// Moves a pipeline on to a step, which may wait for slots of the tokens that leave before it.
static void leave_until(task &me, int64_t step) {
  while (!me.flight.empty() && me.flight.front().step < step) {
    const leaving &first = me.flight.front();
    int64_t at = me.time + std::max<int64_t>(first.step - me.step, 0);
    for (fifo *c : first.outs) at = std::max(at, c->room());
    me.step = std::max(me.step, first.step);
    me.time = at;
    for (fifo *c : me.reads) c->end_read(at);
    for (fifo *c : first.outs) c->end_write(at + 1);
    me.reads.clear();
    me.flight.pop_front();
  }
}

// What the firing of a task read takes effect, and what it wrote is on its way.
static void commit(task &me) {
  if (!me.writes.empty()) me.flight.push_back({me.step + me.depth - 1, me.writes});
  leave_until(me, me.step + 1);
  for (fifo *c : me.reads) c->end_read(me.time);
  me.reads.clear();
  me.writes.clear();
}

void fire(int64_t ii, int64_t depth) {
  task &me = *the().current;
  commit(me);
  const int64_t due = me.fired ? me.step + (me.gap > 0 ? me.gap : ii) : 0;
  leave_until(me, due);
  me.time += due - me.step;
  me.step = due;
  me.gap = 0;
  me.depth = depth;
  me.fired = true;
}

void gap(int64_t cycles) { the().current->gap = cycles; }

static void main_of_task() {
  task &me = *the().current;
  me.run(me.body);
  commit(me);
  leave_until(me, std::numeric_limits<int64_t>::max());
  me.done = true;
  _longjmp(the().scheduler, 1);
}

[[noreturn]] static void resume(task *to) {
  the().current = to;
  if (to->started) _longjmp(to->here, 1);
  to->started = true;
  to->stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (to->stack == MAP_FAILED || getcontext(&to->first) != 0) {
    std::fprintf(stderr, "%s: no memory for a stack\n", to->name.c_str());
    std::exit(3);
  }
  to->first.uc_stack.ss_sp = to->stack;
  to->first.uc_stack.ss_size = STACK;
  to->first.uc_link = nullptr;
  makecontext(&to->first, main_of_task, 0);
  setcontext(&to->first);
  std::abort();
}

__attribute__((noinline)) static void suspend(task *from, task *to) {
  if (_setjmp(from->here) == 0) resume(to);
}

// The other end of the stream that a task waits for: the other task whose call names it.
static task *partner(const task &me) {
  const auto range = the().users.equal_range(me.waits->name());
  for (auto at = range.first; at != range.second; ++at) {
    if (at->second != &me) return at->second;
  }
  std::fprintf(stderr, "stream %s: has one end\n", me.waits->name());
  std::exit(3);
}

// Whoever can run so that, in the end, this task can: itself, or the end of its chain of waits.
static task *runnable(task *me) {
  const int visit = ++the().visit;
  while (me->waits != nullptr && !me->waits->helps(me->for_token)) {
    if (me->visited == visit) deadlock(me);
    me->visited = visit;
    task *other = partner(*me);
    if (other->done) {
      std::fprintf(stderr, "stream %s: %s\n", me->waits->name(),
                   me->for_token ? "read while empty" : "written, but its reader has ended");
      std::exit(3);
    }
    me = other;
  }
  return me;
}

static void block(fifo *on, bool for_token) {
  task *me = the().current;
  me->waits = on;
  me->for_token = for_token;
  task *next = runnable(me);
  if (next != me) suspend(me, next);
  me->waits = nullptr;
}

static void deadlock(task *from) {
  std::fprintf(stderr, "the dataflow deadlocks\n");
  task *me = from;
  do {
    std::fprintf(stderr, "    %s waits: %s is %s\n", me->name.c_str(), me->waits->name(),
                 me->for_token ? "empty" : "full");
    me = partner(*me);
  } while (me != from);
  std::exit(6);
}

// "engine::mvu_a<cfg::conv1_mvu>(...)" is the task conv1_mvu.
static std::string task_name(const std::string &call) {
  const std::size_t at = call.find("<cfg::");
  const std::size_t end = call.find_first_of(">,", at);
  return at == std::string::npos ? call : call.substr(at + 6, end - at - 6);
}

void spawn(const char *call, const void *body, void (*run)(const void *),
           void (*drop)(const void *)) {
  the().tasks.push_back(std::make_unique<task>());
  task &made = *the().tasks.back();
  made.name = task_name(call);
  made.body = body;
  made.run = run;
  made.drop = drop;
  std::string word;
  for (const char *at = call;; ++at) {
    if (std::isalnum(static_cast<unsigned char>(*at)) != 0 || *at == '_') {
      word += *at;
    } else if (!word.empty()) {
      the().users.emplace(word, &made);
      word.clear();
    }
    if (*at == '\0') break;
  }
}

// Streams with the digests of their handshake cycles, one per line, all cycles behind if kept.
static void report() {
  const char *path = std::getenv("PIPEC_HANDSHAKES");
  if (path == nullptr) return;
  std::FILE *file = std::fopen(path, "w");
  if (file == nullptr) std::exit(2);
  for (const fifo *c : the().fifos) {
    std::fprintf(file, "%s %" PRId64 " %" PRIx64, c->name(), c->written(), c->digest());
    for (const int64_t cycle : c->log()) std::fprintf(file, " %" PRId64, cycle);
    std::fprintf(file, "\n");
  }
  if (std::fclose(file) != 0) std::exit(2);
}

__attribute__((noinline)) static void run_until_done(task *wanted) {
  while (!wanted->done) {
    if (_setjmp(the().scheduler) == 0) resume(runnable(wanted));
    the().current = nullptr;
  }
}

// The end of a dataflow region: runs every engine to its end.
void run_all() {
  for (std::size_t k = 0; k < the().tasks.size(); ++k) run_until_done(the().tasks[k].get());
  report();
  for (const auto &t : the().tasks) {
    munmap(t->stack, STACK);
    t->drop(t->body);
  }
  the().users.clear();
  the().tasks.clear();
  the().fifos.clear();
}

channel::channel(const char *name, int depth) : fifo_(new fifo(name, depth)) {}
channel::~channel() { delete fifo_; }
void channel::before_write() { fifo_->before_write(); }
void channel::before_read() { fifo_->before_read(); }
std::size_t channel::logged() const { return fifo_->log().size(); }
int64_t channel::cycle(std::size_t token) const { return fifo_->log()[token]; }

}  // namespace csim
#endif
