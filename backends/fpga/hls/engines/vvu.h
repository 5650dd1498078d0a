// VVU: vector-vector unit, the depthwise convolution. Each channel has its own kernel.
//
//   for n, c, k      KP kernel positions of LANES channels per firing
//
// Config: T, N (pixels), CF, KS (firings per window and token: kernel positions / KP), KP, LANES,
// PARTIAL, II, DEPTH. Weight words lie as [c][k] with lanes [kp][lane]. Sums as in dot.h.
#ifndef PIPEC_VVU_H
#define PIPEC_VVU_H

#include "mvu.h"

namespace engine {

template <typename G, typename W, typename Y, typename Bias>
void vvu(int frames, hls::stream<vec<typename G::T, G::KP * G::LANES>> &in,
         hls::stream<vec<Y, G::LANES>> &out,
         const vec<W, G::KP * G::LANES> (&weight)[G::CF * G::KS], const Bias &bias) {
  accumulator<typename G::T, G::LANES, G::PARTIAL> acc;
#pragma HLS ARRAY_PARTITION variable = acc.sum complete
  acc.clear();
  for (int n = 0; n < frames * G::N; ++n) {
    for (int c = 0; c < G::CF; ++c) {
      for (int k = 0; k < G::KS; ++k) {
#pragma HLS PIPELINE II = G::II
        FIRE(G::II, G::DEPTH);
        const vec<typename G::T, G::KP * G::LANES> x = in.read();
        sum_t<typename G::T> product[G::KP * G::LANES];
#pragma HLS ARRAY_PARTITION variable = product complete
        for (int i = 0; i < G::KP * G::LANES; ++i) {
#pragma HLS UNROLL
          product[i] = weight[c * G::KS + k].lane[i] * x.lane[i];
        }
        adder_tree<G::KP, G::LANES>::run(product);
        vec<sum_t<typename G::T>, G::LANES> sum = acc.oldest(k < G::PARTIAL);
        for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
          sum.lane[p] += product[p];
        }
        acc.turn(sum);
        if (k == G::KS - 1) out.write(add_bias<Y, G>(acc.template turned<G::KS>(), bias, c));
      }
    }
  }
}

}  // namespace engine

#endif
