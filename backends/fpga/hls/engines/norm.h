// NORM: row units. A row is stored while it is read; passes over the stored row take what its
// statistics still need; the last pass writes.
//
//   for row: for c: read;  (silent passes: for c);  for c: write
//
// Config: T, ROWS per frame, TAPS positions of C channels each, LANES, II, DEPTH, `static int gap(int pass)`
// (cycles from the last firing before a pass to its first) and what each unit says. A token's lanes meet in a balanced tree, the tokens of
// a row in turning results (dot.h), these in a tree again; lanes without a channel count as nothing.
#ifndef PIPEC_NORM_H
#define PIPEC_NORM_H

#include "dot.h"
#include "ops.h"

namespace engine {

template <typename G>
struct norm_shape {
  static constexpr int PER_TAP = ceil_div(G::C, G::LANES);
  static constexpr int CF = G::TAPS * PER_TAP;
  static int lanes(int c) { return lanes_of(c % PER_TAP, G::C, G::LANES); }
};

struct plus {
  template <typename T>
  T operator()(T x, T y) const {
    return x + y;
  }
};

struct maximum {
  template <typename T>
  T operator()(T x, T y) const {
    return y > x ? y : x;
  }
};

// Sum of f(x) over the first `lanes` lanes.
template <typename T, int P, typename F>
inline real_t<T> sum_lanes(const vec<T, P> &x, int lanes, const F &f) {
#pragma HLS INLINE
  real_t<T> term[P];
#pragma HLS ARRAY_PARTITION variable = term complete
  for (int p = 0; p < P; ++p) {
#pragma HLS UNROLL
    term[p] = p < lanes ? f(x.lane[p]) : real_t<T>(0);
  }
  adder_tree<P, 1>::run(term);
  return term[0];
}

// The reading pass: stores the row, and calls take(token, lanes, place in the row).
template <typename G, typename Take>
inline void read_row(hls::stream<vec<typename G::T, G::LANES>> &in,
                     vec<typename G::T, G::LANES> *row, const Take &take) {
#pragma HLS INLINE
  GAP(G::gap(0));
  for (int c = 0; c < norm_shape<G>::CF; ++c) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    row[c] = in.read();
    take(row[c], norm_shape<G>::lanes(c), c);
  }
}

// A silent pass: calls take(token, lanes, place in the row) for each stored token.
template <typename G, int PASS, typename Take>
inline void scan_row(const vec<typename G::T, G::LANES> *row, const Take &take) {
#pragma HLS INLINE
  GAP(G::gap(PASS));
  for (int c = 0; c < norm_shape<G>::CF; ++c) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    take(row[c], norm_shape<G>::lanes(c), c);
  }
}

// The writing pass: writes f(x, token, lane) for each element of the stored row.
template <typename G, int PASS, typename Y, typename F>
inline void write_row(const vec<typename G::T, G::LANES> *row,
                      hls::stream<vec<Y, G::LANES>> &out, const F &f) {
#pragma HLS INLINE
  GAP(G::gap(PASS));
  for (int c = 0; c < norm_shape<G>::CF; ++c) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    const int lanes = norm_shape<G>::lanes(c);
    vec<Y, G::LANES> y;
    for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
      y.lane[p] = p < lanes ? f(row[c].lane[p], c, p) : real_t<typename G::T>(0);
    }
    out.write(y);
  }
}

// Softmax: maximum, sum of exponentials, write. Config: also LOG (write the logarithm).
template <typename G, typename Y>
void softmax(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
             hls::stream<vec<Y, G::LANES>> &out) {
  using T = real_t<typename G::T>;
  using V = vec<typename G::T, G::LANES>;
  static V row[norm_shape<G>::CF];
#pragma HLS AGGREGATE variable = row
  for (int n = 0; n < frames * G::ROWS; ++n) {
    turning<T> tops;
    turning<T> sums;
#pragma HLS ARRAY_PARTITION variable = tops.part complete
#pragma HLS ARRAY_PARTITION variable = sums.part complete
    read_row<G>(in, row, [&](const V &x, int lanes, int c) {
      T found[G::LANES];
#pragma HLS ARRAY_PARTITION variable = found complete
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        found[p] = T(x.lane[p < lanes ? p : 0]);
      }
      folded<G::LANES>::run(found, maximum());
      tops.take(found[0], c, maximum());
    });
    const T top = tops.template all<norm_shape<G>::CF>(maximum());
    scan_row<G, 1>(row, [&](const V &x, int lanes, int c) {
      sums.take(sum_lanes(x, lanes, [&](T v) { return ops::exp(v - top); }), c, plus());
    });
    const T sum = sums.template all<norm_shape<G>::CF>(plus());
    const T scale = G::LOG ? ops::log(sum) : T(1) / sum;
    write_row<G, 2>(row, out, [&](T x, int, int) {
      return G::LOG ? x - top - scale : ops::exp(x - top) * scale;
    });
  }
}

// An affine table of a norm: entry [c][lane], or what stands for none.
struct no_table {};

template <typename T>
inline T times(T x, const no_table &, int, int) {
  return x;
}
template <typename T>
inline T shifted(T x, const no_table &, int, int) {
  return x;
}
template <typename T, typename U, int P, int WORDS>
inline T times(T x, const vec<U, P> (&table)[WORDS], int c, int p) {
  return x * T(table[c].lane[p]);
}
template <typename T, typename U, int P, int WORDS>
inline T shifted(T x, const vec<U, P> (&table)[WORDS], int c, int p) {
  return x + T(table[c].lane[p]);
}

