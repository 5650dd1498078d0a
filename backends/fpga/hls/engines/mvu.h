// MVU: matrix-vector unit. PE outputs and SIMD inputs of y = W x + b per firing.
//
//   mvu_a  for n, group, f, s    output stationary: the vector is kept, one accumulator word
//   mvu_b  for n, group, s, f    input stationary: one token is kept, NF accumulator words
//   mvu_block                    weights streamed: one pass over them per BLOCK vectors
//
// Config: T, N (vectors per frame), GROUPS, NF, SF, PE, SIMD, PARTIAL, BLOCK, II, DEPTH.
// A weight word has lanes [simd][pe]; words lie as [group][f][s], streamed ones in order of use.
// `weight` is a table (read by address) or a stream (read in turn); `bias` a table or `no_bias`.
#ifndef PIPEC_MVU_H
#define PIPEC_MVU_H

#include "dot.h"

namespace engine {

struct no_bias {};

// One sum, rounded to what an engine writes.
template <typename Y, typename G, typename A, typename B>
inline Y rounded(A sum, const B &bias) {
  return Y(sum + bias);
}
template <typename Y, typename G>
inline Y rounded(int32_t sum, const rescale &by) {
#pragma HLS INLINE
  return narrowed<Y, G>(on_fabric(sum + by.bias, by.multiplier));
}

// Sums, rounded to what an engine writes.
template <typename Y, typename G, typename A, int PE>
inline vec<Y, PE> add_bias(const vec<A, PE> &sum, const no_bias &, int) {
#pragma HLS INLINE
  vec<Y, PE> y;
  for (int pe = 0; pe < PE; ++pe) {
#pragma HLS UNROLL
    y.lane[pe] = Y(sum.lane[pe]);
  }
  return y;
}

template <typename Y, typename G, typename A, typename B, int PE, int WORDS>
inline vec<Y, PE> add_bias(const vec<A, PE> &sum, const vec<B, PE> (&bias)[WORDS], int word) {
#pragma HLS INLINE
  vec<Y, PE> y;
  for (int pe = 0; pe < PE; ++pe) {
#pragma HLS UNROLL
    y.lane[pe] = rounded<Y, G>(sum.lane[pe], bias[word].lane[pe]);
  }
  return y;
}

template <typename T, int LANES, int WORDS>
inline const vec<T, LANES> &next_word(const vec<T, LANES> (&table)[WORDS], int word) {
  return table[word];
}

template <typename V>
inline V next_word(hls::stream<V> &words, int) {
  return words.read();
}

template <typename G, typename Y, typename Weight, typename Bias>
void mvu_a(int frames, hls::stream<vec<typename G::T, G::SIMD>> &in,
           hls::stream<vec<Y, G::PE>> &out, Weight &weight, const Bias &bias) {
  static vec<typename G::T, G::SIMD> x[G::SF];
#pragma HLS AGGREGATE variable = x
  accumulator<typename G::T, G::PE, G::PARTIAL> acc;
#pragma HLS ARRAY_PARTITION variable = acc.sum complete
  acc.clear();
  for (int n = 0; n < frames * G::N; ++n) {
    for (int group = 0; group < G::GROUPS; ++group) {
      for (int f = 0; f < G::NF; ++f) {
        for (int s = 0; s < G::SF; ++s) {
#pragma HLS PIPELINE II = G::II
          FIRE(G::II, G::DEPTH);
          const int row = group * G::NF + f;
          if (f == 0) x[s] = in.read();
          vec<sum_t<typename G::T>, G::PE> sum = acc.oldest(s < G::PARTIAL);
          multiply_add<G::PE, G::SIMD>(sum, next_word(weight, row * G::SF + s), x[s]);
          acc.turn(sum);
          if (s == G::SF - 1) out.write(add_bias<Y, G>(acc.template turned<G::SF>(), bias, row));
        }
      }
    }
  }
}

template <typename G, typename Y, typename Weight, typename Bias>
void mvu_b(int frames, hls::stream<vec<typename G::T, G::SIMD>> &in,
           hls::stream<vec<Y, G::PE>> &out, Weight &weight, const Bias &bias) {
  using A = sum_t<typename G::T>;
  static vec<A, G::PE> acc[G::NF];
#pragma HLS AGGREGATE variable = acc
  vec<typename G::T, G::SIMD> x = zeros<typename G::T, G::SIMD>();
  for (int n = 0; n < frames * G::N; ++n) {
    for (int group = 0; group < G::GROUPS; ++group) {
      for (int s = 0; s < G::SF; ++s) {
        for (int f = 0; f < G::NF; ++f) {
#pragma HLS PIPELINE II = G::II
          FIRE(G::II, G::DEPTH);
          const int row = group * G::NF + f;
          if (f == 0) x = in.read();
          vec<A, G::PE> sum = s == 0 ? zeros<A, G::PE>() : acc[f];
          multiply_add<G::PE, G::SIMD>(sum, next_word(weight, row * G::SF + s), x);
          acc[f] = sum;
          if (s == G::SF - 1) out.write(add_bias<Y, G>(sum, bias, row));
        }
      }
    }
  }
}

// Per block: fill, multiply, drain, in one loop. Each vector of the block has its own accumulators.
template <typename G, typename W, typename Y, typename Bias>
void mvu_block(int frames, hls::stream<vec<typename G::T, G::SIMD>> &in,
               hls::stream<vec<Y, G::PE>> &out, hls::stream<vec<W, G::SIMD * G::PE>> &weight,
               const Bias &bias) {
  static vec<typename G::T, G::SIMD> x[G::BLOCK * G::SF];
#pragma HLS AGGREGATE variable = x
  static vec<Y, G::PE> y[G::BLOCK * G::NF];
#pragma HLS AGGREGATE variable = y
  static accumulator<typename G::T, G::PE, G::PARTIAL> acc[G::BLOCK];
#pragma HLS AGGREGATE variable = acc
#pragma HLS DEPENDENCE variable = acc type = inter direction = RAW distance = G::BLOCK true
  constexpr int FILL = G::BLOCK * G::SF, WORK = FILL * G::NF, DRAIN = G::BLOCK * G::NF;
  vec<W, G::SIMD * G::PE> word;
  int v = 0, s = 0, f = 0, from = 0, to = 0;  // vector, token, output; of the vector's x and y
  for (int b = 0; b < frames * (G::N / G::BLOCK); ++b) {
    for (int i = 0; i < FILL + WORK + DRAIN; ++i) {
#pragma HLS PIPELINE II = G::II
      FIRE(G::II, G::DEPTH);
      if (i < FILL) {
        x[i] = in.read();
      } else if (i < FILL + WORK) {
        if (v == 0) word = weight.read();
        accumulator<typename G::T, G::PE, G::PARTIAL> now = acc[v];
#pragma HLS ARRAY_PARTITION variable = now.sum complete
        vec<sum_t<typename G::T>, G::PE> sum = now.oldest(s < G::PARTIAL);
        multiply_add<G::PE, G::SIMD>(sum, word, x[from]);
        now.turn(sum);
        acc[v] = now;
        if (s == G::SF - 1) {
          y[to] = add_bias<Y, G>(now.template turned<G::SF>(), bias, f);
        }
        const bool token = v == G::BLOCK - 1, output = token && s == G::SF - 1;
        from = token ? (output ? 0 : s + 1) : from + G::SF;
        f = output ? (f == G::NF - 1 ? 0 : f + 1) : f;
        to = token ? f : to + G::NF;
        v = token ? 0 : v + 1;
        s = output ? 0 : s + token;
      } else {
        out.write(y[i - FILL - WORK]);
      }
    }
  }
}

}  // namespace engine

#endif
