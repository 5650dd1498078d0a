// SWG: sliding-window generator (line buffer, im2col). Pixels in, windows out.
//
//   for image, oy, ox, group, tap (KP at a time), token of the group: write
//
// Config: T, BATCH, H, W, CF (tokens per pixel), LANES, KH, KW, SH, SW (stride), DH, DW (dilation),
// PT, PL (padding above and left; below and right follow from OH and OW), OH, OW, GROUPS, KP, II,
// DEPTH, and `static real_t<T> pad()`, the value outside the image.
//
// A firing takes a token, emits one, or does both; which, depends on counters alone. Reads are
// paced to SH rows per row of windows, so that they neither starve nor flood the line buffer.
#ifndef PIPEC_SWG_H
#define PIPEC_SWG_H

#include "base.h"

namespace engine {

// The window position that is written next: output row and column, group, kernel position, token.
struct swg_place {
  int oy, ox, group, tap, c;
};

template <typename G>
struct swg_shape {
  static constexpr int TAPS = G::KH * G::KW;
  static constexpr int PER_GROUP = G::CF / G::GROUPS;
  static constexpr int EH = (G::KH - 1) * G::DH + 1;
  static constexpr int EW = (G::KW - 1) * G::DW + 1;
  static constexpr int ROW = G::W * G::CF;
  static constexpr int SLOTS = smaller(EH + G::SH, G::H) * ROW;
  static constexpr int READS = G::H * ROW;
  static constexpr int WRITES = G::OH * G::OW * (TAPS / G::KP) * G::CF;
  static constexpr int FILL =
      (smaller(EH - 1 - G::PT, G::H - 1) * G::W + smaller(EW - G::PL, G::W)) * G::CF;
  static constexpr int64_t PACE = int64_t(G::SH) * ROW * G::OH;
  static_assert(TAPS % G::KP == 0, "a window holds whole groups of kernel positions");
  static_assert(G::KP == 1 || PER_GROUP == 1, "KP > 1 needs one token per group");
};

// Index of the input token at kernel position `tap` of the window; -1 in the padding.
template <typename G>
inline int swg_need(const swg_place &at, int tap) {
  const int y = at.oy * G::SH - G::PT + (tap / G::KW) * G::DH;
  const int x = at.ox * G::SW - G::PL + (tap % G::KW) * G::DW;
  if (y < 0 || y >= G::H || x < 0 || x >= G::W) return -1;
  return y * swg_shape<G>::ROW + x * G::CF + at.group * swg_shape<G>::PER_GROUP + at.c;
}

template <typename G>
inline void swg_advance(swg_place &at) {
  if (++at.c < swg_shape<G>::PER_GROUP) return;
  at.c = 0;
  at.tap += G::KP;
  if (at.tap < swg_shape<G>::TAPS) return;
  at.tap = 0;
  if (++at.group < G::GROUPS) return;
  at.group = 0;
  if (++at.ox < G::OW) return;
  at.ox = 0;
  ++at.oy;
}

template <typename G, typename Line>
inline vec<typename G::T, G::KP * G::LANES> swg_window(const Line &line, const swg_place &at) {
  vec<typename G::T, G::KP * G::LANES> token;
  for (int j = 0; j < G::KP; ++j) {
#pragma HLS UNROLL
    const int need = swg_need<G>(at, at.tap + j);
    const int slot = need < 0 ? 0 : need % swg_shape<G>::SLOTS;
    for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
      token.lane[j * G::LANES + p] = need < 0 ? typename G::T(G::pad()) : line[slot].lane[p];
    }
  }
  return token;
}

template <typename G>
void swg(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
         hls::stream<vec<typename G::T, G::KP * G::LANES>> &out) {
  using S = swg_shape<G>;
  static vec<typename G::T, G::LANES> line[S::SLOTS];
#pragma HLS AGGREGATE variable = line
#pragma HLS BIND_STORAGE variable = line type = ram_2p
  for (int image = 0; image < frames * G::BATCH; ++image) {
    swg_place at = {0, 0, 0, 0, 0};
    int rd = 0, wr = 0;
    while (rd < S::READS || wr < S::WRITES) {
#pragma HLS LOOP_TRIPCOUNT min = S::WRITES max = S::WRITES + S::READS
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      int need = -1;
      for (int j = 0; j < G::KP; ++j) {
#pragma HLS UNROLL
        need = larger(need, swg_need<G>(at, at.tap + j));
      }
      const int oldest = larger(at.oy * G::SH - G::PT, 0) * S::ROW;
      const bool emit = wr < S::WRITES && need < rd;
      const bool due = !emit || int64_t(rd - S::FILL) * S::WRITES < int64_t(wr) * S::PACE;
      const bool take = rd < S::READS && (wr == S::WRITES || (rd - oldest < S::SLOTS && due));
      if (emit) {
        out.write(swg_window<G>(line, at));
        swg_advance<G>(at);
        ++wr;
      }
      if (take) {
        line[rd % S::SLOTS] = in.read();
        ++rd;
      }
    }
  }
}

}  // namespace engine

#endif
