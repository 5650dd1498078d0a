// The ends of a stage: AXI4-Stream beats to tokens and back. TLAST marks the end of a frame.
//
// Config: T, LANES, TOKENS per frame, II, DEPTH.
#ifndef PIPEC_AXIS_H
#define PIPEC_AXIS_H

#include "ap_axi_sdata.h"
#include "base.h"

namespace engine {

template <typename T, int P>
using axis_stream = hls::stream<hls::axis<vec<T, P>, 0, 0, 0>>;

template <typename G>
void axis_in(int frames, axis_stream<typename G::T, G::LANES> &in,
             hls::stream<vec<typename G::T, G::LANES>> &out) {
  for (int i = 0; i < frames * G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    out.write(in.read().data);
  }
}

template <typename G>
void axis_out(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
              axis_stream<typename G::T, G::LANES> &out) {
  for (int f = 0; f < frames; ++f) {
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      hls::axis<vec<typename G::T, G::LANES>, 0, 0, 0> word;
      word.data = in.read();
      word.keep = -1;
      word.strb = -1;
      word.last = i == G::TOKENS - 1;
      out.write(word);
    }
  }
}

}  // namespace engine

#endif
