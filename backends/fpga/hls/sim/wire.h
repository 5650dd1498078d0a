// What a simulated board's kernels are joined by: first-in first-out queues between threads, and
// sockets to the simulations of other boards.
#ifndef PIPEC_SIM_WIRE_H
#define PIPEC_SIM_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace sim {

// Items of one size, in a ring that grows. One writer, one reader.
class wire {
 public:
  explicit wire(std::size_t item) : item_(item), ring_(16 * item) {}

  std::size_t item() const { return item_; }

  // Sends what is written from now on to a socket.
  void lead_to(int socket) { socket_ = socket; }

  void push(const void *item) {
    if (socket_ >= 0) return send(static_cast<const char *>(item));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (count_ * item_ == ring_.size()) grow();
    std::memcpy(&ring_[(first_ + count_) * item_ % ring_.size()], item, item_);
    ++count_;
    if (waits_) changed_.notify_one();
  }
  void pop(void *item) {
    std::unique_lock<std::mutex> lock(mutex_);
    waits_ = true;
    changed_.wait(lock, [&] { return count_ > 0; });
    waits_ = false;
    take(item);
  }
  bool try_pop(void *item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (count_ > 0) {
      take(item);
      return true;
    }
    std::this_thread::yield();
    return false;
  }

 private:
  void take(void *item) {
    std::memcpy(item, &ring_[first_ * item_], item_);
    first_ = (first_ + 1) % (ring_.size() / item_);
    --count_;
  }
  void grow() {
    std::vector<char> larger(2 * ring_.size());
    const std::size_t behind = ring_.size() - first_ * item_;
    std::memcpy(larger.data(), &ring_[first_ * item_], behind);
    std::memcpy(larger.data() + behind, ring_.data(), ring_.size() - behind);
    ring_.swap(larger);
    first_ = 0;
  }
  void send(const char *bytes) {
    for (std::size_t done = 0; done < item_;) {
      const ssize_t count = ::send(socket_, bytes + done, item_ - done, MSG_NOSIGNAL);
      if (count <= 0) {
        std::fprintf(stderr, "the board on the other side of a link is gone\n");
        std::_Exit(4);
      }
      done += std::size_t(count);
    }
  }

  std::size_t item_, first_ = 0, count_ = 0;
  std::vector<char> ring_;
  bool waits_ = false;
  int socket_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Everything that a socket receives, to a wire. It ends with the socket.
inline void receive(int socket, wire &to) {
  std::vector<char> item(to.item());
  for (;;) {
    for (std::size_t done = 0; done < item.size();) {
      const ssize_t count = ::recv(socket, &item[done], item.size() - done, 0);
      if (count <= 0) return;
      done += std::size_t(count);
    }
    to.push(item.data());
  }
}

// One link between two boards: a socket at a path. The board before listens, the one behind calls.
inline int connected(const std::string &path, bool listens) {
  const auto fail = [&](const char *why) { throw std::runtime_error(path + ": " + why); };
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  if (path.size() >= sizeof at.sun_path) fail("too long for the path of a socket");
  std::memcpy(at.sun_path, path.c_str(), path.size());
  const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr *address = reinterpret_cast<const sockaddr *>(&at);
  if (made < 0) fail("no socket can be made");
  if (!listens) {
    for (int tries = 0; ::connect(made, address, sizeof at) != 0; ++tries) {
      if (tries == 600) fail("no board listens there");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return made;
  }
  std::remove(path.c_str());
  if (::bind(made, address, sizeof at) != 0 || ::listen(made, 1) != 0) fail("cannot be listened to");
  const int found = ::accept(made, nullptr, nullptr);
  ::shutdown(made, SHUT_RDWR);
  std::remove(path.c_str());
  if (found < 0) fail("no board calls");
  return found;
}

}  // namespace sim

#endif
