// Stand-in for XRT's header of this name: a buffer has a copy on the host's side and one on the
// device's, and sync() moves bytes between them.
#ifndef PIPEC_SIM_XRT_BO_H
#define PIPEC_SIM_XRT_BO_H

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "xrt_device.h"

enum xclBOSyncDirection { XCL_BO_SYNC_BO_TO_DEVICE = 0, XCL_BO_SYNC_BO_FROM_DEVICE };

namespace xrt {

using memory_group = uint32_t;

class bo {
 public:
  bo() = default;
  bo(const xrt::device &, std::size_t size, memory_group group)
      : state_(std::make_shared<state>(size, group)) {}

  std::size_t size() const { return state_->host.size(); }
  memory_group get_memory_group() const { return state_->group; }

  void write(const void *from, std::size_t size, std::size_t seek) {
    check(size, seek);
    std::memcpy(state_->host.data() + seek, from, size);
  }
  void read(void *to, std::size_t size, std::size_t skip) {
    check(size, skip);
    std::memcpy(to, state_->host.data() + skip, size);
  }
  void sync(xclBOSyncDirection way, std::size_t size, std::size_t offset) {
    check(size, offset);
    char *host = state_->host.data() + offset, *device = state_->device.get() + offset;
    const bool down = way == XCL_BO_SYNC_BO_TO_DEVICE;
    std::memcpy(down ? device : host, down ? host : device, size);
  }
  void sync(xclBOSyncDirection way) { sync(way, size(), 0); }

  // Of the simulation.
  const std::shared_ptr<char> &memory() const { return state_->device; }

 private:
  void check(std::size_t size, std::size_t offset) const {
    if (offset + size > state_->host.size()) sim::fail("outside of a buffer");
  }

  struct state {
    state(std::size_t size, memory_group of)
        : host(size),
          device(static_cast<char *>(::operator new(size, std::align_val_t(64))),
                 [](char *p) { ::operator delete(p, std::align_val_t(64)); }),
          group(of) {
      std::memset(device.get(), 0xa5, size);  // memory of a board holds anything
    }
    std::vector<char> host;
    std::shared_ptr<char> device;
    memory_group group;
  };
  std::shared_ptr<state> state_;
};

}  // namespace xrt

#endif
