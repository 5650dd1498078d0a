// What every host program shares, on XRT's native C++ API: options, kernels that are called again
// and again, tables to memory, frames in and out in two buffers each.
#ifndef PIPEC_HOST_H
#define PIPEC_HOST_H

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "testbench.h"

namespace host {

// The command line.
struct options {
  std::string xclbin, stage = ".", data;
  int frames = 1, batch = 16;
  unsigned device = 0, timeout = 30000;
  bool udp = false;

  // Whether golden frames are played and compared.
  bool golden() const { return data.empty(); }
  std::string folder() const { return golden() ? stage + "/tb/golden" : data; }
};

[[noreturn]] inline void usage(const char *program) {
  std::fprintf(stderr,
               "usage: %s XCLBIN [--stage DIR] [--data DIR] [--frames N] [--batch N]\n"
               "       [--device INDEX] [--timeout MILLISECONDS] [--udp]\n",
               program);
  std::exit(2);
}

// A call is for MOST frames at most.
inline options parse(int argc, char **argv, int most) {
  options settings;
  const auto number = [&](const char *text, long least) {
    char *end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > 1L << 30) usage(argv[0]);
    return int(value);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--udp") {
      settings.udp = true;
    } else if (word == "--stage" && more) {
      settings.stage = argv[++i];
    } else if (word == "--data" && more) {
      settings.data = argv[++i];
    } else if (word == "--frames" && more) {
      settings.frames = number(argv[++i], 1);
    } else if (word == "--batch" && more) {
      settings.batch = number(argv[++i], 1);
    } else if (word == "--device" && more) {
      settings.device = unsigned(number(argv[++i], 0));
    } else if (word == "--timeout" && more) {
      settings.timeout = unsigned(number(argv[++i], 0));
    } else if (word[0] != '-' && settings.xclbin.empty()) {
      settings.xclbin = word;
    } else {
      usage(argv[0]);
    }
  }
  if (settings.xclbin.empty()) usage(argv[0]);
  settings.batch = std::min({settings.batch, settings.frames, most});
  return settings;
}

// A board with its configuration.
struct board {
  explicit board(const options &given)
      : settings(given), device(given.device), loaded(device.load_xclbin(given.xclbin)) {}

  const options &settings;
  xrt::device device;
  xrt::uuid loaded;
};

// A kernel with an argument that says how many frames a call is for.
class caller {
 public:
  caller(const board &on, const std::string &name, int frames)
      : name_(name), kernel_(on.device, on.loaded, name), run_(kernel_), frames_(frames) {}

  // The memory that an argument points into.
  xrt::memory_group memory(int argument) const {
    return xrt::memory_group(kernel_.group_id(argument));
  }
  template <typename A>
  void set(int argument, const A &value) {
    run_.set_arg(argument, value);
  }
  void start(int frames) {
    run_.set_arg(frames_, frames);
    run_.start();
  }
  void wait(unsigned timeout) {
    const ert_cmd_state state = run_.wait(std::chrono::milliseconds(timeout));
    if (state == ERT_CMD_STATE_COMPLETED) return;
    throw std::runtime_error(name_ + (state == ERT_CMD_STATE_TIMEOUT
                                          ? " is not done after " + std::to_string(timeout) + " ms"
                                          : " ended in state " + std::to_string(int(state))));
  }

 private:
  std::string name_;
  xrt::kernel kernel_;
  xrt::run run_;
  int frames_;
};

// Items in the memory that an argument points into.
template <typename V>
xrt::bo upload(const board &on, const caller &kernel, int argument, const std::vector<V> &items) {
  const std::size_t bytes = items.size() * sizeof(V);
  xrt::bo found(on.device, bytes, kernel.memory(argument));
  found.write(items.data(), bytes, 0);
  found.sync(XCL_BO_SYNC_BO_TO_DEVICE);
  return found;
}

// Two buffers for frames, used in turn: one is filled or emptied while a kernel works on the other.
class buffers {
 public:
  buffers(const board &on, const std::string &mover, std::size_t frame)
      : mover_(on, mover, FRAMES), frame_(frame) {
    const std::size_t beats = (frame * std::size_t(on.settings.batch) + 63) / 64;
    for (xrt::bo &one : memory_) one = xrt::bo(on.device, beats * 64, mover_.memory(MEMORY));
  }

  caller &mover() { return mover_; }

 protected:
  static constexpr int MEMORY = 0, FRAMES = 2;  // arguments of a mover; 1 is its stream

