// MAP: elementwise functions, token by token.
//
// Config: ROWS per frame, C (channels), LANES, II, DEPTH and the function of one lane,
// `static Y op(A x[, B y][, T entry]...)`: y comes from the second stream, an entry from each
// table, which are read cyclically (their length is the period). Lanes without a channel stay 0.
#ifndef PIPEC_MAP_H
#define PIPEC_MAP_H

#include <utility>

#include "base.h"
#include "ops.h"

namespace engine {

namespace detail {

inline void step_all(int *) {}

// Moves each table's cursor on by one entry, back to the start after its last.
template <typename First, typename... Rest>
inline void step_all(int *at, const First &table, const Rest &...rest) {
  constexpr int PERIOD = sizeof(First) / sizeof(table[0]);
  *at = *at == PERIOD - 1 ? 0 : *at + 1;
  step_all(at + 1, rest...);
}

template <typename G, std::size_t... I, typename A, typename Y, typename... Tables>
void map1(std::index_sequence<I...>, int frames, hls::stream<vec<A, G::LANES>> &in,
          hls::stream<vec<Y, G::LANES>> &out, const Tables &...tables) {
  int at[sizeof...(Tables) + 1] = {};
#pragma HLS ARRAY_PARTITION variable = at complete
  for (int row = 0; row < frames * G::ROWS; ++row) {
    for (int c = 0; c < ceil_div(G::C, G::LANES); ++c) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const vec<A, G::LANES> x = in.read();
      vec<Y, G::LANES> z;
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        const bool real = p < lanes_of(c, G::C, G::LANES);
        z.lane[p] = real ? Y(G::op(x.lane[p], tables[at[I]].lane[p]...)) : Y(0);
      }
      out.write(z);
      step_all(at, tables...);
    }
  }
}

template <typename G, std::size_t... I, typename A, typename B, typename Y, typename... Tables>
void map2(std::index_sequence<I...>, int frames, hls::stream<vec<A, G::LANES>> &in0,
          hls::stream<vec<B, G::LANES>> &in1, hls::stream<vec<Y, G::LANES>> &out,
          const Tables &...tables) {
  int at[sizeof...(Tables) + 1] = {};
#pragma HLS ARRAY_PARTITION variable = at complete
  for (int row = 0; row < frames * G::ROWS; ++row) {
    for (int c = 0; c < ceil_div(G::C, G::LANES); ++c) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const vec<A, G::LANES> x = in0.read();
      const vec<B, G::LANES> y = in1.read();
      vec<Y, G::LANES> z;
      for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
        const bool real = p < lanes_of(c, G::C, G::LANES);
        z.lane[p] = real ? Y(G::op(x.lane[p], y.lane[p], tables[at[I]].lane[p]...)) : Y(0);
      }
      out.write(z);
      step_all(at, tables...);
    }
  }
}

}  // namespace detail

template <typename G, typename A, typename Y, typename... Tables>
void map1(int frames, hls::stream<vec<A, G::LANES>> &in, hls::stream<vec<Y, G::LANES>> &out,
          const Tables &...tables) {
#pragma HLS INLINE
  detail::map1<G>(std::index_sequence_for<Tables...>(), frames, in, out, tables...);
}

template <typename G, typename A, typename B, typename Y, typename... Tables>
void map2(int frames, hls::stream<vec<A, G::LANES>> &in0, hls::stream<vec<B, G::LANES>> &in1,
          hls::stream<vec<Y, G::LANES>> &out, const Tables &...tables) {
#pragma HLS INLINE
  detail::map2<G>(std::index_sequence_for<Tables...>(), frames, in0, in1, out, tables...);
}

}  // namespace engine

#endif
