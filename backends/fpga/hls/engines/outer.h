// OUTER: outer-product unit. The gradient of a weight matrix, dW = sum over n of dy x^T.
//
//   for n, group, f, s     PE elements of dy times SIMD of x, added to word [group][f][s]
//   for group, row, s      the matrix is written, SIMD elements of one row at a time
//
// Config: T, N (vectors per frame), GROUPS, ROWS (of one group), NF, SF, PE, SIMD, PARTIAL, II,
// DEPTH. PARTIAL accumulators, at most N, are used in turn by n and added in a balanced tree at the end.
// One loop for both, whose counters end where they began, so that nothing drains in between.
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
#pragma HLS DEPENDENCE variable = acc type = inter direction = RAW distance = WORDS true
  static vec<T, G::SIMD> x[G::SF];
#pragma HLS AGGREGATE variable = x
  vec<T, G::PE> dy = zeros<T, G::PE>();
  int n = 0, word = 0, s = 0, row = 0, lane = 0, f = 0;  // row: of the group; lane: row % PE
  for (int frame = 0; frame < frames; ++frame) {
    for (int i = 0; i < G::N * WORDS + G::GROUPS * G::ROWS * G::SF; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const bool adds = i < G::N * WORDS, end = s == G::SF - 1;
      if (adds) {
        if (f == 0) x[s] = in0.read();
        if (s == 0) dy = in1.read();
        accumulator<T, G::PE * G::SIMD, G::PARTIAL> now = acc[word];
#pragma HLS ARRAY_PARTITION variable = now.sum complete
        vec<sum_t<T>, G::PE * G::SIMD> sum = now.oldest(G::N <= G::PARTIAL || n < G::PARTIAL);
        for (int k = 0; k < G::PE * G::SIMD; ++k) {
#pragma HLS UNROLL
          sum.lane[k] += dy.lane[k / G::SIMD] * x[s].lane[k % G::SIMD];
        }
        now.turn(sum);
        acc[word] = now;
        const bool last = word == WORDS - 1;
        f = end ? (f == G::NF - 1 ? 0 : f + 1) : f;
        word = last ? 0 : word + 1;
        n = last ? (n == G::N - 1 ? 0 : n + 1) : n;
      } else {
        const accumulator<T, G::PE * G::SIMD, G::PARTIAL> now = acc[word];
#pragma HLS ARRAY_PARTITION variable = now.sum complete
        sum_t<T> all[G::PARTIAL * G::SIMD];
#pragma HLS ARRAY_PARTITION variable = all complete
        for (int k = 0; k < G::PARTIAL * G::SIMD; ++k) {
#pragma HLS UNROLL
          const int turn = (G::N - 1 - k / G::SIMD) % G::PARTIAL;
          all[k] = now.sum[turn].lane[lane * G::SIMD + k % G::SIMD];
        }
        adder_tree<G::PARTIAL, G::SIMD>::run(all);
        vec<T, G::SIMD> y;
        for (int k = 0; k < G::SIMD; ++k) {
#pragma HLS UNROLL
          y.lane[k] = T(all[k]);
        }
        out.write(y);
        const bool group = end && row == G::ROWS - 1, tile = group || lane == G::PE - 1;
        const int next = word == WORDS - 1 ? 0 : word + 1;
        word = end && !tile ? word - (G::SF - 1) : next;
        lane = end ? (tile ? 0 : lane + 1) : lane;
        row = end ? (group ? 0 : row + 1) : row;
      }
      s = end ? 0 : s + 1;
    }
  }
}

}  // namespace engine

#endif
