// ARGMAX and SCATTER: where the maximum of a window lies, and its gradient back to that place.
//
// argmax   behind an SWG whose groups are single tokens: for image, oy, ox, c, tap: one read; the
//          place iy * W + ix of the first largest is written after the last tap.
//          Config: BATCH, W, CF, LANES, KH, KW, SH, SW, DH, DW, PT, PL, OH, OW, II, DEPTH.
// scatter  for image, oy: OW * CF gradients are added where they belong; the rows that no later
//          window covers are written and cleared.
//          Config: T, BATCH, H, W, CF, LANES, SH, PT, OH, OW, RING (rows held), MEETS (gradients
//          after which another one is added to the same place, at least), II, DEPTH.
#ifndef PIPEC_POOLGRAD_H
#define PIPEC_POOLGRAD_H

#include "base.h"

namespace engine {

template <typename G, typename A, typename I>
void argmax(int frames, hls::stream<vec<A, G::LANES>> &in, hls::stream<vec<I, G::LANES>> &out) {
  vec<int32_t, G::LANES> best = zeros<int32_t, G::LANES>();
  vec<I, G::LANES> at = zeros<I, G::LANES>();
  for (int image = 0; image < frames * G::BATCH; ++image) {
    for (int oy = 0; oy < G::OH; ++oy) {
      for (int ox = 0; ox < G::OW; ++ox) {
        for (int c = 0; c < G::CF; ++c) {
          for (int t = 0; t < G::KH * G::KW; ++t) {
#pragma HLS PIPELINE II = G::II
            FIRE(G::II, G::DEPTH);
            const vec<A, G::LANES> x = in.read();
            const int iy = oy * G::SH - G::PT + t / G::KW * G::DH;
            const int ix = ox * G::SW - G::PL + t % G::KW * G::DW;
            for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
              const int32_t size = ordered(x.lane[p]);
              if (t == 0 || size > best.lane[p]) {
                best.lane[p] = size;
                at.lane[p] = I(iy * G::W + ix);
              }
            }
            if (t == G::KH * G::KW - 1) out.write(at);
          }
        }
      }
    }
  }
}

template <typename G, typename I>
void scatter(int frames, hls::stream<vec<typename G::T, G::LANES>> &in0,
             hls::stream<vec<I, G::LANES>> &in1,
             hls::stream<vec<typename G::T, G::LANES>> &out) {
  using T = typename G::T;
  static T sum[G::LANES][G::RING * G::W * G::CF];
#pragma HLS ARRAY_PARTITION variable = sum dim = 1 complete
#pragma HLS DEPENDENCE variable = sum type = inter direction = RAW distance = G::MEETS
  for (int image = 0; image < frames * G::BATCH; ++image) {
    int row = 0;
    for (int oy = 0; oy < G::OH; ++oy) {
      for (int ox = 0; ox < G::OW; ++ox) {
        for (int c = 0; c < G::CF; ++c) {
#pragma HLS PIPELINE II = G::II
          FIRE(G::II, G::DEPTH);
          const vec<T, G::LANES> dy = in0.read();
          const vec<I, G::LANES> at = in1.read();
          for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
            const int iy = at.lane[p] / G::W % G::RING, ix = at.lane[p] % G::W;
            sum[p][(iy * G::W + ix) * G::CF + c] += dy.lane[p];
          }
        }
      }
      const int next = (oy + 1) * G::SH - G::PT;
      const int end = oy == G::OH - 1 ? G::H : smaller(next, G::H);
      for (; row < end; ++row) {
        for (int i = 0; i < G::W * G::CF; ++i) {
#pragma HLS PIPELINE II = G::II
          FIRE(G::II, G::DEPTH);
          vec<T, G::LANES> y;
          for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
            y.lane[p] = sum[p][row % G::RING * G::W * G::CF + i];
            sum[p][row % G::RING * G::W * G::CF + i] = T(0);
          }
          out.write(y);
        }
      }
    }
  }
}

}  // namespace engine

#endif
