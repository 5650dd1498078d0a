// OUTER: outer-product unit. The gradient of a weight matrix, dW = sum over n of dy x^T.
//
//   for n, group, f, s     PE elements of dy times SIMD of x, added to word [group][f][s]
//   for group, row, s      the matrix is written, SIMD elements of one row at a time
//
// Config: T, N (vectors per frame), GROUPS, ROWS (of one group), NF, SF, PE, SIMD, PARTIAL, II,
// DEPTH. PARTIAL accumulators, at most N, are used in turn by n and added in a balanced tree at the end.
#ifndef PIPEC_OUTER_H
#define PIPEC_OUTER_H

#include "dot.h"

namespace engine {

template <typename G>
void outer(int frames, hls::stream<vec<typename G::T, G::SIMD>> &in0,
           hls::stream<vec<typename G::T, G::PE>> &in1,
           hls::stream<vec<typename G::T, G::SIMD>> &out) {
  using T = typename G::T;
  constexpr int WORDS = G::GROUPS * G::NF * G::SF;
  static accumulator<T, G::PE * G::SIMD, G::PARTIAL> acc[WORDS];
#pragma HLS AGGREGATE variable = acc
#pragma HLS DEPENDENCE variable = acc type = inter direction = RAW distance = WORDS
  static vec<T, G::SIMD> x[G::SF];
#pragma HLS AGGREGATE variable = x
  vec<T, G::PE> dy = zeros<T, G::PE>();
  for (int frame = 0; frame < frames; ++frame) {
    for (int n = 0; n < G::N; ++n) {
      for (int group = 0; group < G::GROUPS; ++group) {
        for (int f = 0; f < G::NF; ++f) {
          for (int s = 0; s < G::SF; ++s) {
#pragma HLS PIPELINE II = G::II
            FIRE(G::II, G::DEPTH);
            if (f == 0) x[s] = in0.read();
            if (s == 0) dy = in1.read();
            const int word = (group * G::NF + f) * G::SF + s;
            accumulator<T, G::PE * G::SIMD, G::PARTIAL> now = acc[word];
#pragma HLS ARRAY_PARTITION variable = now.sum complete
            vec<sum_t<T>, G::PE * G::SIMD> sum = now.oldest(n < G::PARTIAL);
            for (int i = 0; i < G::PE * G::SIMD; ++i) {
#pragma HLS UNROLL
              sum.lane[i] += dy.lane[i / G::SIMD] * x[s].lane[i % G::SIMD];
            }
            now.turn(sum);
            acc[word] = now;
          }
        }
      }
    }
    for (int row = 0; row < G::GROUPS * G::ROWS; ++row) {
      for (int s = 0; s < G::SF; ++s) {
#pragma HLS PIPELINE II = G::II
        FIRE(G::II, G::DEPTH);
        const int m = row % G::ROWS;
        const int word = (row / G::ROWS * G::NF + m / G::PE) * G::SF + s;
        const accumulator<T, G::PE * G::SIMD, G::PARTIAL> now = acc[word];
#pragma HLS ARRAY_PARTITION variable = now.sum complete
        sum_t<T> all[G::PARTIAL * G::SIMD];
#pragma HLS ARRAY_PARTITION variable = all complete
        for (int i = 0; i < G::PARTIAL * G::SIMD; ++i) {
#pragma HLS UNROLL
          const int turn = (G::N - 1 - i / G::SIMD) % G::PARTIAL;
          all[i] = now.sum[turn].lane[m % G::PE * G::SIMD + i % G::SIMD];
        }
        adder_tree<G::PARTIAL, G::SIMD>::run(all);
        vec<T, G::SIMD> y;
        for (int i = 0; i < G::SIMD; ++i) {
#pragma HLS UNROLL
          y.lane[i] = T(all[i]);
        }
        out.write(y);
      }
    }
  }
}

}  // namespace engine

#endif
