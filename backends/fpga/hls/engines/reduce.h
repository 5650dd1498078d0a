// REDUCE: WINDOW tokens per channel group become one: max, min, sum (and mean, by its scale).
//
//   for n, j, c      behind an SWG: KP kernel positions per token; global pool: N = 1
//
// Config: T, N, WINDOW, CF, LANES, KP, PARTIAL, II, DEPTH and `static term_t<T> combine(term_t<T>, term_t<T>)`. A token's
// KP values meet in a balanced tree, the trees' roots in result j % PARTIAL, j ascending, and the
// PARTIAL results in a tree again; they turn in a ring, as in dot.h. The scale is a number, a table
// read cyclically, `unscaled`, or `steps`: quantised values reduce as integers, a rescale takes
// their sums to the scale of the result. Fixed values do so too; their scale is a `ratio`.
#ifndef PIPEC_REDUCE_H
#define PIPEC_REDUCE_H

#include "base.h"
#include "ops.h"

namespace engine {

struct unscaled {};
struct steps {};
// WHOLE / 2^SHIFT
template <int WHOLE, int SHIFT>
struct ratio {};

// A value as it takes part, and back: quantised ones in steps of their scale.
template <typename T>
inline term_t<T> term(const T &x) {
  return term_t<T>(x);
}
template <int M, int E, int Z>
inline int32_t term(const quantised<M, E, Z> &x) {
  return x.steps();
}
template <int W, int I>
inline int64_t term(const fixed<W, I> &x) {
  return x.raw;
}

template <typename Y, typename G, typename A>
inline Y scaled(A x, const unscaled &, int) {
  return Y(x);
}
template <typename Y, typename G>
inline Y scaled(int64_t x, const unscaled &, int) {
  return Y::template of<0>(x);
}
template <typename Y, typename G, int WHOLE, int SHIFT>
inline Y scaled(int64_t x, const ratio<WHOLE, SHIFT> &, int) {
  return Y::template of<SHIFT>(x * WHOLE);
}
template <typename Y, typename G, int W, int I, int PERIOD>
inline Y scaled(int64_t x, const vec<fixed<W, I>, 1> (&table)[PERIOD], int n) {
  return Y::template of<W - I>(x * table[n % PERIOD].lane[0].raw);
}
template <typename Y, typename G>
inline Y scaled(int32_t x, const steps &, int) {
  return Y::of(x + Y::ZERO);
}
template <typename Y, typename G>
inline Y scaled(int32_t x, const rescale &by, int) {
  return narrowed<Y, G>(on_fabric(x, by.multiplier));
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
  static vec<A, PARTS * G::LANES> part[G::CF];
#pragma HLS AGGREGATE variable = part
#pragma HLS BIND_STORAGE variable = part type = ram_2p
#pragma HLS DEPENDENCE variable = part type = inter direction = RAW distance = G::CF true
  auto one = zeros<A, PARTS * G::LANES>();  // of one token per row the register in its place
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
        vec<A, PARTS * G::LANES> turn = G::CF == 1 ? one : part[c];
        for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
          if (j >= PARTS) x[p] = G::combine(turn.lane[(PARTS - 1) * G::LANES + p], x[p]);
        }
        for (int i = PARTS * G::LANES - 1; i >= 0; --i) {
#pragma HLS UNROLL
          turn.lane[i] = i < G::LANES ? x[i % G::LANES] : turn.lane[larger(i - G::LANES, 0)];
        }
        one = turn;
        if (G::CF > 1) part[c] = turn;
        if (j == G::WINDOW - 1) {
          A all[PARTS * G::LANES];
#pragma HLS ARRAY_PARTITION variable = all complete
          for (int i = 0; i < PARTS * G::LANES; ++i) {
#pragma HLS UNROLL
            const int place = (G::WINDOW - 1 - i / G::LANES) % PARTS;
            all[i] = turn.lane[place * G::LANES + i % G::LANES];
          }
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
