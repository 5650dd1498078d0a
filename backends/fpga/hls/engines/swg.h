// SWG: sliding-window generator (line buffer, im2col). Pixels in, windows out.
//
//   for image, oy, ox, group, tap (KP at a time), token of the group: write
//
// Config: T, BATCH, H, W, CF (tokens per pixel), LANES, KH, KW, SH, SW (stride), DH, DW (dilation),
// PT, PL (padding above and left; below and right follow from OH and OW), OH, OW, GROUPS, KP, II,
// DEPTH, FIRINGS (of an image), and `static real_t<T> pad()`, the value outside the image.
//
// A firing takes a token, emits one, does both or neither; which, depends on counters alone, each
// of which knows its own end. No firing reads or writes a memory more than once.
#ifndef PIPEC_SWG_H
#define PIPEC_SWG_H

#include "base.h"

namespace engine {

template <typename G>
struct swg_shape {
  static constexpr int TAPS = G::KH * G::KW;
  static constexpr int STEPS = TAPS / G::KP;
  static constexpr int PER_GROUP = G::CF / G::GROUPS;
  static constexpr int EH = (G::KH - 1) * G::DH + 1;
  static constexpr int EW = (G::KW - 1) * G::DW + 1;
  static_assert(TAPS % G::KP == 0, "a window holds whole groups of kernel positions");
  static_assert(G::KP == 1 || PER_GROUP == 1, "KP > 1 needs one token per group");
};

// The line: rows follow one another without a pause, PITCH pixels each. Above a pixel stand those
// of the rows before it, in one word; before it, in another, the columns of the kernel. Positions
// outside the image take no token; what stands there is masked when a window is copied.
template <typename G>
struct line_shape : swg_shape<G> {
  using S = swg_shape<G>;
  static constexpr int PITCH = larger(G::W, (G::OW - 1) * G::SW / G::SH + 1);
  static constexpr int CORNER = (S::EH - 1 - G::PT) * PITCH + S::EW - 1 - G::PL;
  static constexpr int IDLE = larger(-CORNER, 0);
  static constexpr int FIRST = CORNER + IDLE;
  static constexpr int ROW = G::SH * PITCH, LAST = FIRST + (G::OH - 1) * ROW + (G::OW - 1) * G::SW;
  static constexpr int END = IDLE + larger(G::H * PITCH, LAST + 1 - IDLE);
  static constexpr int ABOVE = PITCH * G::CF;
  static constexpr int WINDOW = S::TAPS * G::LANES, STEP = G::KP * G::LANES;
};

// Where the line stands: the token that it moves on by next, and the window that is completed next.
template <typename G>
struct line_place {
  using S = line_shape<G>;
  int y = -ceil_div(S::IDLE, S::PITCH), x = ceil_div(S::IDLE, S::PITCH) * S::PITCH - S::IDLE;
  int left = S::END * G::CF - 1;       // tokens of the image to move on by, less one
  int gap = S::FIRST * G::CF - 1;      // those before the next window, less one
  int oy = 0, ox = 0, top = -G::PT, edge = -G::PL;
};

template <typename G>
inline void line_advance(line_place<G> &at, int c, bool due) {
#pragma HLS INLINE
  using S = line_shape<G>;
  const bool pixel = c == G::CF - 1, row = at.x == S::PITCH - 1;
  const bool right = at.ox == G::OW - 1, bottom = at.oy == G::OH - 1, next = due && pixel;
  const int jump = !pixel ? -1
                   : !right ? (G::SW - 1) * G::CF - 1
                   : !bottom ? (S::ROW - (G::OW - 1) * G::SW - 1) * G::CF - 1
                             : S::END * G::CF;
  at.gap = due ? jump : at.gap - 1;
  at.ox = !next ? at.ox : (right ? 0 : at.ox + 1);
  at.edge = !next ? at.edge : (right ? -G::PL : at.edge + G::SW);
  at.oy = next && right ? at.oy + 1 : at.oy;
  at.top = next && right ? at.top + G::SH : at.top;
  at.y = pixel && row ? at.y + 1 : at.y;
  at.x = !pixel ? at.x : (row ? 0 : at.x + 1);
  at.left = at.left - 1;
}

// Moves every part of a word on by SIZE lanes, the new ones first.
template <int SIZE, typename T, int P>
inline void move_on(vec<T, P> &word, const vec<T, SIZE> &first) {
#pragma HLS INLINE
  for (int i = P - 1; i >= 0; --i) {
#pragma HLS UNROLL
    word.lane[i] = i < SIZE ? first.lane[i % SIZE] : word.lane[larger(i - SIZE, 0)];
  }
}

// The window that ends with a column, from that and the columns before it; pad() off the image.
template <typename G, typename Column, typename Before>
inline vec<typename G::T, line_shape<G>::WINDOW> line_window(const Column &column,
                                                             const Before &before, int top,
                                                             int edge) {
#pragma HLS INLINE
  using T = typename G::T;
  vec<T, line_shape<G>::WINDOW> window;
  for (int tap = 0; tap < line_shape<G>::TAPS; ++tap) {
#pragma HLS UNROLL
    const int ky = tap / G::KW, kx = tap % G::KW, back = (G::KW - 1 - kx) * G::DW;
    const int y = top + ky * G::DH, x = edge + kx * G::DW;
    const bool inside = y >= 0 && y < G::H && x >= 0 && x < G::W;
    for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
      const int lane = ky * G::LANES + p;
      const T value = back == 0 ? column.lane[lane]
                                : before.lane[larger(back - 1, 0) * G::KH * G::LANES + lane];
      window.lane[tap * G::LANES + p] = inside ? value : T(G::pad());
    }
  }
  return window;
}

