// Stand-in for XRT's header of this name: devices are boards in software (board.h).
#ifndef PIPEC_SIM_XRT_DEVICE_H
#define PIPEC_SIM_XRT_DEVICE_H

#include <memory>
#include <string>

#include "board.h"

namespace xrt {

class uuid {
 public:
  uuid() = default;
  explicit uuid(std::string of) : of_(std::move(of)) {}
  bool operator==(const uuid &other) const { return of_ == other.of_; }
  bool operator!=(const uuid &other) const { return of_ != other.of_; }

 private:
  std::string of_;
};

class device {
 public:
  device() = default;
  explicit device(unsigned int index) : state_(std::make_shared<state>()) {
    if (index > 0) sim::fail("no device " + std::to_string(index) + ": one board is simulated");
  }

  uuid load_xclbin(const std::string &path) {
    state_->board = new sim::board(path);  // stays: kernels may still run when the host ends
    state_->loaded = uuid(path);
    return state_->loaded;
  }

  // Of the simulation.
  sim::board &board_of(const uuid &asked) const {
    if (state_ == nullptr || state_->board == nullptr) sim::fail("nothing is loaded");
    if (asked != state_->loaded) sim::fail("another xclbin is loaded");
    return *state_->board;
  }

 private:
  struct state {
    sim::board *board = nullptr;
    uuid loaded;
  };
  std::shared_ptr<state> state_;
};

}  // namespace xrt

#endif
