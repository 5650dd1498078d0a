// Stand-in for the vendor's header of this name, used only where no vendor tool is: whole numbers
// of W bits, at most 64, in two's complement. Arithmetic on them runs in 64 bits.
#ifndef PIPEC_CSIM_AP_INT_H
#define PIPEC_CSIM_AP_INT_H

#include <cstdint>

template <int W>
struct ap_int {
  int64_t value;

  ap_int(int64_t x) : value(int64_t(uint64_t(x) << (64 - W)) >> (64 - W)) {}
  operator int64_t() const { return value; }
};

#endif
