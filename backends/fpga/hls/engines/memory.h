// Engines that touch memory: tables filled at start, weights streamed, rows looked up.
//
// Memory of streamed weights is seen in beats of a power of two of bits; that of tables on chip in
// elements, since these are read once, so that a narrow adapter does. A table starts at a multiple of
// 64 bytes; its elements lie densely.
#ifndef PIPEC_MEMORY_H
#define PIPEC_MEMORY_H

#include "base.h"
#include "gear.h"

namespace engine {

template <typename T>
struct beat_of {
  static constexpr int LANES = 64 / sizeof(T);
};

template <typename T>
using beat = vec<T, beat_of<T>::LANES>;

// Fills a table from memory, element by element: words move on by one lane.
template <typename T, int LANES, int WORDS>
void load_table(const T *memory, int first_beat, vec<T, LANES> (&table)[WORDS]) {
  vec<T, LANES> to = zeros<T, LANES>();
  const int first = first_beat * beat_of<T>::LANES;
  int word = 0, lane = 0;
  for (int i = 0; i < WORDS * LANES; ++i) {
#pragma HLS PIPELINE
    const T element = memory[first + i];
    for (int p = 0; p < LANES; ++p) {
#pragma HLS UNROLL
      to.lane[p] = p < LANES - 1 ? to.lane[smaller(p + 1, LANES - 1)] : element;
    }
    if (lane == LANES - 1) table[word++] = to;
    lane = lane == LANES - 1 ? 0 : lane + 1;
  }
}

// LOAD: streams words of LANES elements from memory, REPEAT times per frame, in order.
// Config: T, WORDS, LANES, REPEAT; BEAT lanes are read at once; II, DEPTH.
template <typename G>
void load(int frames, hls::stream<vec<typename G::T, G::LANES>> &out,
          const vec<typename G::T, G::BEAT> *memory) {
  constexpr int B = G::BEAT;
  gear<typename G::T, B, G::LANES> g;
#pragma HLS ARRAY_PARTITION variable = g.lane complete
  int at = 0;
  for (int r = 0; r < frames * G::REPEAT; ++r) {
    for (int i = 0; i < G::WORDS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      for (int k = 0; k < ceil_div(G::LANES, B); ++k) {
#pragma HLS UNROLL
        if (G::LANES % B == 0) g.have = k * B;  // nothing is left of a word: known, no multiplexer
        if (g.have < G::LANES) g.push(memory[at++], B);
      }
      out.write(g.pop(G::LANES));
      if (i == G::WORDS - 1) at = g.have = 0;  // what is left of the last beat is no word
    }
  }
}

// GATHER: CF tokens of a table per index; negative ones count from its end.
// Config: T, N, CF, LANES, ENTRIES, II, DEPTH. An index outside the table is taken to its edge.
template <typename G, typename I, typename Table>
void gather(int frames, hls::stream<vec<I, 1>> &in,
            hls::stream<vec<typename G::T, G::LANES>> &out, const Table &table) {
  int row = 0;
  for (int n = 0; n < frames * G::N; ++n) {
    for (int c = 0; c < G::CF; ++c) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (c == 0) {
        const int at = int(in.read().lane[0]);
        row = smaller(larger(at < 0 ? at + G::ENTRIES : at, 0), G::ENTRIES - 1);
      }
      out.write(table[row * G::CF + c]);
    }
  }
}

}  // namespace engine

#endif
