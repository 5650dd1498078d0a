// Narrow numbers: 16-bit floating point, fixed point, 8-bit integers with a scale. Streams and
// memories carry them; sums of products run in a wider type (`sum_t`), everything else in `real_t`,
// and every result is rounded once, half to even, where an engine writes it. Elementwise arithmetic
// and pooling of fixed and quantised numbers run in integers (`T::of`), not in `real_t`.
//
//             sum_t                       real_t: functions, row units
//   float     float                       float
//   bfloat16  float                       float        float16 likewise
//   fixed     exact, twice the fraction   float        out of range saturates
//   quantised int32, exact                float        out of range saturates
#ifndef PIPEC_NUMBER_H
#define PIPEC_NUMBER_H

#include <cmath>
#include <cstdint>
#include <cstring>

// A float and its bits.
inline uint32_t bits_of(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
inline float float_of(uint32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

// The upper half of a float.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  bfloat16(float x) {
    const uint32_t b = bits_of(x);
    const bool nan = (b & 0x7fffffffu) > 0x7f800000u;
    bits = uint16_t(nan ? (b >> 16 | 64u) : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
  }
  operator float() const { return float_of(uint32_t(bits) << 16); }
};

// IEEE 754 binary16, subnormal numbers included.
struct float16 {
  uint16_t bits;

  float16() = default;
  float16(float x) {
    const uint32_t b = bits_of(x), sign = b >> 16 & 0x8000u, size = b & 0x7fffffffu;
    if (size > 0x7f800000u) {
      bits = uint16_t(sign | 0x7e00u);
    } else if (size >= 0x477ff000u) {  // rounds to 65536 or more
      bits = uint16_t(sign | 0x7c00u);
    } else if (size < 0x38800000u) {  // below 2^-14: in steps of 2^-24
      bits = uint16_t(sign | uint32_t(std::rint(float_of(size) * 16777216.0f)));
    } else {
      bits = uint16_t(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13);
    }
  }
  operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return float_of(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size < 0x400u) return float_of(sign | bits_of(float(size) / 16777216.0f));
    return float_of(sign | (size + 0x1c000u) << 13);
  }
};

// A whole number that is larger where a number is; both zeros are alike, and what is no number lies
// beyond infinity. Integers are compared within a cycle, floats are not.
inline int32_t ordered(float x) {
  const int32_t b = int32_t(bits_of(x));
  return (b & 0x7fffffff) == 0 ? 0 : (b < 0 ? b ^ 0x7fffffff : b);
}

// x / 2^SHIFT, half to even.
template <int SHIFT>
inline int64_t shifted_right(int64_t x) {
  const int64_t half = int64_t(1) << SHIFT >> 1, odd = x >> SHIFT & 1;
  return SHIFT == 0 ? x : (x + half - 1 + odd) >> SHIFT;
}

constexpr int larger_of(int a, int b) { return a > b ? a : b; }

// W bits, at most 24, in whole bytes.
template <int BYTES>
struct fixed_store {
  using type = int32_t;
};
template <>
struct fixed_store<1> {
  using type = int8_t;
};
template <>
struct fixed_store<2> {
  using type = int16_t;
};

// An exact sum of products of two fixed<W, I>: 2 (W - I) bits of fraction.
template <int W, int I>
struct fixed_sum {
  int64_t raw;

  fixed_sum() = default;
  fixed_sum(int x) : raw(int64_t(x) << 2 * (W - I)) {}
  explicit operator float() const {
    return float(double(raw) / double(int64_t(1) << 2 * (W - I)));
  }
  fixed_sum &operator+=(const fixed_sum &y) {
    raw += y.raw;
    return *this;
  }
};

// ap_fixed<W, I, AP_RND_CONV, AP_SAT>: W bits, I of them before the point, sign included.
template <int W, int I>
struct fixed {
  static constexpr int F = W - I;
  static constexpr int64_t TOP = (int64_t(1) << (W - 1)) - 1;
  using store = typename fixed_store<(W + 7) / 8>::type;
  store raw;

  // A whole number with SHIFT more bits of fraction.
  template <int SHIFT>
  static fixed of(int64_t whole) {
    const int64_t x = shifted_right<SHIFT>(whole);
    fixed y;
    y.raw = store(x > TOP ? TOP : (x < -TOP - 1 ? -TOP - 1 : x));
    return y;
  }
  fixed() = default;
  // Of the 24 bits of a float; what is no number becomes the least one.
  fixed(float x) {
    const uint32_t b = bits_of(x), exponent = b >> 23 & 0xffu;
    const int64_t digits = int64_t((b & 0x7fffffu) | (exponent ? 0x800000u : 0u));
    const int up = int(exponent ? exponent : 1u) - 150 + F;  // |x| = digits * 2^(up - F)
    const int64_t half = up > -26 && up < 0 ? int64_t(1) << -up >> 1 : 0;
    const int64_t odd = up > -26 && up < 0 ? digits >> -up & 1 : 0;
    const int64_t near = up < 0 ? (up > -26 ? (digits + half - 1 + odd) >> -up : 0) : digits;
    const int64_t size = up > 0 ? near * (int64_t(1) << (up < 25 ? up : 25)) : near;
    const bool nan = (b & 0x7fffffffu) > 0x7f800000u;
    const bool over = size > TOP + int64_t(b >> 31);
    raw = store(nan ? -TOP - 1 : b >> 31 ? (over ? -TOP - 1 : -size) : (over ? TOP : size));
  }
  fixed(const fixed_sum<W, I> &sum) : fixed(of<F>(sum.raw)) {}
  template <int V, int J>
  explicit fixed(const fixed<V, J> &x)
      : fixed(of<larger_of(V - J - F, 0)>(
            int64_t(x.raw) * (int64_t(1) << larger_of(F - (V - J), 0)))) {}
  operator float() const { return float(raw) / float(int64_t(1) << F); }
};

