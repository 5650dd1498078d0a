// Stand-in for the vendor's header of this name, for `benchmarks.hls_check` alone: a FIFO
// is two opaque functions, so that a compiler knows nothing of what it holds.
#ifndef PIPEC_CHECK_HLS_STREAM_H
#define PIPEC_CHECK_HLS_STREAM_H

extern "C" {
const void *pipec_fifo_read(const void *fifo);
void *pipec_fifo_write(const void *fifo);
void pipec_pipeline(int ii);
void pipec_fire(int ii, int depth);
void pipec_gap(int cycles);
}

#define FIRE(II, D) pipec_fire(II, D)
#define GAP(CYCLES) pipec_gap(CYCLES)

namespace hls {

template <typename T, int DEPTH = 0>
class stream;

template <typename T>
class stream<T, 0> {
 public:
  explicit stream(const char * = "") {}
  void write(const T &token) { *static_cast<T *>(pipec_fifo_write(this)) = token; }
  T read() { return *static_cast<const T *>(pipec_fifo_read(this)); }
  void read(T &token) { token = read(); }
  void operator<<(const T &token) { write(token); }
  void operator>>(T &token) { token = read(); }
  bool full() const { return pipec_fifo_read(this) == nullptr; }
  bool empty() const { return pipec_fifo_read(this) == nullptr; }
  bool read_nb(T &token) {
    const void *found = pipec_fifo_read(this);
    if (found != nullptr) token = *static_cast<const T *>(found);
    return found != nullptr;
  }

 private:
  char identity_ = 0;
};

template <typename T, int DEPTH>
class stream : public stream<T, 0> {
 public:
  explicit stream(const char *name = "") : stream<T, 0>(name) {}
};

}  // namespace hls

#endif
