// ARGMAX and SCATTER: where the maximum of a window lies, and its gradient back to that place.
//
// argmax   behind an SWG whose groups are single tokens: for image, oy, ox, c, tap: one read; the
//          place iy * W + ix of the first largest is written after the last tap.
//          Config: BATCH, W, CF, LANES, KH, KW, SH, SW, DH, DW, PT, PL, OH, OW, II, DEPTH.
// scatter  for image, oy: OW * CF gradients are added where they belong; the rows that no later
//          window covers are written and cleared. One loop for both, so that nothing drains in between.
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
  int kx = 0, next = 0;  // of the kernel's position after this one
  for (int image = 0; image < frames * G::BATCH; ++image) {
    for (int oy = 0; oy < G::OH; ++oy) {
      for (int ox = 0; ox < G::OW; ++ox) {
        for (int c = 0; c < G::CF; ++c) {
          for (int t = 0; t < G::KH * G::KW; ++t) {
#pragma HLS PIPELINE II = G::II
            FIRE(G::II, G::DEPTH);
            const vec<A, G::LANES> x = in.read();
            const int first = (oy * G::SH - G::PT) * G::W + ox * G::SW - G::PL;
            const int place = t == 0 ? first : next;
            const bool last = kx == G::KW - 1;
            next = place + (last ? G::DH * G::W - (G::KW - 1) * G::DW : G::DW);
            kx = last ? 0 : kx + 1;
            for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
              const int32_t size = ordered(x.lane[p]);
              if (t == 0 || size > best.lane[p]) {
                best.lane[p] = size;
                at.lane[p] = I(place);
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
#pragma HLS DEPENDENCE variable = sum type = inter direction = RAW distance = G::MEETS true
  constexpr int FIRINGS = (G::OH * G::OW + G::H * G::W) * G::CF;
  using line = counter<(G::OH + 1) * G::SH + G::H>;
  const auto rows_until = [](line window, line end) -> line {  // that are whole after a row of windows
    return window >= G::OH - 1 || end > G::H ? G::H : larger(end, 0);
  };
  // Rows to write after this row of windows, and written by then; what follows is known ahead.
  const line first = rows_until(0, G::SH - G::PT), second = 2 * G::SH - G::PT;
  line rows = first, until = first, window = 1, end = second;
  line known = rows_until(1, second) - first;
  int c = 0, to = 0, left = G::OW * G::CF - 1;
  bool reads = true;
  for (int image = 0; image < frames * G::BATCH; ++image) {
    for (int i = 0; i < FIRINGS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      vec<T, G::LANES> dy = zeros<T, G::LANES>(), y;
      vec<I, G::LANES> at = zeros<I, G::LANES>();
      if (reads) {
        dy = in0.read();
        at = in1.read();
      }
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        const int iy = quotient_of<G::W, G::H * G::W>(at.lane[p]), ix = at.lane[p] - iy * G::W;
        const int place = (remainder_of<G::RING, G::H>(iy) * G::W + ix) * G::CF + c;
        const int word = reads ? place : to;
        y.lane[p] = sum[p][word];
        sum[p][word] = reads ? T(y.lane[p] + dy.lane[p]) : T(0);
      }
      if (!reads) out.write(y);
      const bool done = left == 0, back = done && rows == (reads ? 0 : 1), over = i == FIRINGS - 1;
      const line coming = rows_until(window, end) - until;
      const line next = G::OW * G::CF > 1 ? known : coming;
      c = !reads || c == G::CF - 1 ? 0 : c + 1;
      to = over ? 0 : (reads ? to : (to == G::RING * G::W * G::CF - 1 ? 0 : to + 1));
      left = !done ? left - 1 : (back ? G::OW : G::W) * G::CF - 1;
      rows = over ? first : (back ? next : (done && !reads ? rows - 1 : rows));
      known = over ? line(rows_until(1, second) - first) : coming;
      reads = done ? back : reads;
      until = over ? first : (back ? line(until + next) : until);
      end = over ? second : (back ? line(end + G::SH) : end);
      window = over ? line(1) : (back ? line(window + 1) : window);
    }
  }
}

}  // namespace engine

#endif
