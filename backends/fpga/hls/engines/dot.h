// The arithmetic of multiply-accumulate engines: products, adder trees, accumulators.
//
// Order of sums, which fixes every bit of a float result: the SIMD products of a firing are added
// in a balanced tree, group i + ceil(N/2) onto group i, halving N each time; the tree's root goes
// to accumulator s % PARTIAL, s ascending; the PARTIAL accumulators are added in such a tree too.
#ifndef PIPEC_DOT_H
#define PIPEC_DOT_H

#include "ap_int.h"
#include "base.h"

namespace engine {

// w0 * x and w1 * x of one 27x18 multiplier (DSP48E2, DSP58), for numbers of up to 9 bits: those
// of 8 bits, and steps of which a zero point was taken off. A negative w0 * x borrows one of w1 * x.
inline void multiply_pair(int32_t &low, int32_t &high, int32_t w0, int32_t w1, int32_t x) {
#pragma HLS INLINE
  const ap_int<27> both = w1 * (1 << 18) + w0;
  const ap_int<18> shared = x;
  const ap_int<45> product = both * shared;
#pragma HLS BIND_OP variable = product op = mul impl = dsp
  const ap_int<18> lower(product), upper(product >> 18);
  low = int32_t(lower);
  high = int32_t(upper) + (lower < 0);
}

// Two products with a common operand: one multiplier each, but for 8-bit integers.
template <typename A, typename W, typename T>
inline void multiply_both(A &low, A &high, const W &w0, const W &w1, const T &x) {
#pragma HLS INLINE
  low = w0 * x;
  high = w1 * x;
}
template <typename W, int M, int E, int Z>
inline typename std::enable_if<std::is_integral<W>::value>::type multiply_both(
    int32_t &low, int32_t &high, const W &w0, const W &w1, const quantised<M, E, Z> &x) {
#pragma HLS INLINE
  multiply_pair(low, high, w0, w1, x.raw);
}
template <int M, int E, int Z, int N, int F, int Y>
inline void multiply_both(int32_t &low, int32_t &high, const quantised<M, E, Z> &w0,
                          const quantised<M, E, Z> &w1, const quantised<N, F, Y> &x) {
#pragma HLS INLINE
  multiply_pair(low, high, w0.steps(), w1.steps(), x.steps());
}

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
    for (int pe = 0; pe < PE; pe += 2) {
#pragma HLS UNROLL
      const int i = s * PE + pe;
      if (pe + 1 < PE) {
        multiply_both(product[i], product[i + 1], word.lane[i], word.lane[i + 1], x.lane[s]);
      } else {
        product[i] = word.lane[i] * x.lane[s];
      }
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

// Combines N values in a tree: i + ceil(N/2) onto i, repeatedly; the first one is the result.
template <int N>
struct folded {
  template <typename T, int SIZE, typename F>
  static inline void run(T (&x)[SIZE], const F &f) {
#pragma HLS INLINE
    constexpr int HALF = (N + 1) / 2;
    for (int i = 0; i < N - HALF; ++i) {
#pragma HLS UNROLL
      x[i] = f(x[i], x[i + HALF]);
    }
    folded<HALF>::run(x, f);
  }
};

template <>
struct folded<1> {
  template <typename T, int SIZE, typename F>
  static inline void run(T (&)[SIZE], const F &) {}
};

// Results of a row's tokens, SIZE of them used in turn: what an operation gives comes back to it
// SIZE firings later.
template <typename T>
struct turning {
  static constexpr int SIZE = 8;
  T part[SIZE];

  // Combines a value with the oldest result; token c of the row, of which the first ones start anew.
  template <typename F>
  void take(T x, int c, const F &f) {
#pragma HLS INLINE
    const T now = c < SIZE ? x : f(part[SIZE - 1], x);
    for (int k = SIZE - 1; k > 0; --k) {
#pragma HLS UNROLL
      part[k] = c == 0 ? x : part[k - 1];  // nothing is read before it was written
    }
    part[0] = now;
  }

  // All results of a row of COUNT tokens as one: the k-th is that of the tokens k, k + SIZE, ...
  template <int COUNT, typename F>
  T all(const F &f) const {
#pragma HLS INLINE
    T order[SIZE];
#pragma HLS ARRAY_PARTITION variable = order complete
    for (int k = 0; k < SIZE; ++k) {
#pragma HLS UNROLL
      order[k] = part[k < COUNT ? (COUNT - 1 - k) % SIZE : 0];
    }
    folded<smaller(COUNT, SIZE)>::run(order, f);
    return order[0];
  }
};

}  // namespace engine

#endif
