// The data files of a stage's ports. Each may be a pipe from or to the test bench of another stage,
// so that stages run at the same time, frame after frame.
#ifndef PIPEC_PORT_FILES_H
#define PIPEC_PORT_FILES_H

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace tb {

// The data of an input. A pipe is opened without waiting for its writer; a regular file is played
// over again where it holds fewer frames than are asked for.
class inlet {
 public:
  inlet(const std::string &path, std::size_t frame)
      : path_(path), frame_(frame), file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK)) {
    struct stat facts;
    if (file_ < 0 || ::fstat(file_, &facts) != 0) fail("cannot be opened", 0);
    regular_ = S_ISREG(facts.st_mode);
    const std::size_t size = std::size_t(facts.st_size);
    if (regular_ && (size == 0 || size % frame != 0)) fail("bytes are no whole frames", size);
  }
  inlet(const inlet &) = delete;
  inlet &operator=(const inlet &) = delete;
  ~inlet() { ::close(file_); }

  int file() const { return file_; }
  const std::vector<char> &bytes() const { return bytes_; }
  bool full() const { return got_ == bytes_.size(); }

  void expect(std::size_t frames) {
    bytes_.resize(frames * frame_);
    got_ = 0;
  }

  // Reads what there is.
  void read_some() {
    const ssize_t count = ::read(file_, bytes_.data() + got_, bytes_.size() - got_);
    if (count > 0) got_ += std::size_t(count);
    if (count < 0 && errno != EAGAIN && errno != EINTR) fail("cannot be read, bytes so far", got_);
    if (count != 0) return;
    if (!regular_) fail("ends within the frames asked for, bytes so far", got_);
    ::lseek(file_, 0, SEEK_SET);
  }

 private:
  [[noreturn]] void fail(const char *why, std::size_t bytes) const {
    std::fprintf(stderr, "%s: %s: %zu\n", path_.c_str(), why, bytes);
    std::exit(2);
  }

  std::string path_;
  std::size_t frame_, got_ = 0;
  int file_;
  bool regular_ = false;
  std::vector<char> bytes_;
};

// Reads so many frames of every input, from whichever has data: the stages that send them may write
// in any order, and go on only when they have been read.
inline void take(const std::vector<inlet *> &inlets, std::size_t frames) {
  for (inlet *in : inlets) in->expect(frames);
  for (;;) {
    std::vector<inlet *> open;
    std::vector<struct pollfd> waits;
    for (inlet *in : inlets) {
      if (in->full()) continue;
      open.push_back(in);
      waits.push_back({in->file(), POLLIN, 0});
    }
    if (open.empty()) return;
    ::poll(waits.data(), nfds_t(waits.size()), -1);
    for (std::size_t k = 0; k < open.size(); ++k) {
      if (waits[k].revents != 0) open[k]->read_some();
    }
  }
}

// Where an output goes. A pipe is opened once its reader has opened it.
class outlet {
 public:
  explicit outlet(const std::string &path)
      : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (file_ == nullptr) fail();
  }
  outlet(const outlet &) = delete;
  outlet &operator=(const outlet &) = delete;
  ~outlet() { std::fclose(file_); }

  template <typename V>
  void put(const std::vector<V> &items) {
    const std::size_t count = std::fwrite(items.data(), sizeof(V), items.size(), file_);
    if (count != items.size() || std::fflush(file_) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    std::fprintf(stderr, "%s: cannot be written\n", path_.c_str());
    std::exit(2);
  }

  std::string path_;
  std::FILE *file_;
};

}  // namespace tb

#endif
