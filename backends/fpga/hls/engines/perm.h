// PERM: reorders the elements of a block: reads all of it, then writes it in another order.
//
//   perm          any order; the block is held in registers, any lane in any cycle
//   perm_words    whole tokens in another order; the block lies in a memory, a token in a word
//
// Config: T, BLOCKS per frame, ELEMENTS per block, C_IN, LANES_IN, READS (tokens), C_OUT,
// LANES_OUT, WRITES, II, DEPTH and `static int from(int element)`: which element of the input
// (row-major, without padding) is element i of the output.
#ifndef PIPEC_PERM_H
#define PIPEC_PERM_H

#include "base.h"

namespace engine {

template <typename G>
void perm(int frames, hls::stream<vec<typename G::T, G::LANES_IN>> &in,
          hls::stream<vec<typename G::T, G::LANES_OUT>> &out) {
  constexpr int PER_IN = ceil_div(G::C_IN, G::LANES_IN);
  constexpr int PER_OUT = ceil_div(G::C_OUT, G::LANES_OUT);
  static typename G::T bank[G::ELEMENTS];
#pragma HLS ARRAY_PARTITION variable = bank complete
  for (int block = 0; block < frames * G::BLOCKS; ++block) {
    for (int i = 0; i < G::READS + G::WRITES; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (i < G::READS) {
        const vec<typename G::T, G::LANES_IN> token = in.read();
        const int row = quotient_of<PER_IN, G::READS>(i), c = i - row * PER_IN;
        for (int p = 0; p < G::LANES_IN; ++p) {
#pragma HLS UNROLL
          if (p < lanes_of(c, G::C_IN, G::LANES_IN)) {
            bank[row * G::C_IN + c * G::LANES_IN + p] = token.lane[p];
          }
        }
      } else {
        const int k = i - G::READS;
        const int row = quotient_of<PER_OUT, G::WRITES>(k), c = k - row * PER_OUT;
        vec<typename G::T, G::LANES_OUT> token;
        for (int p = 0; p < G::LANES_OUT; ++p) {
#pragma HLS UNROLL
          const bool real = p < lanes_of(c, G::C_OUT, G::LANES_OUT);
          const int first = row * G::C_OUT + c * G::LANES_OUT;
          token.lane[p] = real ? bank[G::from(first + p)] : typename G::T(0);
        }
        out.write(token);
      }
    }
  }
}

template <typename G>
void perm_words(int frames, hls::stream<vec<typename G::T, G::LANES_IN>> &in,
                hls::stream<vec<typename G::T, G::LANES_IN>> &out) {
  static vec<typename G::T, G::LANES_IN> word[G::READS];
#pragma HLS AGGREGATE variable = word
  for (int block = 0; block < frames * G::BLOCKS; ++block) {
    for (int i = 0; i < G::READS + G::WRITES; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (i < G::READS) {
        word[i] = in.read();
      } else {
        const int from = G::from((i - G::READS) * G::LANES_IN);
        out.write(word[quotient_of<G::LANES_IN, G::ELEMENTS>(from)]);
      }
    }
  }
}

}  // namespace engine

#endif
