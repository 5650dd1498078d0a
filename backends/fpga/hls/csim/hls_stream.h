// Stand-in for the vendor's header of this name, used only where no vendor tool is.
//
// Plain: unbounded queues; every engine runs to its end before the next one starts.
// PIPEC_BOUNDED: streams as deep as declared, engines as coroutines; a deadlock is named.
// PIPEC_TIMED: the same, every token stamped with the cycle at which it is visible.
#ifndef PIPEC_CSIM_HLS_STREAM_H
#define PIPEC_CSIM_HLS_STREAM_H

#include <cstddef>
#include <cstring>

#include "queue.h"

#if defined(PIPEC_TIMED) || defined(PIPEC_BOUNDED)
#include "dataflow.h"
#else
namespace csim {

// A stream without a bound and without time.
struct channel {
  channel(const char *, int) {}
  void before_write() {}
  void before_read() {}
};

}  // namespace csim
#endif

namespace hls {

template <typename T, int DEPTH = 0>
class stream;

// What engines see: DEPTH 0. A port of the kernel is one of these, and has no bound.
template <typename T>
class stream<T, 0> {
 public:
  explicit stream(const char *name = "(unnamed)") : stream(name, 0) {}

  void write(const T &token) {
    channel_.before_write();
    std::memcpy(queue_.push(), &token, sizeof(T));
  }
  T read() {
    channel_.before_read();
    T token;
    std::memcpy(&token, queue_.pop(), sizeof(T));
    return token;
  }
  bool empty() const { return queue_.size() == 0; }
  std::size_t size() const { return queue_.size(); }
  const csim::channel &channel() const { return channel_; }

 protected:
  stream(const char *name, int depth) : queue_(name, sizeof(T)), channel_(name, depth) {}

 private:
  csim::queue queue_;
  csim::channel channel_;
};

template <typename T, int DEPTH>
class stream : public stream<T, 0> {
 public:
  explicit stream(const char *name = "(unnamed)") : stream<T, 0>(name, DEPTH) {}
};

}  // namespace hls

#endif