template <typename G>
void swg_line(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
              hls::stream<vec<typename G::T, G::KP * G::LANES>> &out) {
  using S = line_shape<G>;
  using T = typename G::T;
  static vec<T, larger(S::EH - 1, 1) * G::LANES> above[larger(S::ABOVE, 2)];
#pragma HLS AGGREGATE variable = above
#pragma HLS BIND_STORAGE variable = above type = ram_2p
#pragma HLS DEPENDENCE variable = above type = inter direction = RAW distance = 2 true
  static vec<T, larger(S::EW - 1, 1) * G::KH * G::LANES> before[larger(G::CF, 2)];
#pragma HLS AGGREGATE variable = before
#pragma HLS BIND_STORAGE variable = before type = ram_2p
#pragma HLS DEPENDENCE variable = before type = inter direction = RAW distance = 2 true
  // A word that every token meets again at once is a register, not a memory.
  auto above_one = zeros<T, larger(S::EH - 1, 1) * G::LANES>();
  auto before_one = zeros<T, larger(S::EW - 1, 1) * G::KH * G::LANES>();
  auto held = zeros<T, S::WINDOW>();
  line_place<G> at;
  int c = 0, address = 0, steps = -1;
  for (int image = 0; image < frames * G::BATCH; ++image) {
    for (int i = 0; i < G::FIRINGS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const bool busy = S::STEPS > 1 && steps >= 0, due = at.gap < 0 && !busy;
      if (S::STEPS == 1 || (at.left >= 0 && (at.gap >= 0 || !busy))) {
        auto token = zeros<T, G::LANES>();
        if (at.y >= 0 && at.y < G::H && at.x < G::W) token = in.read();
        auto rows = S::ABOVE == 1 ? above_one : above[address];
        auto columns = G::CF == 1 ? before_one : before[c];
        vec<T, G::KH * G::LANES> column;
        for (int lane = 0; lane < G::KH * G::LANES; ++lane) {
#pragma HLS UNROLL
          const int back = (G::KH - 1 - lane / G::LANES) * G::DH;
          const int from = larger(back - 1, 0) * G::LANES + lane % G::LANES;
          column.lane[lane] = back == 0 ? token.lane[lane % G::LANES] : rows.lane[from];
        }
        if (due) held = line_window<G>(column, columns, at.top, at.edge);
        move_on(rows, token);
        move_on(columns, column);
        above_one = rows;
        before_one = columns;
        if (S::EH > 1 && S::ABOVE > 1) above[address] = rows;
        if (S::EW > 1 && G::CF > 1) before[c] = columns;
        line_advance<G>(at, c, due);
        c = c == G::CF - 1 ? 0 : c + 1;
        address = address == S::ABOVE - 1 ? 0 : address + 1;
      }
      if (due || busy) {
        vec<T, S::STEP> token;
        for (int lane = 0; lane < S::WINDOW; ++lane) {
#pragma HLS UNROLL
          if (lane < S::STEP) token.lane[lane % S::STEP] = held.lane[lane];
          held.lane[lane] = held.lane[smaller(lane + S::STEP, S::WINDOW - 1)];
        }
        out.write(token);
      }
      steps = due ? S::STEPS - 2 : (busy ? steps - 1 : -1);
      if (i == G::FIRINGS - 1) at = line_place<G>();
    }
  }
}

// The ring: a memory of SLOTS tokens, a place to write to and one to read from. Config: also SLOTS,
// LEAD (tokens taken at the start) and START (firing that emits first); `pipec.backends.fpga.swg`
// finds them such that every token is there when it is read, and not yet written over.
template <typename G>
struct ring_shape : swg_shape<G> {
  using S = swg_shape<G>;
  static constexpr int ROW = G::W * G::CF;
  static constexpr int TAKES = G::SH * G::W, EMITS = G::OW * S::TAPS;
  static constexpr int PERIOD = larger(TAKES, EMITS);
  // From the last token of a window, group or kernel row to the first one of the next.
  static constexpr int TAP = G::DW * G::CF - (S::PER_GROUP - 1);
  static constexpr int LINE = G::DH * ROW - (G::KW - 1) * G::DW * G::CF - (S::PER_GROUP - 1);
  static constexpr int TOP = -(G::KH - 1) * G::DH * ROW - (G::KW - 1) * G::DW * G::CF;
  static constexpr int RIGHT = TOP - (G::CF - 1) + G::SW * G::CF;
  static constexpr int DOWN = TOP - (G::CF - 1) + G::SH * ROW - (G::OW - 1) * G::SW * G::CF;
  static constexpr int slot(int steps) { return (steps % G::SLOTS + G::SLOTS) % G::SLOTS; }
};

