// Routing engines: they move tokens and compute nothing. Config of all: II, DEPTH, and:
//
// FORK    TOKENS                                  one stream to several
// CONCAT  OUTER, TOKENS, `static int end(int port)`    whole tokens of several streams in turn
// SLICE   OUTER, SIZE, START, STOP, STEP, INNER   part of one axis, whole tokens
// REPEAT  OUTER, INNER, TIMES                     blocks of tokens several times over
// SOURCE  TOKENS                                  a constant, once per frame
#ifndef PIPEC_ROUTE_H
#define PIPEC_ROUTE_H

#include "base.h"

namespace engine {

namespace detail {

template <typename V>
inline void write_all(const V &) {}

template <typename V, typename S, typename... Rest>
inline void write_all(const V &token, S &first, Rest &...rest) {
  first.write(token);
  write_all(token, rest...);
}

template <typename G, int PORT, typename V, typename S>
inline V read_from(int, S &last) {
  return last.read();
}

template <typename G, int PORT, typename V, typename S, typename Next, typename... Rest>
inline V read_from(int i, S &first, Next &next, Rest &...rest) {
  return i < G::end(PORT) ? first.read() : read_from<G, PORT + 1, V>(i, next, rest...);
}

}  // namespace detail

template <typename G, typename V, typename... Outs>
void fork(int frames, hls::stream<V> &in, Outs &...outs) {
  for (int i = 0; i < frames * G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
    FIRE(G::II, G::DEPTH);
    detail::write_all(in.read(), outs...);
  }
}

template <typename G, typename V, typename... Ins>
void concat(int frames, hls::stream<V> &out, Ins &...ins) {
  for (int n = 0; n < frames * G::OUTER; ++n) {
    for (int i = 0; i < G::TOKENS; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      out.write(detail::read_from<G, 0, V>(i, ins...));
    }
  }
}

template <typename G, typename V>
void slice(int frames, hls::stream<V> &in, hls::stream<V> &out) {
  int wait = G::START;  // positions until the next one that is kept
  for (int n = 0; n < frames * G::OUTER; ++n) {
    for (int j = 0; j < G::SIZE; ++j) {
      for (int i = 0; i < G::INNER; ++i) {
#pragma HLS PIPELINE II = G::II
        FIRE(G::II, G::DEPTH);
        const V token = in.read();
        if (wait == 0 && j < G::STOP) out.write(token);
        if (i == G::INNER - 1) wait = j == G::SIZE - 1 ? G::START : (wait ? wait : G::STEP) - 1;
      }
    }
  }
}

template <typename G, typename V>
void repeat(int frames, hls::stream<V> &in, hls::stream<V> &out) {
  static V block[G::INNER];
#pragma HLS AGGREGATE variable = block
  for (int n = 0; n < frames * G::OUTER; ++n) {
    for (int r = 0; r < G::TIMES; ++r) {
      for (int t = 0; t < G::INNER; ++t) {
#pragma HLS PIPELINE II = G::II
        FIRE(G::II, G::DEPTH);
        V token = block[t];
        if (r == 0) block[t] = token = in.read();
        out.write(token);
      }
    }
  }
}

template <typename G, typename V>
void source(int frames, hls::stream<V> &out, const V (&table)[G::TOKENS]) {
  for (int f = 0; f < frames; ++f) {
    for (int t = 0; t < G::TOKENS; ++t) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      out.write(table[t]);
    }
  }
}

}  // namespace engine

#endif
