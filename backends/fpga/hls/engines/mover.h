// Engines that move whole values between a stream and memory: from one kernel to another, and the
// gradients of several microbatches into one sum.
#ifndef PIPEC_MOVER_H
#define PIPEC_MOVER_H

#include "base.h"

namespace engine {

// STORE: frame f, of microbatch n = microbatch + f, to slot n % SLOTS of a ring.
// Config: T, TOKENS, LANES, SLOTS, II, DEPTH.
template <typename G>
void store(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
           vec<typename G::T, G::LANES> *memory, int microbatch) {
  for (int f = 0; f < frames; ++f) {
    vec<typename G::T, G::LANES> *slot =
        memory + std::size_t((microbatch + f) % G::SLOTS) * G::TOKENS;
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      slot[i] = in.read();
    }
  }
}

// FETCH: the same frame out of the ring.
// Config: T, TOKENS, LANES, SLOTS, II, DEPTH.
template <typename G>
void fetch(int frames, hls::stream<vec<typename G::T, G::LANES>> &out,
           const vec<typename G::T, G::LANES> *memory, int microbatch) {
  for (int f = 0; f < frames; ++f) {
    const vec<typename G::T, G::LANES> *slot =
        memory + std::size_t((microbatch + f) % G::SLOTS) * G::TOKENS;
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      out.write(slot[i]);
    }
  }
}

// ACCUMULATE: adds every frame to a sum, which begins anew with each update's first microbatch.
// Config: T, TOKENS, LANES, II, DEPTH.
template <typename G>
void accumulate(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
                vec<float, G::LANES> *memory, int microbatch, int microbatches) {
  for (int f = 0; f < frames; ++f) {
    const bool first = (microbatch + f) % microbatches == 0;
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
#pragma HLS DEPENDENCE inter false variable = memory
      FIRE(G::II, G::DEPTH);
      const vec<typename G::T, G::LANES> token = in.read();
      vec<float, G::LANES> sum = first ? zeros<float, G::LANES>() : memory[i];
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        sum.lane[p] += float(token.lane[p]);
      }
      memory[i] = sum;
    }
  }
}

// SPILL: the way into a FIFO that lies in memory, a ring of SLOTS chunks. The reader is told of every
// chunk when it is full; that token takes as long as memory does (DEPTH).
// Config: T, TOKENS, LANES, CHUNK, SLOTS, II, DEPTH.
template <typename G>
void spill(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
           hls::stream<vec<int32_t, 1>> &full, vec<typename G::T, G::LANES> *memory) {
  int slot = 0;
  for (int f = 0; f < frames; ++f) {
    for (int i = 0, at = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      memory[std::size_t(slot) * G::CHUNK + at] = in.read();
      if (++at == G::CHUNK) {
        full.write(zeros<int32_t, 1>());
        at = 0;
        slot = slot + 1 == G::SLOTS ? 0 : slot + 1;
      }
    }
  }
}

// REFILL: the way out. A chunk is not written again before it is read: the stream between the two
// holds fewer tokens than the ring has chunks.
// Config: T, TOKENS, LANES, CHUNK, SLOTS, II, DEPTH.
template <typename G>
void refill(int frames, hls::stream<vec<int32_t, 1>> &full,
            hls::stream<vec<typename G::T, G::LANES>> &out,
            const vec<typename G::T, G::LANES> *memory) {
  int slot = 0;
  for (int f = 0; f < frames; ++f) {
    for (int i = 0, at = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (at == 0) full.read();
      out.write(memory[std::size_t(slot) * G::CHUNK + at]);
      if (++at == G::CHUNK) {
        at = 0;
        slot = slot + 1 == G::SLOTS ? 0 : slot + 1;
      }
    }
  }
}

}  // namespace engine

#endif
