// Engines that move whole values between a stream and memory: from one kernel to another, and the
// gradients of several microbatches into one sum.
#ifndef PIPEC_MOVER_H
#define PIPEC_MOVER_H

#include "base.h"

namespace engine {

// The place behind another in a ring of so many words.
template <int64_t WORDS>
inline int behind(int at) {
  static_assert(WORDS < int64_t(1) << 31, "places are numbers of 32 bits");
  return at == WORDS - 1 ? 0 : at + 1;
}

// STORE: frame f, of microbatch n = microbatch + f, to slot n % SLOTS of a ring.
// Config: T, TOKENS, LANES, SLOTS, II, DEPTH.
template <typename G>
void store(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
           vec<typename G::T, G::LANES> *memory, int microbatch) {
  int at = microbatch % G::SLOTS * G::TOKENS;
  for (int f = 0; f < frames; ++f) {
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      memory[at] = in.read();
      at = behind<int64_t(G::SLOTS) * G::TOKENS>(at);
    }
  }
}

// FETCH: the same frame out of the ring.
// Config: T, TOKENS, LANES, SLOTS, II, DEPTH.
template <typename G>
void fetch(int frames, hls::stream<vec<typename G::T, G::LANES>> &out,
           const vec<typename G::T, G::LANES> *memory, int microbatch) {
  int at = microbatch % G::SLOTS * G::TOKENS;
  for (int f = 0; f < frames; ++f) {
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      out.write(memory[at]);
      at = behind<int64_t(G::SLOTS) * G::TOKENS>(at);
    }
  }
}

// ACCUMULATE: adds every frame to a sum, which begins anew with each update's first microbatch. A
// frame has as many firings as pass until its first word is written, since the next frame reads it.
// Config: T, TOKENS, LANES, FIRINGS, II, DEPTH.
template <typename G>
void accumulate(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
                vec<float, G::LANES> *memory, int microbatch, int microbatches) {
  int n = microbatch % microbatches;
  for (int f = 0; f < frames; ++f) {
    for (int i = 0; i < G::FIRINGS; ++i) {
#pragma HLS PIPELINE II = G::II
#pragma HLS DEPENDENCE variable = memory type = inter direction = RAW distance = G::FIRINGS true
      FIRE(G::II, G::DEPTH);
      if (i < G::TOKENS) {
        const vec<typename G::T, G::LANES> token = in.read();
        vec<float, G::LANES> sum = n == 0 ? zeros<float, G::LANES>() : memory[i];
        for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
          sum.lane[p] += float(token.lane[p]);
        }
        memory[i] = sum;
      }
      if (i == G::FIRINGS - 1) n = n == microbatches - 1 ? 0 : n + 1;
    }
  }
}

// SPILL: the way into a FIFO that lies in memory, a ring of SLOTS chunks. The reader is told of every
// chunk when it is full; that token takes as long as memory does (DEPTH).
// Config: T, TOKENS, LANES, CHUNK, SLOTS, II, DEPTH.
template <typename G>
void spill(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
           hls::stream<vec<int32_t, 1>> &full, vec<typename G::T, G::LANES> *memory) {
  int at = 0;
  for (int c = 0; c < frames * (G::TOKENS / G::CHUNK); ++c) {
    for (int i = 0; i < G::CHUNK; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      memory[at] = in.read();
      at = behind<int64_t(G::SLOTS) * G::CHUNK>(at);
      if (i == G::CHUNK - 1) full.write(zeros<int32_t, 1>());
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
  int at = 0;
  for (int c = 0; c < frames * (G::TOKENS / G::CHUNK); ++c) {
    for (int i = 0; i < G::CHUNK; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (i == 0) full.read();
      out.write(memory[at]);
      at = behind<int64_t(G::SLOTS) * G::CHUNK>(at);
    }
  }
}

}  // namespace engine

#endif
