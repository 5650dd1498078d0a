// WHERE: a comparison and a choice, `a > b ? x : y`, token by token.
//
// Config: ROWS per frame, C (channels), LANES, II, DEPTH and the function of one lane,
// `static real_t<T> op(real_t<T> a, ...)`, of the operands that arrive in streams, in their order.
// Lanes without a channel stay 0.
#ifndef PIPEC_WHERE_H
#define PIPEC_WHERE_H

#include <utility>

#include "base.h"

namespace engine {

namespace detail {

template <typename G, typename V, std::size_t... I>
inline V chosen(std::index_sequence<I...>, const V (&x)[sizeof...(I)], int lanes) {
#pragma HLS INLINE
  V z;
  for (int p = 0; p < G::LANES; ++p) {
#pragma HLS UNROLL
    z.lane[p] = p < lanes ? typename G::T(G::op(x[I].lane[p]...)) : typename G::T(0);
  }
  return z;
}

}  // namespace detail

template <typename G, typename V, typename... Ins>
void where(int frames, hls::stream<V> &out, Ins &...ins) {
  for (int row = 0; row < frames * G::ROWS; ++row) {
    for (int c = 0; c < ceil_div(G::C, G::LANES); ++c) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      const V x[] = {ins.read()...};
      out.write(detail::chosen<G>(std::index_sequence_for<Ins...>(), x,
                                  lanes_of(c, G::C, G::LANES)));
    }
  }
}

}  // namespace engine

#endif