// Layer normalisation: mean, variance about it, write. Config: also `static real_t<T> eps()`.
template <typename G, typename Y, typename Scale, typename Shift>
void layer_norm(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
                hls::stream<vec<Y, G::LANES>> &out, const Scale &scale, const Shift &shift) {
  using T = real_t<typename G::T>;
  using V = vec<typename G::T, G::LANES>;
  static V row[norm_shape<G>::CF];
#pragma HLS AGGREGATE variable = row
  const T count = T(G::TAPS * G::C);
  for (int n = 0; n < frames * G::ROWS; ++n) {
    turning<T> sums;
    turning<T> squared;
#pragma HLS ARRAY_PARTITION variable = sums.part complete
#pragma HLS ARRAY_PARTITION variable = squared.part complete
    read_row<G>(in, row, [&](const V &x, int lanes, int c) {
      sums.take(sum_lanes(x, lanes, [](T v) { return v; }), c, plus());
    });
    const T mean = sums.template all<norm_shape<G>::CF>(plus()) / count;
    scan_row<G, 1>(row, [&](const V &x, int lanes, int c) {
      squared.take(sum_lanes(x, lanes, [&](T v) { return (v - mean) * (v - mean); }), c, plus());
    });
    const T squares = squared.template all<norm_shape<G>::CF>(plus());
    const T inverse = T(1) / ops::sqrt(squares / count + G::eps());
    write_row<G, 2>(row, out, [&](T x, int c, int p) {
      return shifted(times((x - mean) * inverse, scale, c, p), shift, c, p);
    });
  }
}

// Root-mean-square normalisation: squares, write. Config: also `static real_t<T> eps()`.
template <typename G, typename Y, typename Scale, typename Shift>
void rms_norm(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
              hls::stream<vec<Y, G::LANES>> &out, const Scale &scale, const Shift &shift) {
  using T = real_t<typename G::T>;
  using V = vec<typename G::T, G::LANES>;
  static V row[norm_shape<G>::CF];
#pragma HLS AGGREGATE variable = row
  for (int n = 0; n < frames * G::ROWS; ++n) {
    turning<T> squared;
#pragma HLS ARRAY_PARTITION variable = squared.part complete
    read_row<G>(in, row, [&](const V &x, int lanes, int c) {
      squared.take(sum_lanes(x, lanes, [](T v) { return v * v; }), c, plus());
    });
    const T squares = squared.template all<norm_shape<G>::CF>(plus());
    const T inverse = T(1) / ops::sqrt(squares / T(G::TAPS * G::C) + G::eps());
    write_row<G, 1>(row, out, [&](T x, int c, int p) {
      return shifted(times(x * inverse, scale, c, p), shift, c, p);
    });
  }
}

// Moves elements on by a token, which comes in behind them.
template <int LANES, typename T, typename U, int SIZE>
inline void line_on(T (&line)[SIZE], const vec<U, LANES> &token) {
#pragma HLS INLINE
  for (int i = 0; i < SIZE; ++i) {
#pragma HLS UNROLL
    line[i] = i < SIZE - LANES ? line[smaller(i + LANES, SIZE - 1)] : T(token.lane[i % LANES]);
  }
}

// Local response normalisation (Krizhevsky et al. 2012): a channel sees the squares of BEFORE
// channels below it and AFTER above. Config: also BEFORE, AFTER, `static T op(T x, T sum)`.
template <typename G, typename Y>
void lrn(int frames, hls::stream<vec<typename G::T, G::LANES>> &in,
         hls::stream<vec<Y, G::LANES>> &out) {
  using T = real_t<typename G::T>;
  using V = vec<typename G::T, G::LANES>;
  constexpr int CF = norm_shape<G>::CF;
  constexpr int AHEAD = smaller(ceil_div(G::AFTER, G::LANES), CF);
  constexpr int BEHIND = ceil_div(G::BEFORE, G::LANES);
  constexpr int SIZE = (BEHIND + 1 + AHEAD) * G::LANES;
  static V row[CF];
#pragma HLS AGGREGATE variable = row
  T line[SIZE];  // of the tokens around the one that is written, in order
#pragma HLS ARRAY_PARTITION variable = line complete
  for (int n = 0; n < frames * G::ROWS; ++n) {
    read_row<G>(in, row, [&](const V &x, int, int c) {
      if (c < AHEAD) line_on<G::LANES>(line, x);
    });
    GAP(G::gap(1));
    for (int c = 0; c < CF; ++c) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      line_on<G::LANES>(line, c + AHEAD < CF ? row[c + AHEAD] : zeros<typename G::T, G::LANES>());
      vec<Y, G::LANES> y;
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        const int channel = c * G::LANES + p;
        T sum = T(0);
        for (int i = -G::BEFORE; i <= G::AFTER; ++i) {
#pragma HLS UNROLL
          const T x = line[smaller(BEHIND * G::LANES + p + i, SIZE - 1)];
          if (channel + i >= 0 && channel + i < G::C) sum += x * x;
        }
        y.lane[p] = p < norm_shape<G>::lanes(c) ? G::op(line[BEHIND * G::LANES + p], sum) : T(0);
      }
      out.write(y);
    }
  }
}

}  // namespace engine

#endif
