// A board in software: what link.cfg connects, with the kernels' own C++ behind it.
//
// Loading link.cfg in place of an xclbin makes its kernels (nk), gives their memory ports to banks
// (sp) and joins their streams (stream_connect). Streams of Aurora and network kernels lead to other
// boards: cage K is the socket at the path in the environment's SIM_QSFP<K>. Functional: no cycles.
#ifndef PIPEC_SIM_BOARD_H
#define PIPEC_SIM_BOARD_H

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hls_stream.h"
#include "wire.h"

namespace sim {

[[noreturn]] inline void fail(const std::string &what) { throw std::runtime_error(what); }

// What an argument of a kernel is set to.
struct value {
  bool set = false;
  std::string scalar;               // its bytes
  std::shared_ptr<char> memory;     // what is behind a pointer
  std::shared_ptr<wire> stream;
};

enum class kind { scalar, memory, stream };

// One argument as the kernel's C++ takes it.
template <typename A>
struct slot {
  static constexpr kind KIND = kind::scalar;
  static constexpr std::size_t SIZE = sizeof(A);
  explicit slot(const value &from) { std::memcpy(&held, from.scalar.data(), sizeof held); }
  A get() { return held; }
  A held;
};
template <typename V>
struct slot<V *> {
  static constexpr kind KIND = kind::memory;
  static constexpr std::size_t SIZE = sizeof(V);
  explicit slot(const value &from) : held(from.memory) {}
  V *get() { return reinterpret_cast<V *>(held.get()); }
  std::shared_ptr<char> held;
};
template <typename T>
struct slot<hls::stream<T> &> {
  static constexpr kind KIND = kind::stream;
  static constexpr std::size_t SIZE = sizeof(T);
  explicit slot(const value &from) : held(from.stream) {}
  hls::stream<T> &get() { return held; }
  hls::stream<T> held;
};

// A kernel: the pins of its arguments (a memory's is its bundle), and its function.
struct kernel_model {
  std::vector<std::string> pins;
  std::vector<kind> kinds;
  std::vector<std::size_t> sizes;
  std::function<void(const std::vector<value> &)> body;
};

inline std::map<std::string, kernel_model> &known() {
  static std::map<std::string, kernel_model> found;
  return found;
}

template <typename... A, std::size_t... I>
void call(void (*function)(A...), const std::vector<value> &values, std::index_sequence<I...>) {
  std::tuple<slot<A>...> slots{slot<A>(values[I])...};
  function(std::get<I>(slots).get()...);
}

// Makes a kernel known by its name.
template <typename... A>
bool know(const std::string &name, void (*function)(A...), const std::vector<std::string> &pins) {
  kernel_model &made = known()[name];
  made.pins = pins;
  made.kinds = {slot<A>::KIND...};
  made.sizes = {slot<A>::SIZE...};
  made.body = [function](const std::vector<value> &values) {
    call(function, values, std::index_sequence_for<A...>());
  };
  return pins.size() == sizeof...(A);
}

// Defined where the kernels are: whether each has as many pins as arguments.
bool all_known();

// A kernel on a board.
struct instance {
  const kernel_model *model = nullptr;
  std::vector<value> wired;  // its streams
  std::vector<int> groups;   // of its memory ports; -1 if none
  bool busy = false;
};

class board {
 public:
  explicit board(const std::string &path) : path_(path) {
    if (!all_known()) fail("a kernel has other arguments than pins");
    std::ifstream file(path);
    if (!file) fail(path + ": cannot be read; a simulated board loads a link.cfg");
    std::string line;
    while (std::getline(file, line)) {
      const std::size_t at = line.find('=');
      if (line.empty() || line[0] == '#' || at == std::string::npos) continue;
      read(line.substr(0, at), line.substr(at + 1));
    }
    complete();
  }

  // The only instance of a kernel.
  instance &of(const std::string &kernel) {
    const auto found = names_.find(kernel);
    if (found == names_.end()) fail(path_ + " has no kernel " + kernel);
    return instances_.at(found->second);
  }

 private:
  void read(const std::string &key, const std::string &text) {
    if (key == "nk") return add(text);
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos) return;
    const std::string left = text.substr(0, colon), right = text.substr(colon + 1);
    if (key == "sp") return place(left, right);
    if (key == "stream_connect") pairs_.emplace_back(left, right);
  }

