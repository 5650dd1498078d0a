// MATMUL: product of two activations. Operand B is loaded into a RAM, then as an MVU (order A).
//
//   for block: for i in LOAD: read B
//              for outer, group, inner: for f: for s: one firing of PE x SIMD
//
// One loop for both, whose counters end where they began, so that nothing drains in between.
//
// Config: T, BLOCKS, OUTER, GROUPS, INNER, ROWS, NF, TAPS, C (channels per position of A), SF, PE,
// SIMD, PARTIAL, II, DEPTH, `static real_t<T> scale()`; for B: LOAD (tokens), B_LANES, B_C (its last axis,
// of rows if BY_ROW), and `static b_place place(int element)`: where element i of B in stream order belongs.
#ifndef PIPEC_MATMUL_H
#define PIPEC_MATMUL_H

#include "dot.h"

namespace engine {

// Group, row (output channel) and reduction index of an element of B.
struct b_place {
  int group, row, k;
};

// A token of operand B into [group][f][s] words of lanes [simd][pe]; overhanging lanes stay zero.
//
// All its elements lie in one word, in rows (BY_ROW) or channels that follow one another from a
// multiple of B_LANES on: one write, to lanes that are known but for their tile.
template <typename G, typename B>
inline void matmul_store(vec<B, G::SIMD * G::PE> *b, const b_place &at,
                         const vec<B, G::B_LANES> &token, int count) {
#pragma HLS INLINE
  constexpr int P = G::B_LANES, PER_TAP = G::SF / G::TAPS;
  static_assert((G::BY_ROW ? G::PE : G::SIMD) % P == 0, "a token lies in one word");
  static_assert(G::B_C % P == 0 || (!G::BY_ROW && G::B_C == G::C), "tokens begin at multiples");
  static_assert(G::BY_ROW || G::C % P == 0 || G::B_C == G::C, "a token lies in one position");
  const int tap = quotient_of<G::C, G::TAPS * G::C>(at.k), channel = at.k - tap * G::C;
  const int tile = quotient_of<G::PE, G::NF * G::PE>(at.row), row = at.row - tile * G::PE;
  const int part = quotient_of<G::SIMD, G::C>(channel), column = channel - part * G::SIMD;
  const int word = (at.group * G::NF + tile) * G::SF + tap * PER_TAP + part;
  for (int s = 0; s < G::SIMD; ++s) {
#pragma HLS UNROLL
    for (int pe = 0; pe < G::PE; ++pe) {
#pragma HLS UNROLL
      const int p = (G::BY_ROW ? pe : s) % P;
      const bool here = G::BY_ROW ? s == column && pe - p == row : pe == row && s - p == column;
      if (here && p < count) b[word].lane[s * G::PE + pe] = token.lane[p];
    }
  }
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
  constexpr int PER_ROW = ceil_div(G::B_C, G::B_LANES), WORDS = G::NF * G::SF;
  int s = 0, word = 0, inner = 0, first = 0;  // of A: token, word of its group, vector, group's word
  for (int block = 0; block < frames * G::BLOCKS; ++block) {
    for (int i = 0; i < G::LOAD + G::OUTER * G::GROUPS * G::INNER * WORDS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (i < G::LOAD) {
        const vec<B, G::B_LANES> token = in1.read();
        const int row = quotient_of<PER_ROW, G::LOAD>(i), c = i - row * PER_ROW;
        const b_place at = G::place(row * G::B_C + c * G::B_LANES);
        matmul_store<G>(b, at, token, lanes_of(c, G::B_C, G::B_LANES));
      } else {
        if (word < G::SF) x[s] = in0.read();
        vec<sum_t<typename G::T>, G::PE> sum = acc.oldest(s < G::PARTIAL);
        multiply_add<G::PE, G::SIMD>(sum, b[first + word], x[s]);
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
        const bool done = word == WORDS - 1, group = done && inner == G::INNER - 1;
        s = s == G::SF - 1 ? 0 : s + 1;
        word = done ? 0 : word + 1;
        inner = group ? 0 : inner + done;
        if (group) first = first == (G::GROUPS - 1) * WORDS ? 0 : first + WORDS;
      }
    }
  }
}

}  // namespace engine

#endif
