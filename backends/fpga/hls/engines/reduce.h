// REDUCE: WINDOW tokens per channel group become one: max, min, sum (and mean, by its scale).
//
//   for n, j, c      behind an SWG: KP kernel positions per token; global pool: N = 1
//
// Config: T, N, WINDOW, CF, LANES, KP, PARTIAL, II, DEPTH and `static real_t<T> combine(real_t<T>, real_t<T>)`. A token's
// KP values meet in a balanced tree, the trees' roots in result j % PARTIAL, j ascending, and the
// PARTIAL results in a tree again. The scale is a number, a table read cyclically, or `unscaled`.
#ifndef PIPEC_REDUCE_H
#define PIPEC_REDUCE_H

#include "base.h"

namespace engine {

struct unscaled {};

template <typename T>
inline T scaled(T x, const unscaled &, int) {
  return x;
}

template <typename T>
inline T scaled(T x, const T &scale, int) {
  return x * scale;
}

template <typename T, typename U, int PERIOD>
inline T scaled(T x, const vec<U, 1> (&table)[PERIOD], int n) {
  return x * T(table[n % PERIOD].lane[0]);
}

// Combines N groups of LANES values into the first group: i + ceil(N/2) onto i, repeatedly.
template <typename G, int N>
struct combine_tree {
  template <int SIZE>
  static inline void run(real_t<typename G::T> (&p)[SIZE]) {
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
  static inline void run(real_t<typename G::T> (&)[SIZE]) {}
};

template <typename G, typename Scale>
void reduce(int frames, hls::stream<vec<typename G::T, G::KP * G::LANES>> &in,
            hls::stream<vec<typename G::T, G::LANES>> &out, const Scale &scale) {
  constexpr int PARTS = smaller(G::PARTIAL, G::WINDOW);
  using A = real_t<typename G::T>;
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
          x[i] = A(token.lane[i]);
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
          vec<typename G::T, G::LANES> y;
          for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
            y.lane[p] = scaled(all[p], scale, n);
          }
          out.write(y);
        }
      }
    }
  }
}

}  // namespace engine

#endif
