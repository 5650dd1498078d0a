// Stand-in for the vendor's types in others' code, for `benchmarks.hls_check.vendor` alone: numbers
// of W bits, I of them whole, are numbers of W bits in the IR too, and results of arithmetic have
// the bits that the vendor's have (UG1399). Words of more than 64 bits are arrays of 32 bits, and a
// vector is an array.
#ifndef PIPEC_CHECK_HLS_TYPES_H
#define PIPEC_CHECK_HLS_TYPES_H

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

enum ap_q_mode { AP_RND, AP_RND_ZERO, AP_RND_MIN_INF, AP_RND_INF, AP_RND_CONV, AP_TRN, AP_TRN_ZERO };
enum ap_o_mode { AP_SAT, AP_SAT_ZERO, AP_SAT_SYM, AP_WRAP, AP_WRAP_SM };

namespace hls {

using namespace std;

template <typename T, int N>
struct vector {
  T data[N];
  T &operator[](int i) { return data[i]; }
  const T &operator[](int i) const { return data[i]; }
};

}  // namespace hls

namespace numbers {

constexpr int MOST = 64;
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int at_most(int bits) { return bits < MOST ? bits : MOST; }

template <int W, bool S>
struct Bits {
  using type = unsigned _BitInt(W);
};
template <int W>
struct Bits<W, true> {
  using type = _BitInt(larger(W, 2));
};

// What holds W bits: a native type, so that numbers are given in registers.
template <int W, bool S>
struct Native {
  using Signed = std::conditional_t<
      (W <= 8), int8_t,
      std::conditional_t<(W <= 16), int16_t, std::conditional_t<(W <= 32), int32_t, int64_t>>>;
  using type = std::conditional_t<S, Signed, std::make_unsigned_t<Signed>>;
};

template <int W, int I, bool S, ap_q_mode Q = AP_TRN, ap_o_mode O = AP_WRAP>
struct Number;

// What an operand is as a number: itself, or a native type's.
template <typename T, typename = void>
struct As {
  static constexpr bool known = false;
};
template <int W, int I, bool S, ap_q_mode Q, ap_o_mode O>
struct As<Number<W, I, S, Q, O>> {
  static constexpr bool known = true;
  using type = Number<W, I, S>;
};
template <typename T>
struct As<T, std::enable_if_t<std::is_integral<T>::value || std::is_enum<T>::value>> {
  static constexpr bool known = true;
  static constexpr int bits = std::is_same<T, bool>::value ? 1 : 8 * sizeof(T);
  using type = Number<bits, bits, std::is_signed<T>::value>;
};
// A number without a fraction converts by itself, as in a switch or an index.
template <typename Self, typename Held, bool WHOLE>
struct Convertible {};
template <typename Self, typename Held>
struct Convertible<Self, Held, true> {
  operator Held() const { return static_cast<const Self *>(this)->raw; }
};

template <int W, int I, bool S, ap_q_mode Q, ap_o_mode O>
struct Number : Convertible<Number<W, I, S, Q, O>, typename Native<W, S>::type, W == I> {
  static constexpr int bits = W, whole = I, fraction = W - I;
  static constexpr int width = W, iwidth = I;  // as the vendor calls them
  static constexpr bool is_signed = S;
  using Raw = typename Bits<W, S>::type;
  using Held = typename Native<W, S>::type;
  Held raw;

  struct Range {
    Held &raw;
    int high, low;
    operator unsigned long long() const { return ((unsigned long long)(raw >> low)) & mask(); }
    unsigned long long mask() const {
      return high - low >= 63 ? ~0ull : (1ull << (high - low + 1)) - 1;
    }
    template <typename T>
    Range &operator=(const T &given) {
      unsigned long long value = given;
      raw = Raw((raw & ~(Held(mask()) << low)) | (Held(value & mask()) << low));
      return *this;
    }
    Range &operator=(const Range &other) { return *this = (unsigned long long)(other); }
  };

  Number() = default;
  Number(const Number &) = default;
  Number &operator=(const Number &) = default;
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value || std::is_enum<T>::value, int> = 0>
  Number(T given) {
    if constexpr (std::is_floating_point<T>::value)
      raw = Raw((long long)(given * __builtin_exp2(double(fraction))));
    else
      set(typename As<T>::type(given, 0));
  }
  template <int W2, int I2, bool S2, ap_q_mode Q2, ap_o_mode O2>
  Number(const Number<W2, I2, S2, Q2, O2> &given) {
    set(given);
  }
  Number(Raw raw, int) : raw(Held(raw)) {}

