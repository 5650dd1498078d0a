// An unbounded first-in first-out queue that reports misuse by the name of its stream.
#ifndef PIPEC_CSIM_QUEUE_H
#define PIPEC_CSIM_QUEUE_H

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace csim {

// Streams that still held tokens when they went away; a test bench must end with 0.
inline int &leftovers() {
  static int count = 0;
  return count;
}

// A queue of items of one size in a chain of blocks. Not a template, so that it is compiled once.
class queue {
 public:
  queue(const char *name, std::size_t item) : name_(name), item_(item), room_(item * per_block()) {}
  queue(const queue &) = delete;
  queue &operator=(const queue &) = delete;

  __attribute__((noinline)) ~queue() {
    if (size_ != 0) {
      std::fprintf(stderr, "stream %s: %zu tokens were never read\n", name_, size_);
      ++leftovers();
    }
    while (head_ != nullptr) drop_block();
    std::free(spare_);
  }

  // Where the next item goes.
  void *push() {
    if (put_ == end_) add_block();
    void *place = put_;
    put_ += item_;
    ++size_;
    return place;
  }

  // Where the oldest item lies; it stays there until the next call.
  const void *pop() {
    if (size_ == 0) fail();
    if (get_ == stop_) drop_block();
    const void *place = get_;
    get_ += item_;
    --size_;
    return place;
  }

  std::size_t size() const { return size_; }

 private:
  struct block {
    block *next;
  };

  std::size_t per_block() const { return item_ < 8192 ? 65536 / item_ : 8; }

  static char *data(block *b) { return reinterpret_cast<char *>(b) + 64; }

  __attribute__((noinline)) void add_block() {
    block *fresh = spare_ != nullptr ? spare_ : static_cast<block *>(std::malloc(64 + room_));
    if (fresh == nullptr) {
      std::fprintf(stderr, "stream %s: no memory for %zu tokens\n", name_, size_);
      std::exit(3);
    }
    spare_ = nullptr;
    fresh->next = nullptr;
    put_ = data(fresh);
    end_ = put_ + room_;
    if (head_ == nullptr) {
      head_ = fresh;
      get_ = put_;
      stop_ = end_;
    } else {
      tail_->next = fresh;
    }
    tail_ = fresh;
  }

  __attribute__((noinline)) void drop_block() {
    block *old = head_;
    head_ = old->next;
    std::free(spare_);
    spare_ = old;
    if (head_ == nullptr) return;
    get_ = data(head_);
    stop_ = get_ + room_;
  }

  __attribute__((noinline)) void fail() const {
    std::fprintf(stderr, "stream %s: read while empty\n", name_);
    std::exit(3);
  }

  const char *name_;
  std::size_t item_, room_, size_ = 0;
  block *head_ = nullptr, *tail_ = nullptr, *spare_ = nullptr;
  char *put_ = nullptr, *end_ = nullptr, *get_ = nullptr, *stop_ = nullptr;
};

}  // namespace csim

#endif
