// What every test bench shares: files to streams and back, and the comparison.
#ifndef PIPEC_TESTBENCH_H
#define PIPEC_TESTBENCH_H

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engines/axis.h"
#include "engines/memory.h"
#include "port_files.h"

namespace tb {

// The `count` items of a binary file.
template <typename V>
std::vector<V> read_file(const std::string &folder, const char *name, std::size_t count) {
  std::vector<V> items(count);
  read_file(folder, name, items.data(), count, sizeof(V));
  return items;
}

// Appends a table of so many beats to the image of all tables.
template <typename T>
void append(std::vector<T> &image, std::size_t beats, const std::string &folder,
            const char *name) {
  const std::size_t size = beats * engine::beat_of<T>::LANES;
  image.resize(image.size() + size);
  read_file(folder, name, &image[image.size() - size], beats, sizeof(engine::beat<T>));
}

template <typename T, int P>
void fill(engine::axis_stream<T, P> &stream, const inlet &from) {
  for (std::size_t at = 0; at < from.data().size(); at += sizeof(vec<T, P>)) {
    hls::axis<vec<T, P>, 0, 0, 0> word;
    std::memcpy(&word.data, from.data().data() + at, sizeof(word.data));
    word.keep = -1;
    word.strb = -1;
    word.last = false;
    stream.write(word);
  }
}

// The tokens of a stage output; TLAST must mark the end of each frame and nothing else.
template <typename T, int P>
bytes drain(engine::axis_stream<T, P> &stream, const char *name, std::size_t frames,
            std::size_t per_frame) {
  bytes found(frames * per_frame * sizeof(vec<T, P>));
  for (std::size_t i = 0; i < frames * per_frame; ++i) {
    const hls::axis<vec<T, P>, 0, 0, 0> word = stream.read();
    if (bool(word.last) != (i % per_frame == per_frame - 1)) misplaced_last(name, i);
    std::memcpy(&found[i * sizeof(word.data)], &word.data, sizeof(word.data));
  }
  return found;
}

template <typename T>
double value_at(const char *place) {
  T number;
  std::memcpy(&number, place, sizeof(T));
  return double(number);
}

// The comparison of tokens with those of a file.
template <typename T, int P>
bool agree(const bytes &found, const std::string &folder, const char *name, std::size_t frames,
           allowed by) {
  const std::size_t token = sizeof(vec<T, P>);
  return agree(found.data(), found.size() / token, token, {value_at<T>, sizeof(T)}, folder, name,
               frames, by);
}

// Memory that kernels share: a ring of frames, as another kernel left it, zero if none did. Where
// golden data is played, every slot that a kernel reads holds the golden frame.
template <typename V>
std::vector<V> memory(const std::string &data, const char *name, std::size_t frame,
                      std::size_t slots, bool reads, bool golden) {
  std::vector<V> found(slots * frame, V());
  if (golden && reads) {
    read_frames(data, name, found.data(), slots, frame, sizeof(V));
  } else if (!golden && exists(data, name)) {
    read_file(data, name, found.data(), slots * frame, sizeof(V));
  }
  return found;
}

// What a kernel left in memory: the first frame is compared, or all of it is kept in a file.
template <typename T, int P>
bool leave(const std::vector<vec<T, P>> &memory, const std::string &data, const char *name,
           std::size_t frame, bool compare, allowed by) {
  const std::size_t token = sizeof(vec<T, P>);
  if (compare) {
    return agree(memory.data(), frame, token, {value_at<T>, sizeof(T)}, data, name, 1, by);
  }
  outlet(data, name).put(memory.data(), memory.size() * token);
  return true;
}

// In a build with time: the cycle at which each frame of an output is out, and what lies between.
template <typename T, int P>
void print_cycles(const engine::axis_stream<T, P> &stream, const char *name, std::size_t frames) {
#ifdef PIPEC_TIMED
  const csim::channel &log = stream.channel();
  std::vector<long long> ends;
  for (std::size_t f = 1; f <= frames; ++f) ends.push_back(log.cycle(log.logged() / frames * f - 1));
  print_ends(name, ends);
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