  template <typename From>
  void set(const From &given) {
    constexpr int shift = From::fraction - fraction;
    constexpr int room = at_most(larger(From::bits, W) + larger(-shift, 0) + 2);
    using Room = _BitInt(room);
    Room value = Room(given.raw);
    if constexpr (shift > 0) {
      if constexpr (Q != AP_TRN && Q != AP_TRN_ZERO) value += Room(1) << (shift - 1);
      value >>= shift;
    } else {
      value <<= -shift;
    }
    constexpr bool fits = From::whole + !From::is_signed <= I + !S && (S || !From::is_signed);
    if constexpr (!fits && (O == AP_SAT || O == AP_SAT_SYM)) {
      constexpr Room most = (Room(1) << (W - S)) - 1, least = S ? -most - (O == AP_SAT) : Room(0);
      value = value > most ? most : value < least ? least : value;
    }
    raw = Raw(value);
  }

  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value && (W != I), int> = 0>
  explicit operator T() const {
    if constexpr (std::is_floating_point<T>::value)
      return T((long long)(raw)) * T(__builtin_exp2(double(-fraction)));
    else
      return T(fraction > 0 ? raw >> larger(fraction, 0) : raw << larger(-fraction, 0));
  }

  Range range(int high, int low) { return {raw, high, low}; }
  Range range() { return range(W - 1, 0); }
  Range operator()(int high, int low) { return range(high, low); }
  Range operator[](int at) { return range(at, at); }
  unsigned long long range(int high, int low) const {
    return Number(*this).range(high, low);
  }
  unsigned long long operator()(int high, int low) const { return range(high, low); }
  bool operator[](int at) const { return (raw >> at) & 1; }
  bool test(int at) const { return (*this)[at]; }
  int length() const { return W; }
  float to_float() const { return float((long long)(raw)) * float(__builtin_exp2(double(-fraction))); }
  double to_double() const { return double((long long)(raw)) * __builtin_exp2(double(-fraction)); }
  int to_int() const { return int(raw >> fraction); }
  unsigned to_uint() const { return unsigned(raw >> fraction); }
  long long to_int64() const { return (long long)(raw >> fraction); }
  unsigned long long to_uint64() const { return (unsigned long long)(raw >> fraction); }

  auto operator-() const {
    constexpr int more = at_most(W + 1);
    return Number<more, I + more - W, true>(_BitInt(more)(-_BitInt(more)(raw)), 0);
  }
  Number operator+() const { return *this; }
  Number operator~() const { return Number(Raw(~raw), 0); }
  bool operator!() const { return !raw; }
  Number operator<<(int by) const { return Number(Raw(raw << by), 0); }
  Number operator>>(int by) const { return Number(Raw(raw >> by), 0); }
  Number &operator<<=(int by) { return *this = *this << by; }
  Number &operator>>=(int by) { return *this = *this >> by; }
  Number &operator++() { return *this = Number(Raw(raw + (Raw(1) << fraction)), 0); }
  Number &operator--() { return *this = Number(Raw(raw - (Raw(1) << fraction)), 0); }
  Number operator++(int) {
    Number old = *this;
    ++*this;
    return old;
  }
  Number operator--(int) {
    Number old = *this;
    --*this;
    return old;
  }
};

template <typename T>
using as = typename As<std::decay_t<T>>::type;
template <typename T>
constexpr bool is_number = !std::is_arithmetic<T>::value && !std::is_enum<T>::value && As<T>::known;
template <typename A, typename B>
using both = std::enable_if_t<(is_number<A> && (As<B>::known || std::is_floating_point<B>::value)) ||
                                  (is_number<B> && (As<A>::known || std::is_floating_point<A>::value)),
                              int>;

// An operand as a number; a floating-point one has the other's type.
template <typename Other, typename T>
auto number_of(const T &x) {
  if constexpr (std::is_floating_point<T>::value)
    return as<Other>(x);
  else if constexpr (is_number<T>)
    return as<T>(typename as<T>::Raw(x.raw), 0);
  else
    return as<T>(x);
}

template <typename A, typename B>
struct Aligned {  // two numbers with the bits of both, and one more
  static constexpr bool is_signed = A::is_signed || B::is_signed;
  static constexpr int fraction = larger(A::fraction, B::fraction);
  static constexpr int whole = larger(A::whole + (is_signed && !A::is_signed), B::whole + (is_signed && !B::is_signed)) + 1;
  static constexpr int bits = at_most(whole + fraction);
  using Raw = typename Bits<bits, true>::type;
  using Result = Number<bits, bits - fraction, is_signed>;
  Raw a, b;
  Aligned(A x, B y)
      : a(Raw(Raw(x.raw) << (fraction - A::fraction))), b(Raw(Raw(y.raw) << (fraction - B::fraction))) {}
};

#define OPERANDS(OP)                                 \
  template <typename A, typename B, both<A, B> = 0>  \
  auto operator OP(const A &left, const B &right) {  \
    auto x = number_of<B>(left);                     \
    auto y = number_of<A>(right);                    \
    using X = decltype(x);                           \
    using Y = decltype(y);                           \
    Aligned<X, Y> z(x, y);                           \
    (void)z;
#define SUM(OP)                                           \
  OPERANDS(OP)                                            \
    using Result = typename Aligned<X, Y>::Result;        \
    return Result(typename Result::Raw(z.a OP z.b), 0);   \
  }
SUM(+)
SUM(-)
SUM(&)
SUM(|)
SUM(^)
OPERANDS(*)
    constexpr int bits = at_most(X::bits + Y::bits);
    using Result = Number<bits, bits - X::fraction - Y::fraction, X::is_signed || Y::is_signed>;
    using Room = typename Bits<bits, Result::is_signed>::type;
    return Result(typename Result::Raw(Room(x.raw) * Room(y.raw)), 0);
  }
