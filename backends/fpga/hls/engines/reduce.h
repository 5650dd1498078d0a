// REDUCE: WINDOW tokens per channel group become one: max, min, sum (and mean, by its scale).
//
//   for n, j, c      behind an SWG: KP kernel positions per token; global pool: N = 1
//
// Config: T, N, WINDOW, CF, LANES, KP, PARTIAL, II, DEPTH and `static term_t<T> combine(term_t<T>, term_t<T>)`. A token's
// KP values meet in a balanced tree, the trees' roots in result j % PARTIAL, j ascending, and the
// PARTIAL results in a tree again. The scale is a number, a table read cyclically, `unscaled`, or `steps`:
// quantised values reduce as integers, a rescale takes their sums to the scale of the result.
#ifndef PIPEC_REDUCE_H
#define PIPEC_REDUCE_H

#include "base.h"

namespace engine {

struct unscaled {};
struct steps {};

// A value as it takes part, and back: quantised ones in steps of their scale.
template <typename T>
inline term_t<T> term(const T &x) {
  return term_t<T>(x);
}
template <int M, int E, int Z>
inline int32_t term(const quantised<M, E, Z> &x) {
  return x.steps();
}

template <typename Y, typename G, typename A>
inline Y scaled(A x, const unscaled &, int) {
  return Y(x);
}
template <typename Y, typename G>
inline Y scaled(int32_t x, const steps &, int) {
  return Y::of(x + Y::ZERO);
}
template <typename Y, typename G>
inline Y scaled(int32_t x, const rescale &by, int) {
  return narrowed<Y, G>(int64_t(x) * by.multiplier);
}
template <typename Y, typename G, typename A>
inline Y scaled(A x, const A &scale, int) {
  return Y(x * scale);
}
template <typename Y, typename G, int PERIOD>
inline Y scaled(int32_t x, const vec<rescale, 1> (&table)[PERIOD], int n) {
  return scaled<Y, G>(x, table[n % PERIOD].lane[0], n);
}
template <typename Y, typename G, typename A, typename U, int PERIOD>
inline Y scaled(A x, const vec<U, 1> (&table)[PERIOD], int n) {
  return Y(x * A(table[n % PERIOD].lane[0]));
}

// Combines N groups of LANES values into the first group: i + ceil(N/2) onto i, repeatedly.
template <typename G, int N>
struct combine_tree {
  template <int SIZE>
  static inline void run(term_t<typename G::T> (&p)[SIZE]) {
#pragma HLS INLINE
    constexpr int HALF = (N + 1) / 2;
    for (int i = 0; i < (N - HALF) * G::LANES; ++i) {
#pragma HLS UNROLL
      p[i] = G::combine(p[i], p[i + HALF * G::LANES]);
    }
    combine_tree<G, HALF>::run(p);
  }
};

template <typename G>
struct combine_tree<G, 1> {
  template <int SIZE>
  static inline void run(term_t<typename G::T> (&)[SIZE]) {}
};

template <typename G, typename Y, typename Scale>
void reduce(int frames, hls::stream<vec<typename G::T, G::KP * G::LANES>> &in,
            hls::stream<vec<Y, G::LANES>> &out, const Scale &scale) {
  constexpr int PARTS = smaller(G::PARTIAL, G::WINDOW);
  using A = term_t<typename G::T>;
  static A part[G::CF][PARTS * G::LANES];
#pragma HLS ARRAY_PARTITION variable = part dim = 2 complete
  for (int n = 0; n < frames * G::N; ++n) {
    for (int j = 0; j < G::WINDOW; ++j) {
      for (int c = 0; c < G::CF; ++c) {
#pragma HLS PIPELINE II = G::II
        FIRE(G::II, G::DEPTH);
        const vec<typename G::T, G::KP * G::LANES> token = in.read();
        A x[G::KP * G::LANES];
#pragma HLS ARRAY_PARTITION variable = x complete
        for (int i = 0; i < G::KP * G::LANES; ++i) {
#pragma HLS UNROLL
          x[i] = term(token.lane[i]);
        }
        combine_tree<G, G::KP>::run(x);
        A all[PARTS * G::LANES];
#pragma HLS ARRAY_PARTITION variable = all complete
        for (int i = 0; i < PARTS * G::LANES; ++i) {
#pragma HLS UNROLL
          const A value = x[i % G::LANES], before = part[c][i];
          const bool mine = i / G::LANES == j % PARTS;
          all[i] = !mine ? before : (j < PARTS ? value : G::combine(before, value));
          part[c][i] = all[i];
        }
        if (j == G::WINDOW - 1) {
          combine_tree<G, PARTS>::run(all);
          vec<Y, G::LANES> y;
          for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
            y.lane[p] = scaled<Y, G>(all[p], scale, n);
          }
          out.write(y);
        }
      }
    }
  }
}

}  // namespace engine

#endif
