// TRANSPOSE: a PERM of matrices [ROWS][C] to [C][ROWS] too large for registers, LANES at a time.
//
// Element (row, column) lies in bank (row + column) % LANES, so that neither LANES neighbours of a
// row, as they are read, nor LANES neighbours of a column, as they are written, meet in one bank.
//
// Config: T, BLOCKS per frame, ROWS, C, LANES of both streams, II, DEPTH.
#ifndef PIPEC_TRANSPOSE_H
#define PIPEC_TRANSPOSE_H

#include "base.h"

namespace engine {

template <typename G>
void transpose(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
               hls::stream<vec<typename G::T, G::LANES>> &out) {
  constexpr int L = G::LANES;
  constexpr int PER_ROW = ceil_div(G::C, L);
  constexpr int PER_COLUMN = ceil_div(G::ROWS, L);
  static typename G::T bank[L][G::ROWS * PER_ROW];
#pragma HLS ARRAY_PARTITION variable = bank complete dim = 1
  for (int block = 0; block < frames * G::BLOCKS; ++block) {
    for (int i = 0; i < G::ROWS * PER_ROW; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const vec<typename G::T, L> token = in.read();
      const int turn = i / PER_ROW % L;
      for (int q = 0; q < L; ++q) {
#pragma HLS UNROLL
        bank[q][i] = token.lane[(q + L - turn) % L];
      }
    }
    for (int i = 0; i < G::C * PER_COLUMN; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const int column = i / PER_COLUMN, first = i % PER_COLUMN * L;
      const int turn = column % L;
      vec<typename G::T, L> token = zeros<typename G::T, L>();
      for (int q = 0; q < L; ++q) {
#pragma HLS UNROLL
        const int p = (q + L - turn) % L;
        if (first + p < G::ROWS) token.lane[p] = bank[q][(first + p) * PER_ROW + column / L];
      }
      out.write(token);
    }
  }
}

}  // namespace engine

#endif