OPERANDS(/)
    constexpr int bits = at_most(X::bits + larger(Y::fraction, 0) + Y::is_signed);
    using Result = Number<bits, bits - X::fraction, X::is_signed || Y::is_signed>;
    using Room = typename Bits<larger(bits, Y::bits), Result::is_signed>::type;
    return Result(typename Result::Raw((Room(x.raw) << larger(Y::fraction, 0)) / Room(y.raw)), 0);
  }
OPERANDS(%)
    using Result = X;
    using Room = typename Aligned<X, Y>::Raw;
    return Result(typename Result::Raw(Room(x.raw) % Room(y.raw)), 0);
  }
#define COMPARISON(OP) \
  OPERANDS(OP)         \
    return z.a OP z.b; \
  }
COMPARISON(<)
COMPARISON(>)
COMPARISON(<=)
COMPARISON(>=)
COMPARISON(==)
COMPARISON(!=)
#define ASSIGNMENT(OP)                                                                        \
  template <int W, int I, bool S, ap_q_mode Q, ap_o_mode O, typename B,                       \
            both<Number<W, I, S, Q, O>, B> = 0>                                               \
  auto &operator OP##=(Number<W, I, S, Q, O> &left, const B &right) {                         \
    return left = Number<W, I, S, Q, O>(left OP right);                                       \
  }
ASSIGNMENT(+)
ASSIGNMENT(-)
ASSIGNMENT(*)
ASSIGNMENT(/)
ASSIGNMENT(%)
ASSIGNMENT(&)
ASSIGNMENT(|)
ASSIGNMENT(^)
#undef OPERANDS
#undef SUM
#undef COMPARISON
#undef ASSIGNMENT

// A word of more than 64 bits; a range lies in one of its 32-bit words, or begins with one.
template <int W>
struct Wide {
  uint32_t words[(W + 31) / 32];

  struct Range {
    uint32_t *words;
    int high, low;
    operator uint32_t() const {
      uint32_t value = words[low / 32] >> (low % 32);
      return high - low >= 31 ? value : value & ((1u << (high - low + 1)) - 1);
    }
    template <typename T>
    Range &operator=(const T &given) {
      uint32_t value = given;
      if (high - low >= 31)
        words[low / 32] = value;
      else {
        uint32_t mask = ((1u << (high - low + 1)) - 1) << (low % 32);
        words[low / 32] = (words[low / 32] & ~mask) | ((value << (low % 32)) & mask);
      }
      return *this;
    }
    Range &operator=(const Range &other) { return *this = uint32_t(other); }
  };

  Wide(uint32_t low = 0) : words{low} {}
  Range range(int high, int low) { return {words, high, low}; }
  uint32_t range(int high, int low) const { return Range{(uint32_t *)words, high, low}; }
  Range operator()(int high, int low) { return range(high, low); }
  uint32_t operator()(int high, int low) const { return range(high, low); }
  Range operator[](int at) { return range(at, at); }
  operator uint32_t() const { return words[0]; }
};

template <int W, bool S>
using Integer = std::conditional_t<(W > MOST), Wide<W>, Number<at_most(W), at_most(W), S>>;

}  // namespace numbers

template <int W>
using ap_int = numbers::Integer<W, true>;
template <int W>
using ap_uint = numbers::Integer<W, false>;
template <int W, int I, ap_q_mode Q = AP_TRN, ap_o_mode O = AP_WRAP, int N = 0>
using ap_fixed = numbers::Number<W, I, true, Q, O>;
template <int W, int I, ap_q_mode Q = AP_TRN, ap_o_mode O = AP_WRAP, int N = 0>
using ap_ufixed = numbers::Number<W, I, false, Q, O>;

template <int D, int U, int TI, int TD>
struct ap_axiu {
  ap_uint<D> data;
  ap_uint<(D + 7) / 8> keep, strb;
  ap_uint<(U > 0 ? U : 1)> user;
  ap_uint<1> last;
  ap_uint<(TI > 0 ? TI : 1)> id;
  ap_uint<(TD > 0 ? TD : 1)> dest;
};
template <int D, int U, int TI, int TD>
struct ap_axis : ap_axiu<D, U, TI, TD> {
  ap_int<D> data;
};
namespace hls {
template <typename T, int U, int TI, int TD>
struct axis {
  T data;
  ap_uint<(8 * sizeof(T) + 7) / 8> keep, strb;
  ap_uint<(U > 0 ? U : 1)> user;
  ap_uint<1> last;
  ap_uint<(TI > 0 ? TI : 1)> id;
  ap_uint<(TD > 0 ? TD : 1)> dest;
};
}  // namespace hls

#endif