  // nk=kernel:2:instance,instance
  void add(const std::string &text) {
    const std::string kernel = text.substr(0, text.find(':'));
    std::string name = text.substr(text.rfind(':') + 1);
    if (known().count(kernel) == 0) {  // a link's core
      for (std::size_t at; (at = name.find(',')) != std::string::npos; name.erase(0, at + 1)) {
        others_.insert(name.substr(0, at));
      }
      others_.insert(name);
      return;
    }
    if (text != kernel + ":1:" + name || names_.count(kernel) != 0) {
      fail(path_ + ": nk=" + text + ": one instance of it is simulated");
    }
    instance made;
    made.model = &known()[kernel];
    made.wired.resize(made.model->pins.size());
    made.groups.assign(made.model->pins.size(), -1);
    instances_[name] = made;
    names_[kernel] = name;
  }

  // sp=instance.m_axi_bundle:BANK[3]
  void place(const std::string &pin, const std::string &bank) {
    const int group = groups_.emplace(bank, int(groups_.size())).first->second;
    const std::size_t dot = pin.find('.');
    if (instances_.count(pin.substr(0, dot)) == 0) fail(path_ + ": no kernel has the pin " + pin);
    instance &on = instances_.at(pin.substr(0, dot));
    bool found = false;
    for (std::size_t k = 0; k < on.groups.size(); ++k) {
      if (on.model->kinds[k] != kind::memory || on.model->pins[k] != pin.substr(dot + 1)) continue;
      on.groups[k] = group;
      found = true;
    }
    if (!found) fail(path_ + ": no memory port " + pin);
  }

  // Joins streams, and sees that nothing is left over.
  void complete() {
    for (const auto &[from, to] : pairs_) {
      const std::size_t sends = size_of(from), takes = size_of(to);
      if (sends == 0 && takes == 0) continue;  // between kernels that are not simulated
      if (sends != takes && sends != 0 && takes != 0) fail(from + " and " + to + " differ in width");
      const auto made = std::make_shared<wire>(takes != 0 ? takes : sends);
      attach(from, made, true);
      attach(to, made, false);
    }
    for (const auto &[name, on] : instances_) {
      for (std::size_t k = 0; k < on.wired.size(); ++k) {
        const std::string pin = name + "." + on.model->pins[k];
        if (on.model->kinds[k] == kind::stream && !on.wired[k].set) fail(pin + " is not connected");
        if (on.model->kinds[k] == kind::memory && on.groups[k] < 0) fail(pin + " has no bank");
      }
    }
  }

  value *port(const std::string &pin, std::size_t *size) {
    const std::size_t dot = pin.find('.');
    const auto on = instances_.find(pin.substr(0, dot));
    if (on == instances_.end()) {
      if (others_.count(pin.substr(0, dot)) == 0) fail(path_ + ": no kernel has the pin " + pin);
      return nullptr;
    }
    const kernel_model &model = *on->second.model;
    for (std::size_t k = 0; k < model.pins.size(); ++k) {
      if (model.kinds[k] != kind::stream || model.pins[k] != pin.substr(dot + 1)) continue;
      *size = model.sizes[k];
      return &on->second.wired[k];
    }
    fail(path_ + ": no stream " + pin);
  }

  // Bytes of an item; 0 of a kernel that is not simulated.
  std::size_t size_of(const std::string &pin) {
    std::size_t size = 0;
    port(pin, &size);
    return size;
  }

  void attach(const std::string &pin, const std::shared_ptr<wire> &to, bool sends) {
    std::size_t size = 0;
    if (value *found = port(pin, &size)) {
      if (found->set) fail(pin + " is connected twice");
      found->set = true;
      found->stream = to;
      return;
    }
    const int socket = link(pin.substr(0, pin.find('.')).back());
    if (!sends) return to->lead_to(socket);
    std::thread([socket, to] { receive(socket, *to); }).detach();
  }

  // The socket of a cage; the board before has this one behind its cage 1.
  int link(char cage) {
    const auto found = sockets_.find(cage);
    if (found != sockets_.end()) return found->second;
    const std::string name = std::string("SIM_QSFP") + cage;
    const char *path = std::getenv(name.c_str());
    if (path == nullptr) fail(name + " names no socket, and " + path_ + " has a link there");
    return sockets_[cage] = connected(path, cage == '1');
  }

  std::string path_;
  std::map<std::string, instance> instances_;
  std::map<std::string, std::string> names_;  // kernel to instance
  std::set<std::string> others_;
  std::map<std::string, int> groups_;
  std::map<char, int> sockets_;
  std::vector<std::pair<std::string, std::string>> pairs_;
};

}  // namespace sim

#endif
