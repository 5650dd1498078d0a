// Stand-in for the vendor's header of this name where a whole board is simulated: streams between
// threads, of any length; a reader waits. Every engine of a dataflow region is a thread.
#ifndef PIPEC_SIM_HLS_STREAM_H
#define PIPEC_SIM_HLS_STREAM_H

#include <memory>
#include <thread>
#include <vector>

#include "wire.h"

namespace sim {

// The engines of the region that this thread is in.
inline std::vector<std::thread> &tasks() {
  thread_local std::vector<std::thread> found;
  return found;
}

inline void join() {
  for (std::thread &one : tasks()) one.join();
  tasks().clear();
}

}  // namespace sim

#define TASK(...) sim::tasks().emplace_back([&] { __VA_ARGS__; })
#define DATAFLOW_END sim::join()

namespace hls {

template <typename T, int DEPTH = 0>
class stream;

template <typename T>
class stream<T, 0> {
 public:
  explicit stream(const char * = "") : wire_(std::make_shared<sim::wire>(sizeof(T))) {}
  // A port of a kernel: the end of a wire between kernels.
  explicit stream(std::shared_ptr<sim::wire> wire) : wire_(std::move(wire)) {}

  void write(const T &token) { wire_->push(&token); }
  T read() {
    T token;
    wire_->pop(&token);
    return token;
  }
  bool read_nb(T &token) { return wire_->try_pop(&token); }

 private:
  std::shared_ptr<sim::wire> wire_;
};

template <typename T, int DEPTH>
class stream : public stream<T, 0> {
 public:
  explicit stream(const char *name = "") : stream<T, 0>(name) {}
};

}  // namespace hls

#endif
