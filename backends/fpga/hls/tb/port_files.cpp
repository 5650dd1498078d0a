// See port_files.h.
#include "port_files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace tb {

static std::string path_of(const std::string &folder, const char *name) {
  return folder + "/" + name + ".bin";
}

inlet::inlet(const std::string &folder, const char *name, std::size_t frame)
    : path_(path_of(folder, name)),
      frame_(frame),
      file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK)) {
  struct stat facts;
  if (file_ < 0 || ::fstat(file_, &facts) != 0) fail("cannot be opened", 0);
  regular_ = S_ISREG(facts.st_mode);
  const std::size_t size = std::size_t(facts.st_size);
  if (regular_ && (size == 0 || size % frame != 0)) fail("bytes are no whole frames", size);
}

inlet::~inlet() { ::close(file_); }

void inlet::expect(std::size_t frames) {
  data_.resize(frames * frame_);
  got_ = 0;
}

void inlet::read_some() {
  const ssize_t count = ::read(file_, data_.data() + got_, data_.size() - got_);
  if (count > 0) got_ += std::size_t(count);
  if (count < 0 && errno != EAGAIN && errno != EINTR) fail("cannot be read, bytes so far", got_);
  if (count != 0) return;
  if (!regular_) fail("ends within the frames asked for, bytes so far", got_);
  ::lseek(file_, 0, SEEK_SET);
}

void inlet::fail(const char *why, std::size_t bytes) const {
  std::fprintf(stderr, "%s: %s: %zu\n", path_.c_str(), why, bytes);
  std::exit(2);
}

void take(const std::vector<inlet *> &inlets, std::size_t frames) {
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

outlet::outlet(const std::string &folder, const char *name, bool open)
    : path_(path_of(folder, name)) {
  if (open && (file_ = std::fopen(path_.c_str(), "wb")) == nullptr) fail();
}

outlet::~outlet() {
  if (file_ != nullptr) std::fclose(file_);
}

void outlet::put(const void *items, std::size_t size) {
  if (file_ == nullptr) return;
  if (std::fwrite(items, 1, size, file_) != size || std::fflush(file_) != 0) fail();
}

void outlet::fail() const {
  std::fprintf(stderr, "%s: cannot be written\n", path_.c_str());
  std::exit(2);
}

// The items of a binary file; what the last one lacks is zero.
static bytes read_items(const std::string &path, std::size_t item) {
  std::FILE *file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::fprintf(stderr, "%s: cannot be opened\n", path.c_str());
    std::exit(2);
  }
  std::fseek(file, 0, SEEK_END);
  const std::size_t size = std::size_t(std::ftell(file));
  std::fseek(file, 0, SEEK_SET);
  bytes items((size + item - 1) / item * item);
  const bool whole = std::fread(items.data(), 1, size, file) == size;
  std::fclose(file);
  if (!whole || items.size() - size >= 64) {
    std::fprintf(stderr, "%s: %zu bytes are no whole items\n", path.c_str(), size);
    std::exit(2);
  }
  return items;
}

void read_file(const std::string &folder, const char *name, void *items, std::size_t count,
               std::size_t item) {
  const std::string path = path_of(folder, name);
  const bytes held = read_items(path, item);
  if (held.size() != count * item) {
    std::fprintf(stderr, "%s: %zu items, want %zu\n", path.c_str(), held.size() / item, count);
    std::exit(2);
  }
  std::memcpy(items, held.data(), held.size());
}

void read_frames(const std::string &folder, const char *name, void *items, std::size_t frames,
                 std::size_t per_frame, std::size_t item) {
  const std::string path = path_of(folder, name);
  const bytes held = read_items(path, item);
  const std::size_t size = per_frame * item;
  if (held.empty() || held.size() % size != 0) {
    std::fprintf(stderr, "%s: %zu items, want frames of %zu\n", path.c_str(), held.size() / item,
                 per_frame);
    std::exit(2);
  }
  for (std::size_t f = 0; f < frames; ++f) {
    std::memcpy(static_cast<char *>(items) + f * size, held.data() + f * size % held.size(), size);
  }
}

bool agree(const void *found, std::size_t count, std::size_t token, numbers as,
           const std::string &folder, const char *name, std::size_t frames, allowed by) {
  bytes want(count * token);
  read_frames(folder, name, want.data(), frames, count / frames, token);
  double error = 0, largest = 0;
  std::vector<double> errors;
  bool finite = true;
  for (std::size_t at = 0; at < want.size(); at += as.size) {
    const double a = as.value(static_cast<const char *>(found) + at), b = as.value(&want[at]);
    if (std::isfinite(b)) largest = std::fmax(largest, std::fabs(b));
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    finite = finite && std::isfinite(a - b);
    error = std::fmax(error, std::fabs(a - b));
    errors.push_back(std::fabs(a - b));
  }
  const double unit = std::fmax(largest, 1e-30), few = double(want.size() / as.size) / 20;
  const auto off = std::count_if(errors.begin(), errors.end(),
                                 [&](double each) { return each > by.each * unit; });
  const double tolerance = off > 0 && double(off) <= std::fmax(few, 2) ? by.few : by.each;
  const bool ok = finite && error <= tolerance * unit;
  std::printf("%-32s max error %.3g, largest value %.3g, relative %.3g, tolerance %.3g: %s\n", name,
              error, largest, largest > 0 ? error / largest : error, tolerance,
              ok ? "ok" : "FAILED");
  return ok;
}

bool exists(const std::string &folder, const char *name) {
  return ::access(path_of(folder, name).c_str(), F_OK) == 0;
}

void print_ends(const char *name, const std::vector<long long> &ends) {
  long long before = 0;
  std::printf("%-32s frames are out at cycles", name);
  for (const long long end : ends) {
    std::printf(" %lld (+%lld)", end, end - before);
    before = end;
  }
  std::printf("\n");
}

void misplaced_last(const char *name, std::size_t token) {
  std::fprintf(stderr, "%s: TLAST is wrong at token %zu\n", name, token);
  std::exit(4);
}

}  // namespace tb
