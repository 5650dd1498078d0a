// The files of a test bench, as bytes: the data of a stage's ports, tables, and the comparison with
// golden data. What is here knows no type of tokens, so that port_files.cpp is compiled once for all
// stages. A file is named by its folder and its name without the ending. The data of a port may be a pipe from or to the test bench of another stage, so that stages
// run at the same time, frame after frame.
#ifndef PIPEC_PORT_FILES_H
#define PIPEC_PORT_FILES_H

#include <cstdio>
#include <string>
#include <vector>

namespace tb {

using bytes = std::vector<char>;

// The data of an input. A pipe is opened without waiting for its writer; a regular file is played
// over again where it holds fewer frames than are asked for.
class inlet {
 public:
  inlet(const std::string &folder, const char *name, std::size_t frame);
  inlet(const inlet &) = delete;
  inlet &operator=(const inlet &) = delete;
  ~inlet();

  int file() const { return file_; }
  const bytes &data() const { return data_; }
  bool full() const { return got_ == data_.size(); }
  void expect(std::size_t frames);
  // Reads what there is.
  void read_some();

 private:
  [[noreturn]] void fail(const char *why, std::size_t bytes) const;

  std::string path_;
  std::size_t frame_, got_ = 0;
  int file_;
  bool regular_ = false;
  bytes data_;
};

// Reads so many frames of every input, from whichever has data: the stages that send them may write
// in any order, and go on only when they have been read.
void take(const std::vector<inlet *> &inlets, std::size_t frames);

// Where an output goes; nowhere if it is not open. A pipe is opened once its reader has opened it.
class outlet {
 public:
  outlet(const std::string &folder, const char *name, bool open = true);
  outlet(const outlet &) = delete;
  outlet &operator=(const outlet &) = delete;
  ~outlet();

  void put(const void *items, std::size_t size);

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::FILE *file_ = nullptr;
};

// Reads `count` items of a binary file; the last one may be cut short, by less than a beat.
void read_file(const std::string &folder, const char *name, void *items, std::size_t count,
               std::size_t item);

// Frames of a binary file; where it holds fewer than asked for, they are played over again.
void read_frames(const std::string &folder, const char *name, void *items, std::size_t frames,
                 std::size_t per_frame, std::size_t item);

// How a comparison reads numbers: what one at an address is worth, and its size.
struct numbers {
  double (*value)(const char *);
  std::size_t size;
};

// Errors that are accepted, relative to the largest magnitude: in every place, and in few of them
// (one in twenty, two at least).
struct allowed {
  allowed(double each) : each(each), few(each) {}
  allowed(double each, double few) : each(each), few(few) {}
  double each, few;
};

// Prints the largest error of an output relative to its largest magnitude; true if it is small.
// `found` are frames of tokens of `token` bytes each.
bool agree(const void *found, std::size_t count, std::size_t token, numbers as,
           const std::string &folder, const char *name, std::size_t frames, allowed by);

bool exists(const std::string &folder, const char *name);

// Prints the cycle at which each frame of an output is out, and what lies between.
void print_ends(const char *name, const std::vector<long long> &ends);

[[noreturn]] void misplaced_last(const char *name, std::size_t token);

}  // namespace tb

#endif
