// MATMUL: product of two activations. Operand B is loaded into a RAM, then as an MVU (order A).
//
//   for block: for i in LOAD: read B
//              for outer, group, inner: for f: for s: one firing of PE x SIMD
//
// Config: T, BLOCKS, OUTER, GROUPS, INNER, ROWS, NF, TAPS, C (channels per position of A), SF, PE,
// SIMD, PARTIAL, II, DEPTH, `static real_t<T> scale()`; for B: LOAD (tokens), B_LANES, B_C (its last axis),
// and `static b_place place(int element)`: where element i of B in stream order belongs.
#ifndef PIPEC_MATMUL_H
#define PIPEC_MATMUL_H

#include "dot.h"

namespace engine {

// Group, row (output channel) and reduction index of an element of B.
struct b_place {
  int group, row, k;
};

// Operand B as [group][f][s] words of lanes [simd][pe]; overhanging lanes stay zero.
template <typename G, typename B>
inline void matmul_store(vec<B, G::SIMD * G::PE> *b, const b_place &at, B value) {
#pragma HLS INLINE
  constexpr int PER_TAP = G::SF / G::TAPS;
  const int tap = at.k / G::C, channel = at.k % G::C;
  const int s = tap * PER_TAP + channel / G::SIMD;
  const int word = (at.group * G::NF + at.row / G::PE) * G::SF + s;
  b[word].lane[channel % G::SIMD * G::PE + at.row % G::PE] = value;
}

template <typename G, typename B, typename Y>
void matmul(int frames, hls::stream<vec<typename G::T, G::SIMD>> &in0,
            hls::stream<vec<B, G::B_LANES>> &in1, hls::stream<vec<Y, G::PE>> &out) {
  static vec<B, G::SIMD * G::PE> b[G::GROUPS * G::NF * G::SF];
#pragma HLS AGGREGATE variable = b
  static vec<typename G::T, G::SIMD> x[G::SF];
#pragma HLS AGGREGATE variable = x
  accumulator<typename G::T, G::PE, G::PARTIAL> acc;
#pragma HLS ARRAY_PARTITION variable = acc.sum complete
  acc.clear();
  constexpr int PER_ROW = ceil_div(G::B_C, G::B_LANES);
  for (int block = 0; block < frames * G::BLOCKS; ++block) {
    for (int i = 0; i < G::LOAD; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const vec<B, G::B_LANES> token = in1.read();
      const int first = i / PER_ROW * G::B_C + i % PER_ROW * G::B_LANES;
      for (int p = 0; p < G::B_LANES; ++p) {
#pragma HLS UNROLL
        if (p < lanes_of(i % PER_ROW, G::B_C, G::B_LANES)) {
          matmul_store<G>(b, G::place(first + p), token.lane[p]);
        }
      }
    }
    for (int v = 0; v < G::OUTER * G::GROUPS * G::INNER; ++v) {
      const int group = v / G::INNER % G::GROUPS;
      for (int f = 0; f < G::NF; ++f) {
        for (int s = 0; s < G::SF; ++s) {
#pragma HLS PIPELINE II = G::II
          FIRE(G::II, G::DEPTH);
          if (f == 0) x[s] = in0.read();
          vec<sum_t<typename G::T>, G::PE> sum = acc.oldest(s < G::PARTIAL);
          multiply_add<G::PE, G::SIMD>(sum, b[(group * G::NF + f) * G::SF + s], x[s]);
          acc.turn(sum);
          if (s == G::SF - 1) {
            const vec<sum_t<typename G::T>, G::PE> total = acc.template turned<G::SF>();
            vec<Y, G::PE> y;
            for (int p = 0; p < G::PE; ++p) {
#pragma HLS UNROLL
              y.lane[p] = Y(G::finish(total.lane[p]));
            }
            out.write(y);
          }
        }
      }
    }
  }
}

}  // namespace engine

#endif
