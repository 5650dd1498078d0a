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
  constexpr int READS = G::ROWS * PER_ROW, WRITES = G::C * PER_COLUMN;
  for (int block = 0; block < frames * G::BLOCKS; ++block) {
    for (int i = 0; i < READS + WRITES; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (i < READS) {
        const vec<typename G::T, L> token = in.read();
        const int turn = remainder_of<L, G::ROWS>(quotient_of<PER_ROW, READS>(i));
        for (int q = 0; q < L; ++q) {
#pragma HLS UNROLL
          bank[q][i] = token.lane[q >= turn ? q - turn : q + L - turn];
        }
      } else {
        const int k = i - READS, column = quotient_of<PER_COLUMN, WRITES>(k);
        const int first = (k - column * PER_COLUMN) * L, word = quotient_of<L, G::C>(column);
        const int turn = column - word * L;
        vec<typename G::T, L> token = zeros<typename G::T, L>();
        for (int q = 0; q < L; ++q) {
#pragma HLS UNROLL
          const int p = q >= turn ? q - turn : q + L - turn;
          if (first + p < G::ROWS) token.lane[p] = bank[q][(first + p) * PER_ROW + word];
        }
        out.write(token);
      }
    }
  }
}

}  // namespace engine

#endif
