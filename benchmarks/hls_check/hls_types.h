// Stand-in for the vendor's types in others' code, for `benchmarks.hls_check.vendor` alone: a vector
// is an array, a long integer an array of 32-bit words whose ranges are such words.
#ifndef PIPEC_CHECK_HLS_TYPES_H
#define PIPEC_CHECK_HLS_TYPES_H

#include <cmath>
#include <cstdint>

namespace hls {

using std::exp;
using std::fabs;
using std::log;
using std::pow;
using std::sqrt;

template <typename T, int N>
struct vector {
  T data[N];
  T &operator[](int i) { return data[i]; }
  const T &operator[](int i) const { return data[i]; }
};

}  // namespace hls

template <int W>
struct ap_uint {
  uint32_t words[(W + 31) / 32];

  struct Range {
    uint32_t &word;
    operator uint32_t() const { return word; }
    Range &operator=(uint32_t value) {
      word = value;
      return *this;
    }
    Range &operator=(const Range &other) { return *this = uint32_t(other); }
  };

  ap_uint(uint32_t low = 0) : words{low} {}
  Range range(int, int lo) { return {words[lo / 32]}; }
  operator uint32_t() const { return words[0]; }
};

template <int W>
using ap_int = ap_uint<W>;

template <int D, int U, int TI, int TD>
struct ap_axiu {
  ap_uint<D> data;
  bool last;
};

#endif
