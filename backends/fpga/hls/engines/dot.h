// The arithmetic of multiply-accumulate engines: products, adder trees, accumulators.
//
// Order of sums, which fixes every bit of a float result: the SIMD products of a firing are added
// in a balanced tree, group i + ceil(N/2) onto group i, halving N each time; the tree's root goes
// to accumulator s % PARTIAL, s ascending; the PARTIAL accumulators are added in such a tree too.
#ifndef PIPEC_DOT_H
#define PIPEC_DOT_H

#include "base.h"

namespace engine {

// Adds N groups of PE numbers into the first group.
template <int N, int PE>
struct adder_tree {
  template <typename T, int SIZE>
  static inline void run(T (&p)[SIZE]) {
#pragma HLS INLINE
    constexpr int HALF = (N + 1) / 2;
    for (int i = 0; i < (N - HALF) * PE; ++i) {
#pragma HLS UNROLL
      p[i] += p[i + HALF * PE];
    }
    adder_tree<HALF, PE>::run(p);
  }
};

template <int PE>
struct adder_tree<1, PE> {
  template <typename T, int SIZE>
  static inline void run(T (&)[SIZE]) {}
};

// acc[pe] += sum over s of word[s * PE + pe] * x[s]
template <int PE, int SIMD, typename A, typename W, typename T>
inline void multiply_add(vec<A, PE> &acc, const vec<W, SIMD * PE> &word, const vec<T, SIMD> &x) {
#pragma HLS INLINE
  A product[SIMD * PE];
#pragma HLS ARRAY_PARTITION variable = product complete
  for (int s = 0; s < SIMD; ++s) {
#pragma HLS UNROLL
    for (int pe = 0; pe < PE; ++pe) {
#pragma HLS UNROLL
      product[s * PE + pe] = word.lane[s * PE + pe] * x.lane[s];
    }
  }
  adder_tree<SIMD, PE>::run(product);
  for (int pe = 0; pe < PE; ++pe) {
#pragma HLS UNROLL
    acc.lane[pe] += product[pe];
  }
}

// PARTIAL accumulators used in turn, so that a slow adder is never waited for.
//
// `turn` makes them a ring that moves on by one register per firing: a sum comes back to the adder
// PARTIAL firings after it left, at a place that is known when the loop is compiled. With a
// computed index in its place, the distance would be hidden from whoever schedules the loop.
template <typename T, int PE, int PARTIAL>
struct accumulator {
  vec<sum_t<T>, PE> sum[PARTIAL];

  // The sum whose turn it is: the oldest, or a new one in the first PARTIAL firings.
  vec<sum_t<T>, PE> oldest(bool fresh) const {
#pragma HLS INLINE
    vec<sum_t<T>, PE> found;
    for (int pe = 0; pe < PE; ++pe) {
#pragma HLS UNROLL
      found.lane[pe] = fresh ? sum_t<T>(0) : sum[PARTIAL - 1].lane[pe];
    }
    return found;
  }

  void turn(const vec<sum_t<T>, PE> &newest) {
#pragma HLS INLINE
    for (int k = PARTIAL - 1; k > 0; --k) {
#pragma HLS UNROLL
      sum[k] = sum[k - 1];
    }
    sum[0] = newest;
  }

  // All sums after COUNT firings of `turn`; sum k is that of the firings k, k + PARTIAL, ...
  template <int COUNT>
  vec<sum_t<T>, PE> turned() const {
#pragma HLS INLINE
    accumulator<T, PE, PARTIAL> order;
#pragma HLS ARRAY_PARTITION variable = order.sum complete
    for (int k = 0; k < PARTIAL; ++k) {
#pragma HLS UNROLL
      if (k < COUNT) {
        order.sum[k] = sum[(COUNT - 1 - k) % PARTIAL];
      } else {
        order.sum[k] = zeros<sum_t<T>, PE>();
      }
    }
    return order.total();
  }

  void clear() {
    for (int k = 0; k < PARTIAL; ++k) {
#pragma HLS UNROLL
      sum[k] = zeros<sum_t<T>, PE>();
    }
  }

  vec<sum_t<T>, PE> total() const {
    sum_t<T> all[PARTIAL * PE];
#pragma HLS ARRAY_PARTITION variable = all complete
    for (int i = 0; i < PARTIAL * PE; ++i) {
#pragma HLS UNROLL
      all[i] = sum[i / PE].lane[i % PE];
    }
    adder_tree<PARTIAL, PE>::run(all);
    vec<sum_t<T>, PE> y;
    for (int pe = 0; pe < PE; ++pe) {
#pragma HLS UNROLL
      y.lane[pe] = all[pe];
    }
    return y;
  }
};

}  // namespace engine

#endif
