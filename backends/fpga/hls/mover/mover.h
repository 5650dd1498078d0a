// Data movers between memory and the streams of a stage, for a host that reaches memory alone.
//
//   memory ─► fetch ─► to_port ─► stage ─► from_port ─► keep ─► memory
//
// Memory is seen as beats of 512 bits. The tokens of a call's frames lie in it densely, one after
// the other; behind the last one the last beat is padded with zeros.
#ifndef PIPEC_MOVER_H
#define PIPEC_MOVER_H

#include "engines/axis.h"
#include "engines/gear.h"
#include "engines/memory.h"

namespace mover {

// Beats that so many frames of TOKENS tokens take.
template <typename T, int LANES, int TOKENS>
int beats_of(int frames) {
  constexpr int B = engine::beat_of<T>::LANES;
  return int((int64_t(frames) * TOKENS * LANES + B - 1) / B);
}

// Beats of memory, in bursts.
template <typename T, int LANES, int TOKENS>
void fetch(int frames, const engine::beat<T> *memory, hls::stream<engine::beat<T>> &out) {
  const int beats = beats_of<T, LANES, TOKENS>(frames);
  for (int i = 0; i < beats; ++i) {
#pragma HLS PIPELINE II = 1
    out.write(memory[i]);
  }
}

// Beats to the tokens of an input; TLAST marks the end of a frame.
template <typename T, int LANES, int TOKENS>
void to_port(int frames, hls::stream<engine::beat<T>> &in, engine::axis_stream<T, LANES> &out) {
  constexpr int B = engine::beat_of<T>::LANES;
  engine::gear<T, B, LANES> g;
#pragma HLS ARRAY_PARTITION variable = g.lane complete
  for (int f = 0; f < frames; ++f) {
    for (int i = 0; i < TOKENS;) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = TOKENS max = TOKENS
      if (g.have < LANES) g.push(in.read(), B);
      if (g.have >= LANES) {
        hls::axis<vec<T, LANES>, 0, 0, 0> word;
        word.data = g.pop(LANES);
        word.keep = -1;
        word.strb = -1;
        word.last = i == TOKENS - 1;
        out.write(word);
        ++i;
      }
    }
  }
}

// Tokens of an output to beats.
template <typename T, int LANES, int TOKENS>
void from_port(int frames, engine::axis_stream<T, LANES> &in, hls::stream<engine::beat<T>> &out) {
  constexpr int B = engine::beat_of<T>::LANES;
  engine::gear<T, LANES, B> g;
#pragma HLS ARRAY_PARTITION variable = g.lane complete
  int64_t left = int64_t(frames) * TOKENS;
  const int beats = beats_of<T, LANES, TOKENS>(frames);
  for (int i = 0; i < beats;) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = TOKENS max = TOKENS
    if (left > 0 && g.have < B) {
      g.push(in.read().data, LANES);
      --left;
    }
    if (g.have >= B || left == 0) {
      out.write(g.pop(smaller(g.have, B)));
      ++i;
    }
  }
}

// Beats to memory, in bursts.
template <typename T, int LANES, int TOKENS>
void keep(int frames, hls::stream<engine::beat<T>> &in, engine::beat<T> *memory) {
  const int beats = beats_of<T, LANES, TOKENS>(frames);
  for (int i = 0; i < beats; ++i) {
#pragma HLS PIPELINE II = 1
    memory[i] = in.read();
  }
}

}  // namespace mover

#endif
