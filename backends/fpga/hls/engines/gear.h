// DWC: width converter. The same elements in other tokens, padding dropped and made anew.
//
// Config: T, REPEAT; per repetition ROWS_OUT rows of C_OUT channels in tokens of LANES_OUT out of
// rows of C_IN channels in tokens of LANES_IN; II, DEPTH.
#ifndef PIPEC_GEAR_H
#define PIPEC_GEAR_H

#include "base.h"

namespace engine {

// A shift register that takes tokens of one width and gives tokens of another.
template <typename T, int PI, int PO>
struct gear {
  T lane[PI + PO];
  int have = 0;

  // Appends the first `count` lanes.
  void push(const vec<T, PI> &token, int count) {
    for (int i = 0; i < PI; ++i) {
#pragma HLS UNROLL
      if (i < count) lane[have + i] = token.lane[i];
    }
    have += count;
  }

  // Takes `count` lanes out as one token; the lanes behind them are zero.
  vec<T, PO> pop(int count) {
    vec<T, PO> token;
    for (int i = 0; i < PO; ++i) {
#pragma HLS UNROLL
      token.lane[i] = i < count ? lane[i] : T(0);
    }
    have -= count;
    for (int i = 0; i < PI; ++i) {
#pragma HLS UNROLL
      if (i < have) lane[i] = lane[i + count];
    }
    return token;
  }
};

template <typename G>
void dwc(int frames, hls::stream<vec<typename G::T, G::LANES_IN>> &in,
         hls::stream<vec<typename G::T, G::LANES_OUT>> &out) {
  constexpr int TOKENS = G::ROWS_OUT * ceil_div(G::C_OUT, G::LANES_OUT);
  gear<typename G::T, G::LANES_IN, G::LANES_OUT> g;
#pragma HLS ARRAY_PARTITION variable = g.lane complete
  int channel_in = 0, channel_out = 0;
  for (int r = 0; r < frames * G::REPEAT; ++r) {
    int done = 0;
    while (done < TOKENS) {
#pragma HLS LOOP_TRIPCOUNT min = TOKENS max = TOKENS
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const int want = smaller(G::LANES_OUT, G::C_OUT - channel_out);
      if (g.have < want) {
        const int count = smaller(G::LANES_IN, G::C_IN - channel_in);
        g.push(in.read(), count);
        channel_in = channel_in + count == G::C_IN ? 0 : channel_in + count;
      }
      if (g.have >= want) {
        out.write(g.pop(want));
        channel_out = channel_out + want == G::C_OUT ? 0 : channel_out + want;
        ++done;
      }
    }
  }
}

}  // namespace engine

#endif
