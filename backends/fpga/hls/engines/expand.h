// ONE_HOT and SPREAD: engines that write more than they read.
//
// one_hot  ROWS class numbers become rows of C numbers: one where the class is, else zero;
//          IGNORED and numbers outside of C have no one.
//          Config: T, ROWS, CHANNELS, LANES, IGNORED, II, DEPTH.
// spread   zeros between pixels: pixel (iy, ix) of H x W is read where SH divides iy and SW
//          divides ix, else zero. Config: T, BATCH, H, W, CF, LANES, SH, SW, II, DEPTH.
#ifndef PIPEC_EXPAND_H
#define PIPEC_EXPAND_H

#include "base.h"

namespace engine {

template <typename G, typename I>
void one_hot(int frames, hls::stream<vec<I, 1>> &in,
             hls::stream<vec<typename G::T, G::LANES>> &out) {
  using T = typename G::T;
  int at = 0;
  for (int row = 0; row < frames * G::ROWS; ++row) {
    for (int c = 0; c < ceil_div(G::CHANNELS, G::LANES); ++c) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (c == 0) at = in.read().lane[0];
      vec<T, G::LANES> y;
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        y.lane[p] = at != G::IGNORED && c * G::LANES + p == at ? T(1) : T(0);
      }
      out.write(y);
    }
  }
}

template <typename G>
void spread(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
            hls::stream<vec<typename G::T, G::LANES>> &out) {
  for (int iy = 0; iy < frames * G::BATCH * G::H; ++iy) {
    for (int ix = 0; ix < G::W; ++ix) {
      for (int c = 0; c < G::CF; ++c) {
#pragma HLS PIPELINE II = G::II
        FIRE(G::II, G::DEPTH);
        const bool here = iy % G::H % G::SH == 0 && ix % G::SW == 0;
        if (here) {
          out.write(in.read());
        } else {
          out.write(zeros<typename G::T, G::LANES>());
        }
      }
    }
  }
}

}  // namespace engine

#endif
