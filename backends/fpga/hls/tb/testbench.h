// What every test bench shares: files to streams and back, and the comparison.
#ifndef PIPEC_TESTBENCH_H
#define PIPEC_TESTBENCH_H

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engines/axis.h"
#include "engines/memory.h"
#include "port_files.h"

namespace tb {

// The items of a binary file; the last one may be cut short, by less than a beat.
template <typename V>
std::vector<V> read_items(const std::string &path) {
  std::FILE *file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::fprintf(stderr, "%s: cannot be opened\n", path.c_str());
    std::exit(2);
  }
  std::fseek(file, 0, SEEK_END);
  const std::size_t bytes = std::size_t(std::ftell(file));
  std::fseek(file, 0, SEEK_SET);
  std::vector<V> items((bytes + sizeof(V) - 1) / sizeof(V));
  const bool whole = std::fread(items.data(), 1, bytes, file) == bytes;
  std::fclose(file);
  if (!whole || items.size() * sizeof(V) - bytes >= 64) {
    std::fprintf(stderr, "%s: %zu bytes are no whole items\n", path.c_str(), bytes);
    std::exit(2);
  }
  return items;
}

// The `count` items of a binary file.
template <typename V>
std::vector<V> read_file(const std::string &path, std::size_t count) {
  std::vector<V> items = read_items<V>(path);
  if (items.size() != count) {
    std::fprintf(stderr, "%s: %zu items, want %zu\n", path.c_str(), items.size(), count);
    std::exit(2);
  }
  return items;
}

// Frames of a binary file; where it holds fewer than asked for, they are played over again.
template <typename V>
std::vector<V> read_frames(const std::string &path, std::size_t frames, std::size_t per_frame) {
  std::vector<V> items = read_items<V>(path);
  if (items.empty() || items.size() % per_frame != 0) {
    std::fprintf(stderr, "%s: %zu items, want frames of %zu\n", path.c_str(), items.size(),
                 per_frame);
    std::exit(2);
  }
  const std::size_t held = items.size();
  items.resize(frames * per_frame);
  for (std::size_t i = held; i < items.size(); ++i) items[i] = items[i - held];
  return items;
}

// Appends a table of so many beats to the image of all tables.
template <typename T>
void append(std::vector<engine::beat<T>> &image, std::size_t beats, const std::string &path) {
  const std::vector<engine::beat<T>> table = read_file<engine::beat<T>>(path, beats);
  image.insert(image.end(), table.begin(), table.end());
}

template <typename T, int P>
void fill(engine::axis_stream<T, P> &stream, const inlet &from) {
  for (std::size_t at = 0; at < from.bytes().size(); at += sizeof(vec<T, P>)) {
    hls::axis<vec<T, P>, 0, 0, 0> word;
    std::memcpy(&word.data, from.bytes().data() + at, sizeof(word.data));
    word.keep = -1;
    word.strb = -1;
    word.last = false;
    stream.write(word);
  }
}

// The tokens of a stage output; TLAST must mark the end of each frame and nothing else.
template <typename T, int P>
std::vector<vec<T, P>> drain(engine::axis_stream<T, P> &stream, const char *name,
                             std::size_t frames, std::size_t per_frame) {
  std::vector<vec<T, P>> found;
  for (std::size_t i = 0; i < frames * per_frame; ++i) {
    const hls::axis<vec<T, P>, 0, 0, 0> word = stream.read();
    if (bool(word.last) != (i % per_frame == per_frame - 1)) {
      std::fprintf(stderr, "%s: TLAST is wrong at token %zu\n", name, i);
      std::exit(4);
    }
    found.push_back(word.data);
  }
  return found;
}

// Prints the largest error of an output relative to its largest magnitude; true if it is small.
template <typename T, int P>
bool agree(const std::vector<vec<T, P>> &found, const std::string &path, const char *name,
           std::size_t frames, double tolerance) {
  const std::vector<vec<T, P>> want = read_frames<vec<T, P>>(path, frames, found.size() / frames);
  double error = 0, largest = 0;
  bool finite = true;
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (int p = 0; p < P; ++p) {
      const double a = double(found[i].lane[p]), b = double(want[i].lane[p]);
      if (std::isfinite(b)) largest = std::fmax(largest, std::fabs(b));
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      finite = finite && std::isfinite(a - b);
      error = std::fmax(error, std::fabs(a - b));
    }
  }
  const bool ok = finite && error <= tolerance * std::fmax(largest, 1e-30);
  std::printf("%-32s max error %.3g, largest value %.3g, relative %.3g, tolerance %.3g: %s\n", name,
              error, largest, largest > 0 ? error / largest : error, tolerance,
              ok ? "ok" : "FAILED");
  return ok;
}

// Memory that kernels share: a ring of frames, as another kernel left it, zero if none did. Where
// golden data is played, every slot that a kernel reads holds the golden frame.
template <typename V>
std::vector<V> memory(const std::string &data, const char *name, std::size_t frame,
                      std::size_t slots, bool reads, bool golden) {
  const std::string path = data + "/" + name + ".bin";
  if (golden && reads) return read_frames<V>(path, slots, frame);
  if (golden || ::access(path.c_str(), F_OK) != 0) return std::vector<V>(slots * frame, V());
  return read_file<V>(path, slots * frame);
}

// What a kernel left in memory: the first frame is compared, or all of it is kept in a file.
template <typename T, int P>
bool leave(const std::vector<vec<T, P>> &memory, const std::string &data, const char *name,
           std::size_t frame, bool compare, double tolerance) {
  const std::string path = data + "/" + name + ".bin";
  if (!compare) {
    outlet(path).put(memory);
    return true;
  }
  const std::vector<vec<T, P>> first(memory.begin(), memory.begin() + std::ptrdiff_t(frame));
  return agree(first, path, name, 1, tolerance);
}

// In a build with time: the cycle at which each frame of an output is out, and what lies between.
template <typename T, int P>
void print_cycles(const engine::axis_stream<T, P> &stream, const char *name, std::size_t frames) {
#ifdef PIPEC_TIMED
  const std::vector<int64_t> &log = stream.channel().log();
  int64_t before = 0;
  std::printf("%-32s frames are out at cycles", name);
  for (std::size_t f = 1; f <= frames; ++f) {
    const int64_t end = log[log.size() / frames * f - 1];
    std::printf(" %lld (+%lld)", static_cast<long long>(end), static_cast<long long>(end - before));
    before = end;
  }
  std::printf("\n");
#else
  (void)stream, (void)name, (void)frames;
#endif
}

// What the simulation itself has to say: tokens that nothing read are an error.
inline int status() {
#ifdef PIPEC_CSIM_HLS_STREAM_H
  return csim::leftovers() == 0 ? 0 : 5;
#else
  return 0;
#endif
}

}  // namespace tb

#endif
