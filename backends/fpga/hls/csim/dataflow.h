// What engines and streams see of dataflow.cpp, which is compiled once for all stages.
#ifndef PIPEC_CSIM_DATAFLOW_H
#define PIPEC_CSIM_DATAFLOW_H

#include <cstddef>
#include <cstdint>

namespace csim {

class fifo;

class channel {
 public:
  channel(const char *name, int depth);
  channel(const channel &) = delete;
  channel &operator=(const channel &) = delete;
  ~channel();

  void before_write();
  void before_read();
  // Cycles at which its tokens became visible: of a port, or of any stream if all are kept.
  std::size_t logged() const;
  int64_t cycle(std::size_t token) const;

 private:
  fifo *fifo_;
};

// A firing starts, `ii` cycles behind the one before it or later; its tokens leave in step `depth`.
void fire(int64_t ii, int64_t depth);
// What stands in for `ii` at the next firing.
void gap(int64_t cycles);
// An engine: what to run, what is freed behind it, and the call as text.
void spawn(const char *call, const void *body, void (*run)(const void *),
           void (*drop)(const void *));
// The end of a dataflow region: runs every engine to its end.
void run_all();

template <typename F>
void spawn(const char *call, const F &body) {
  spawn(
      call, new F(body), [](const void *with) { (*static_cast<const F *>(with))(); },
      [](const void *with) { delete static_cast<const F *>(with); });
}

}  // namespace csim

#define FIRE(II, D) csim::fire(II, D)
#define GAP(CYCLES) csim::gap(CYCLES)
#define TASK(...) csim::spawn(#__VA_ARGS__, [&] { __VA_ARGS__; })
#define DATAFLOW_END csim::run_all()

#endif