  xrt::bo &at(int call) { return memory_[call % 2]; }
  void start_on(int call, int frames) {
    mover_.set(MEMORY, at(call));
    mover_.start(frames);
  }

  caller mover_;
  std::size_t frame_;
  xrt::bo memory_[2];
};

// An input: frames of its data file, which may be a pipe, to memory, and from there to the stage.
class source : public buffers {
 public:
  source(const board &on, const std::string &mover, const std::string &port, std::size_t frame)
      : buffers(on, mover, frame), file_(on.settings.folder(), port.c_str(), frame) {}

  tb::inlet *file() { return &file_; }
  void load(int call) {
    at(call).write(file_.data().data(), file_.data().size(), 0);
    at(call).sync(XCL_BO_SYNC_BO_TO_DEVICE);
  }
  void start(int call, int frames) { start_on(call, frames); }

 private:
  tb::inlet file_;
};

// An output: from the stage to memory, and from there to its data file or a comparison.
class sink : public buffers {
 public:
  sink(const board &on, const std::string &mover, std::size_t frame) : buffers(on, mover, frame) {}
  virtual ~sink() = default;

  void start(int call, int frames) { start_on(call, frames); }
  // Whether what a call has computed is as it must be.
  virtual bool store(int call, int frames) = 0;
};

template <typename T, int P>
class sink_of : public sink {
 public:
  sink_of(const board &on, const std::string &mover, const char *port, std::size_t tokens,
          tb::allowed by)
      : sink(on, mover, tokens * sizeof(vec<T, P>)),
        port_(port),
        folder_(on.settings.folder()),
        allowed_(by),
        golden_(on.settings.golden()),
        file_(folder_, port, !golden_) {}

  bool store(int call, int frames) override {
    tb::bytes found(std::size_t(frames) * frame_);
    at(call).sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    at(call).read(found.data(), found.size(), 0);
    if (golden_) return tb::agree<T, P>(found, folder_, port_, std::size_t(frames), allowed_);
    file_.put(found.data(), found.size());
    return true;
  }

 private:
  const char *port_;
  std::string folder_;
  tb::allowed allowed_;
  bool golden_;
  tb::outlet file_;
};

// The kernels of a board and what they need around each call.
struct stage {
  caller &kernel;
  int load_tables;  // its argument
  std::vector<caller *> links;
  std::vector<source *> inputs;
  std::vector<sink *> outputs;

  void load(int call, int frames) {
    std::vector<tb::inlet *> files;
    for (source *in : inputs) files.push_back(in->file());
    tb::take(files, std::size_t(frames));
    for (source *in : inputs) in->load(call);
  }
  void start(int call, int frames) {
    for (sink *out : outputs) out->start(call, frames);
    for (caller *link : links) link->start(frames);
    kernel.set(load_tables, int(call == 0));
    kernel.start(frames);
    for (source *in : inputs) in->start(call, frames);
  }
  void wait(unsigned timeout) {
    for (source *in : inputs) in->mover().wait(timeout);
    kernel.wait(timeout);
    for (caller *link : links) link->wait(timeout);
    for (sink *out : outputs) out->mover().wait(timeout);
  }
  bool store(int call, int frames) {
    bool ok = true;
    for (sink *out : outputs) ok = out->store(call, frames) && ok;
    return ok;
  }
};

// All frames, a batch per call; while the board works on one, the next one is read and the one
// before is written. Prints how fast it was; false if an output is wrong.
inline bool play(const options &settings, stage on, const char *name) {
  bool ok = true;
  int before = 0, done = 0, call = 0;
  on.load(0, settings.batch);
  const auto begin = std::chrono::steady_clock::now();
  for (int count = settings.batch; count > 0; ++call) {
    on.start(call, count);
    if (call > 0) ok = on.store(call - 1, before) && ok;
    done += count;
    const int next = std::min(settings.batch, settings.frames - done);
    if (next > 0) on.load(call + 1, next);
    on.wait(settings.timeout);
    before = count;
    count = next;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ok = on.store(call - 1, before) && ok;
  std::printf("%s: %d frames in %d calls, %.6f s: %.1f frames per second, %.3f ms per frame\n",
              name, done, call, took.count(), done / took.count(), 1e3 * took.count() / done);
  return ok;
}

// What main does: 0 if all is well, 1 if an output is wrong, 3 if the board fails.
template <typename Run>
int main_of(int argc, char **argv, const Run &run, int most) {
  const options settings = parse(argc, argv, most);
  try {
    return run(settings) ? 0 : 1;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}

}  // namespace host

#endif
