// Stand-in for XRT's header of this name: a run is a thread in the kernel's own C++.
#ifndef PIPEC_SIM_XRT_KERNEL_H
#define PIPEC_SIM_XRT_KERNEL_H

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "xrt_bo.h"
#include "xrt_device.h"

enum ert_cmd_state {
  ERT_CMD_STATE_NEW = 1,
  ERT_CMD_STATE_RUNNING = 3,
  ERT_CMD_STATE_COMPLETED = 4,
  ERT_CMD_STATE_TIMEOUT = 8,
};

namespace xrt {

class kernel {
 public:
  kernel() = default;
  kernel(const xrt::device &device, const xrt::uuid &loaded, const std::string &name)
      : name_(name), on_(&device.board_of(loaded).of(name)) {}

  int group_id(int argument) const {
    const int group = on_->groups.at(std::size_t(argument));
    if (group < 0) sim::fail(name_ + ": argument " + std::to_string(argument) + " is no memory");
    return group;
  }
  std::string get_name() const { return name_; }

  // Of the simulation.
  sim::instance &instance() const { return *on_; }

 private:
  std::string name_;
  sim::instance *on_ = nullptr;
};

class run {
 public:
  run() = default;
  explicit run(const kernel &of) : state_(std::make_shared<state>()) {
    state_->of = of;
    state_->values = of.instance().wired;
  }

  void set_arg(int index, const xrt::bo &buffer) {
    sim::value &to = argument(index, sim::kind::memory);
    if (int(buffer.get_memory_group()) != state_->of.group_id(index)) refuse(index, "another bank");
    to.memory = buffer.memory();
  }
  template <typename A>
  void set_arg(int index, const A &scalar) {
    sim::value &to = argument(index, sim::kind::scalar);
    if (sizeof scalar != state_->of.instance().model->sizes[std::size_t(index)]) {
      refuse(index, "another size");
    }
    to.scalar.assign(reinterpret_cast<const char *>(&scalar), sizeof scalar);
  }

  void start() {
    for (std::size_t k = 0; k < state_->values.size(); ++k) {
      if (!state_->values[k].set) refuse(int(k), "not set");
    }
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->of.instance().busy) sim::fail(state_->of.get_name() + " runs already");
    state_->of.instance().busy = true;
    state_->now = ERT_CMD_STATE_RUNNING;
    std::thread([on = state_] {
      on->of.instance().model->body(on->values);
      const std::lock_guard<std::mutex> end(on->mutex);
      on->of.instance().busy = false;
      on->now = ERT_CMD_STATE_COMPLETED;
      on->changed.notify_all();
    }).detach();
  }

  ert_cmd_state wait(const std::chrono::milliseconds &timeout = std::chrono::milliseconds(0)) const {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const auto done = [&] { return state_->now != ERT_CMD_STATE_RUNNING; };
    if (timeout.count() == 0) {
      state_->changed.wait(lock, done);
    } else if (!state_->changed.wait_for(lock, timeout, done)) {
      return ERT_CMD_STATE_TIMEOUT;
    }
    return state_->now;
  }

 private:
  sim::value &argument(int index, sim::kind want) {
    const sim::kernel_model &model = *state_->of.instance().model;
    if (std::size_t(index) >= model.kinds.size()) refuse(index, "not there");
    if (model.kinds[std::size_t(index)] != want) refuse(index, "of another kind");
    state_->values[std::size_t(index)].set = true;
    return state_->values[std::size_t(index)];
  }
  [[noreturn]] void refuse(int index, const char *why) const {
    sim::fail(state_->of.get_name() + ": argument " + std::to_string(index) + " is " + why);
  }

  struct state {
    kernel of;
    std::vector<sim::value> values;
    ert_cmd_state now = ERT_CMD_STATE_NEW;
    mutable std::mutex mutex;
    std::condition_variable changed;
  };
  std::shared_ptr<state> state_;
};

}  // namespace xrt

#endif
