// DWC: width converter. The same elements in other tokens, padding dropped and made anew.
//
// Config: T, REPEAT; FIRINGS per repetition, at whose end nothing is held: rows of C_OUT channels in
// tokens of LANES_OUT out of rows of C_IN channels in tokens of LANES_IN; II, DEPTH.
#ifndef PIPEC_GEAR_H
#define PIPEC_GEAR_H

#include "base.h"

namespace engine {

// A shift register that takes tokens of one width and gives tokens of another.
template <typename T, int PI, int PO>
struct gear {
  T lane[PI + PO];
  counter<PI + PO> have = 0;

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
  constexpr int IN = ceil_div(G::C_IN, G::LANES_IN), OUT = ceil_div(G::C_OUT, G::LANES_OUT);
  constexpr int LAST_IN = G::C_IN - (IN - 1) * G::LANES_IN;
  constexpr int LAST_OUT = G::C_OUT - (OUT - 1) * G::LANES_OUT;
  gear<typename G::T, G::LANES_IN, G::LANES_OUT> g;
#pragma HLS ARRAY_PARTITION variable = g.lane complete
  // Elements held beyond those that the next token takes; tokens of a row that were read and written.
  using lanes = counter<2 * (G::LANES_IN + G::LANES_OUT)>;
  lanes credit = OUT == 1 ? -LAST_OUT : -G::LANES_OUT;
  counter<IN> read = 0;
  counter<OUT> written = 0;
  for (int r = 0; r < frames * G::REPEAT; ++r) {
    for (int i = 0; i < G::FIRINGS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const lanes count = read == IN - 1 ? LAST_IN : G::LANES_IN;
      const lanes want = written == OUT - 1 ? LAST_OUT : G::LANES_OUT;
      const lanes coming = OUT == 1 || written == OUT - 2 ? LAST_OUT : G::LANES_OUT;
      const bool take = credit < 0;
      const lanes after = credit + count, paid = credit + (count - coming);
      const bool give = !take || after >= 0;
      credit = !take ? credit - coming : (give ? paid : after);
      if (take) {
        g.push(in.read(), count);
        read = read == IN - 1 ? 0 : read + 1;
      }
      if (give) {
        out.write(g.pop(want));
        written = written == OUT - 1 ? 0 : written + 1;
      }
    }
  }
}

}  // namespace engine

#endif