template <typename G>
struct ring_place {
  using S = ring_shape<G>;
  int lead = G::LEAD - 1, wait = G::START - 1;
  int reads = G::H * S::ROW - 1, writes = G::OH * S::EMITS * G::CF - 1;  // left, less one
  int take = -S::TAKES, emit = -S::EMITS;                                // due below zero
  int to = 0, from = S::slot(-(G::PT * G::W + G::PL) * G::CF);
  int c = 0, kx = 0, ky = 0, group = 0, ox = 0, top = -G::PT, edge = -G::PL;
};

// To the next token that is written.
template <typename G>
inline void ring_advance(ring_place<G> &at) {
#pragma HLS INLINE
  using S = ring_shape<G>;
  const bool c = at.c == S::PER_GROUP - 1, kx = at.kx == (G::KW - 1) * G::DW;
  const bool ky = at.ky == (G::KH - 1) * G::DH, group = at.group == G::GROUPS - 1;
  const bool ox = at.ox == G::OW - 1;
  const bool tap = c && kx, window = tap && ky, next = window && group, row = next && ox;
  const int step = row      ? S::slot(S::DOWN)
                   : next   ? S::slot(S::RIGHT)
                   : window ? S::slot(S::TOP + 1)
                   : tap    ? S::slot(S::LINE)
                   : c      ? S::slot(S::TAP)
                            : S::slot(1);
  const int back = row      ? S::slot(S::DOWN) - G::SLOTS
                   : next   ? S::slot(S::RIGHT) - G::SLOTS
                   : window ? S::slot(S::TOP + 1) - G::SLOTS
                   : tap    ? S::slot(S::LINE) - G::SLOTS
                   : c      ? S::slot(S::TAP) - G::SLOTS
                            : S::slot(1) - G::SLOTS;
  const int ahead = at.from + step, around = at.from + back;
  at.from = around < 0 ? ahead : around;
  at.c = c ? 0 : at.c + 1;
  at.kx = !c ? at.kx : (kx ? 0 : at.kx + G::DW);
  at.ky = !tap ? at.ky : (ky ? 0 : at.ky + G::DH);
  at.group = !window ? at.group : (group ? 0 : at.group + 1);
  at.ox = !next ? at.ox : (ox ? 0 : at.ox + 1);
  at.edge = !next ? at.edge : (ox ? -G::PL : at.edge + G::SW);
  at.top = row ? at.top + G::SH : at.top;
  at.writes = at.writes - 1;
}

template <typename G>
void swg_ring(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
              hls::stream<vec<typename G::T, G::LANES>> &out) {
  using S = ring_shape<G>;
  using T = typename G::T;
  static vec<T, G::LANES> ring[G::SLOTS];
#pragma HLS AGGREGATE variable = ring
#pragma HLS BIND_STORAGE variable = ring type = ram_2p
  ring_place<G> at;
  for (int image = 0; image < frames * G::BATCH; ++image) {
    for (int i = 0; i < G::FIRINGS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const bool emit = at.wait < 0 && at.writes >= 0 && at.emit < 0;
      const bool take = at.reads >= 0 && (at.lead >= 0 || at.take < 0 || at.writes < 0);
      at.take = at.lead >= 0 ? at.take : at.take - S::TAKES + (at.take < 0 ? S::PERIOD : 0);
      at.emit = at.wait >= 0 ? at.emit : at.emit - S::EMITS + (at.emit < 0 ? S::PERIOD : 0);
      at.lead = at.lead - (at.lead >= 0);
      at.wait = at.wait - (at.wait >= 0);
      if (emit) {
        const int y = at.top + at.ky, x = at.edge + at.kx;
        const bool inside = y >= 0 && y < G::H && x >= 0 && x < G::W;
        const vec<T, G::LANES> found = ring[at.from];
        vec<T, G::LANES> token;
        for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
          token.lane[p] = inside ? found.lane[p] : T(G::pad());
        }
        out.write(token);
        ring_advance<G>(at);
      }
      if (take) {
        ring[at.to] = in.read();
        at.to = at.to == G::SLOTS - 1 ? 0 : at.to + 1;
        at.reads = at.reads - 1;
      }
      if (i == G::FIRINGS - 1) at = ring_place<G>();
    }
  }
}

}  // namespace engine

#endif