template <int W, int I>
inline fixed_sum<W, I> operator*(const fixed<W, I> &x, const fixed<W, I> &y) {
  fixed_sum<W, I> product;
  product.raw = int64_t(x.raw) * y.raw;
  return product;
}
template <int W, int I>
inline fixed_sum<W, I> operator+(const fixed_sum<W, I> &sum, const fixed<W, I> &y) {
  fixed_sum<W, I> found;
  found.raw = sum.raw + (int64_t(y.raw) << (W - I));
  return found;
}

// x * 2^n, known when the code is compiled.
constexpr float times_two(float x, int n) {
  return n == 0 ? x : (n > 0 ? times_two(x * 2, n - 1) : times_two(x / 2, n + 1));
}

// 8 bits that stand for MANTISSA * 2^EXPONENT * (raw - ZERO), a scale in float32.
template <int MANTISSA, int EXPONENT, int ZERO_POINT>
struct quantised {
  static constexpr int ZERO = ZERO_POINT;
  int8_t raw;

  static float scale() {
    constexpr float found = times_two(float(MANTISSA), EXPONENT);
    return found;
  }
  static quantised of(int64_t raw, int low = -128, int high = 127) {
    quantised y;
    y.raw = int8_t(raw < low ? low : (raw > high ? high : raw));
    return y;
  }
  quantised() = default;
  quantised(float x) {
    const float steps = std::rint(x / scale()) + float(ZERO);
    raw = int8_t(steps > -128 ? (steps < 127 ? steps : 127) : -128);
  }
  // What it stands for, in steps of the scale.
  int32_t steps() const { return int32_t(raw) - ZERO; }
  operator float() const { return float(steps()) * scale(); }
};

// Products of raw numbers: the zero point of an activation is taken off by the bias. A weight has 8
// bits, or 9 where one was taken off it.
template <int M, int E, int Z>
inline int32_t operator*(int32_t w, const quantised<M, E, Z> &x) {
  const int32_t product = w * x.raw;
#pragma HLS BIND_OP variable = product op = mul impl = dsp
  return product;
}
// Of two activations: both zero points are taken off before.
template <int M, int E, int Z, int N, int F, int Y>
inline int32_t operator*(const quantised<M, E, Z> &x, const quantised<N, F, Y> &y) {
  const int32_t product = x.steps() * y.steps();
#pragma HLS BIND_OP variable = product op = mul impl = dsp
  return product;
}

// What turns an exact sum into 8 bits: ((sum + bias) * multiplier >> SHIFT) + ZERO.
struct rescale {
  int32_t bias, multiplier;

  rescale() = default;
  rescale(int x) : bias(x), multiplier(0) {}
};

// A product of LUTs: the DSPs of 8-bit integers are for the products that are summed.
inline int64_t on_fabric(int32_t x, int32_t y) {
#pragma HLS INLINE
  const int64_t product = int64_t(x) * y;
#pragma HLS BIND_OP variable = product op = mul impl = fabric
  return product;
}

// The last step of it: shifted, the zero point put on, kept within [LOW, HIGH].
template <typename Y, typename G>
inline Y narrowed(int64_t product) {
  return Y::of(shifted_right<G::SHIFT>(product) + Y::ZERO, G::LOW, G::HIGH);
}

// `term`: in what maxima and sums over a window run; of fixed numbers in steps of them.
template <typename T>
struct number {
  using sum = T;
  using real = T;
  using term = T;
};
template <>
struct number<bfloat16> {
  using sum = float;
  using real = float;
  using term = float;
};
template <>
struct number<float16> {
  using sum = float;
  using real = float;
  using term = float;
};
template <int W, int I>
struct number<fixed<W, I>> {
  using sum = fixed_sum<W, I>;
  using real = float;
  using term = int64_t;
};
template <int M, int E, int Z>
struct number<quantised<M, E, Z>> {
  using sum = int32_t;
  using real = float;
  using term = int32_t;
};
template <typename T>
using sum_t = typename number<T>::sum;
template <typename T>
using real_t = typename number<T>::real;
template <typename T>
using term_t = typename number<T>::term;

#endif
