// What every engine shares: the token type, rounding up, and the hooks of the simulation builds.
//
// A token is P lanes, all of one pixel (NHWC order: channel-minor). A pixel of C channels takes
// ceil(C / P) tokens; the lanes behind channel C - 1 of its last token are ZERO. Every engine
// keeps this, so a garbage lane can never meet a zero weight as infinity times zero.
#ifndef PIPEC_BASE_H
#define PIPEC_BASE_H

#include <cstdint>
#include <limits>
#include <type_traits>

#include "hls_stream.h"
#include "number.h"

// A static firing: one trip of an engine's pipelined loop. II is the initiation interval, D the
// pipeline depth. Empty unless a simulation build gives it a meaning.
#ifndef FIRE
#define FIRE(II, D)
#endif

// The next firing starts CYCLES after the last one, not II: a pipeline drains between two loops.
#ifndef GAP
#define GAP(CYCLES)
#endif

// One engine of a dataflow region; a simulation build may start it as a coroutine.
#ifndef TASK
#define TASK(...) __VA_ARGS__
#define DATAFLOW_END
#endif

template <typename T, int P>
struct vec {
  T lane[P];
};

template <typename T, int P>
inline vec<T, P> zeros() {
  vec<T, P> v;
  for (int p = 0; p < P; ++p) {
#pragma HLS UNROLL
    v.lane[p] = T(0);
  }
  return v;
}

// What no maximum takes: minus infinity, or the least number of a type without one.
template <typename T>
inline T least() {
  using limits = std::numeric_limits<T>;
  return limits::has_infinity ? -limits::infinity() : limits::lowest();
}

// The narrowest type of numbers from -MOST to MOST: what is narrow is added and compared fast.
template <int64_t MOST>
using counter =
    typename std::conditional<(MOST < 128), int8_t,
                              typename std::conditional<(MOST < 32768), int16_t, int32_t>::type>::type;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

constexpr bool is_power(int64_t x) { return (x & (x - 1)) == 0; }
constexpr int bits_of_range(int64_t n) { return n <= 1 ? 0 : 1 + bits_of_range((n + 1) / 2); }

// x / BY of 0 <= x < END, exact: a product with 2^S / BY, rounded up, where BY * END <= 2^S. A divider
// would take a cycle per bit.
template <int BY, int64_t END>
inline int quotient_of(int x) {
#pragma HLS INLINE
  constexpr int S = bits_of_range(BY * END);
  constexpr int64_t FACTOR = (int64_t(1) << S) / BY + 1;
  using wide = typename std::conditional<(END * FACTOR < int64_t(1) << 31), int32_t, int64_t>::type;
  static_assert(END < int64_t(1) << 30, "the product fits into 63 bits");
  return is_power(BY) ? int(uint32_t(x) / BY) : int(wide(x) * wide(FACTOR) >> S);
}

// x % BY, likewise.
template <int BY, int64_t END>
inline int remainder_of(int x) {
#pragma HLS INLINE
  return x - quotient_of<BY, END>(x) * BY;
}

// Channels of a pixel that token c carries: P, but what is left in the last one.
constexpr int lanes_of(int c, int C, int P) {
  return c == ceil_div(C, P) - 1 ? C - (ceil_div(C, P) - 1) * P : P;
}

#endif
