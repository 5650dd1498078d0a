// NORM: gradients of row units. Two rows are stored while they are read, dy and y (or x);
// silent passes take what the statistics still need; the last pass writes.
//
// Config and order of sums: as of norm.h.
#ifndef PIPEC_ROWGRAD_H
#define PIPEC_ROWGRAD_H

#include "norm.h"

namespace engine {

// The reading pass: stores both rows, and calls take(dy, y, lanes, place in the row).
template <typename G, typename Take>
inline void read_rows(hls::stream<vec<typename G::T, G::LANES>> &in0,
                      hls::stream<vec<typename G::T, G::LANES>> &in1,
                      vec<typename G::T, G::LANES> *dy, vec<typename G::T, G::LANES> *y,
                      const Take &take) {
#pragma HLS INLINE
  GAP(G::gap(0));
  for (int c = 0; c < norm_shape<G>::CF; ++c) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    dy[c] = in0.read();
    y[c] = in1.read();
    take(dy[c], y[c], norm_shape<G>::lanes(c), c);
  }
}

// The writing pass: writes f(dy, y, token, lane) for each element of the stored rows.
template <typename G, int PASS, typename F>
inline void write_rows(const vec<typename G::T, G::LANES> *dy,
                       const vec<typename G::T, G::LANES> *y,
                       hls::stream<vec<typename G::T, G::LANES>> &out, const F &f) {
#pragma HLS INLINE
  GAP(G::gap(PASS));
  for (int c = 0; c < norm_shape<G>::CF; ++c) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    const int lanes = norm_shape<G>::lanes(c);
    vec<typename G::T, G::LANES> z;
    for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
      z.lane[p] = p < lanes ? f(dy[c].lane[p], y[c].lane[p], c, p) : typename G::T(0);
    }
    out.write(z);
  }
}

// Product of two tokens.
template <typename T, int P>
inline vec<T, P> product(const vec<T, P> &a, const vec<T, P> &b) {
#pragma HLS INLINE
  vec<T, P> y;
  for (int p = 0; p < P; ++p) {
#pragma HLS UNROLL
    y.lane[p] = a.lane[p] * b.lane[p];
  }
  return y;
}

// Gradient of softmax from its result y, or of its logarithm (config LOG).
template <typename G>
void softmax_gradient(int frames, hls::stream<vec<typename G::T, G::LANES>> &in0,
                      hls::stream<vec<typename G::T, G::LANES>> &in1,
                      hls::stream<vec<typename G::T, G::LANES>> &out) {
  using T = typename G::T;
  using V = vec<T, G::LANES>;
  static V dy[norm_shape<G>::CF], y[norm_shape<G>::CF];
#pragma HLS AGGREGATE variable = dy
#pragma HLS AGGREGATE variable = y
  for (int n = 0; n < frames * G::ROWS; ++n) {
    turning<T> sums;
#pragma HLS ARRAY_PARTITION variable = sums.part complete
    read_rows<G>(in0, in1, dy, y, [&](const V &d, const V &v, int lanes, int c) {
      const V term = G::LOG ? d : product(d, v);
      sums.take(sum_lanes(term, lanes, [](T t) { return t; }), c, plus());
    });
    const T sum = sums.template all<norm_shape<G>::CF>(plus());
    write_rows<G, 1>(dy, y, out, [&](T d, T v, int, int) {
      return G::LOG ? d - ops::exp(v) * sum : v * (d - sum);
    });
  }
}

// Gradient of layer normalisation from its operand x. Config: also `static real_t<T> eps()`.
template <typename G, typename Scale>
void layer_norm_gradient(int frames, hls::stream<vec<typename G::T, G::LANES>> &in0,
                         hls::stream<vec<typename G::T, G::LANES>> &in1,
                         hls::stream<vec<typename G::T, G::LANES>> &out, const Scale &scale) {
  using T = typename G::T;
  using V = vec<T, G::LANES>;
  static V dy[norm_shape<G>::CF], x[norm_shape<G>::CF];
#pragma HLS AGGREGATE variable = dy
#pragma HLS AGGREGATE variable = x
  const T count = T(G::TAPS * G::C);
  for (int n = 0; n < frames * G::ROWS; ++n) {
    turning<T> sums;
    turning<T> squared;
    turning<T> firsts;
    turning<T> seconds;
#pragma HLS ARRAY_PARTITION variable = sums.part complete
#pragma HLS ARRAY_PARTITION variable = squared.part complete
#pragma HLS ARRAY_PARTITION variable = firsts.part complete
#pragma HLS ARRAY_PARTITION variable = seconds.part complete
    read_rows<G>(in0, in1, dy, x, [&](const V &, const V &v, int lanes, int c) {
      sums.take(sum_lanes(v, lanes, [](T t) { return t; }), c, plus());
    });
    const T mean = sums.template all<norm_shape<G>::CF>(plus()) / count;
    scan_row<G, 1>(x, [&](const V &v, int lanes, int c) {
      squared.take(sum_lanes(v, lanes, [&](T t) { return (t - mean) * (t - mean); }), c, plus());
    });
    const T squares = squared.template all<norm_shape<G>::CF>(plus());
    const T inverse = T(1) / ops::sqrt(squares / count + G::eps());
    scan_row<G, 2>(x, [&](const V &v, int lanes, int c) {
      V g, gh;
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        g.lane[p] = times(dy[c].lane[p], scale, c, p);
        gh.lane[p] = g.lane[p] * (v.lane[p] - mean) * inverse;
      }
      firsts.take(sum_lanes(g, lanes, [](T t) { return t; }), c, plus());
      seconds.take(sum_lanes(gh, lanes, [](T t) { return t; }), c, plus());
    });
    const T first = firsts.template all<norm_shape<G>::CF>(plus());
    const T second = seconds.template all<norm_shape<G>::CF>(plus());
    write_rows<G, 3>(dy, x, out, [&](T d, T v, int at, int p) {
      const T h = (v - mean) * inverse;
      return (times(d, scale, at, p) - first / count - h * (second / count)) * inverse;
    });
  }
}

}  // namespace engine

#endif
