// The scalar functions that MAP and NORM engines are made of.
#ifndef PIPEC_OPS_H
#define PIPEC_OPS_H

#ifdef __SYNTHESIS__
#include "hls_math.h"
namespace maths = hls;
#else
#include <cmath>
namespace maths = std;
#endif

namespace ops {

template <typename T> inline T abs(T x) { return x < T(0) ? -x : x; }
template <typename T> inline T ceil(T x) { return maths::ceil(x); }
template <typename T> inline T cos(T x) { return maths::cos(x); }
template <typename T> inline T erf(T x) { return maths::erf(x); }
template <typename T> inline T exp(T x) { return maths::exp(x); }
template <typename T> inline T floor(T x) { return maths::floor(x); }
template <typename T> inline T log(T x) { return maths::log(x); }
template <typename T> inline T neg(T x) { return -x; }
template <typename T> inline T reciprocal(T x) { return T(1) / x; }
template <typename T> inline T relu(T x) { return x > T(0) ? x : T(0); }
template <typename T> inline T round(T x) { return maths::rint(x); }  // half to even
template <typename T> inline T rsqrt(T x) { return T(1) / maths::sqrt(x); }
template <typename T> inline T sigmoid(T x) { return T(1) / (T(1) + maths::exp(-x)); }
template <typename T> inline T sign(T x) { return T((x > T(0)) - (x < T(0))); }
template <typename T> inline T silu(T x) { return x / (T(1) + maths::exp(-x)); }
template <typename T> inline T sin(T x) { return maths::sin(x); }
template <typename T> inline T softplus(T x) {
  return x > T(20) ? x : maths::log(T(1) + maths::exp(x));
}
template <typename T> inline T sqrt(T x) { return maths::sqrt(x); }
template <typename T> inline T square(T x) { return x * x; }
template <typename T> inline T tanh(T x) { return maths::tanh(x); }
// Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: exact, and the tanh approximation.
template <typename T> inline T gelu(T x) {
  return T(0.5) * x * (T(1) + maths::erf(x * T(0.70710678118654752440)));
}
template <typename T> inline T gelu_tanh(T x) {
  const T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  return T(0.5) * x * (T(1) + maths::tanh(inner));
}

template <typename T> inline T leaky_relu(T x, T slope) { return x > T(0) ? x : x * slope; }
template <typename T> inline T elu(T x, T alpha) {
  return x > T(0) ? x : alpha * (maths::exp(x) - T(1));
}

template <typename T> inline T add(T x, T y) { return x + y; }
template <typename T> inline T div(T x, T y) { return x / y; }
template <typename T> inline T max(T x, T y) { return x > y ? x : y; }
template <typename T> inline T min(T x, T y) { return x < y ? x : y; }
template <typename T> inline T mul(T x, T y) { return x * y; }
template <typename T> inline T pow(T x, T y) { return maths::pow(x, y); }
template <typename T> inline T rdiv(T x, T y) { return y / x; }
template <typename T> inline T rpow(T x, T y) { return maths::pow(y, x); }
template <typename T> inline T rsub(T x, T y) { return y - x; }
template <typename T> inline T sub(T x, T y) { return x - y; }

// Gradients of functions: x is the gradient of the result, y the result (relu, sigmoid, tanh) or
// the operand (gelu, silu).
template <typename T> inline T relu_grad(T x, T y) { return y > T(0) ? x : T(0); }
template <typename T> inline T sigmoid_grad(T x, T y) { return x * y * (T(1) - y); }
template <typename T> inline T tanh_grad(T x, T y) { return x * (T(1) - y * y); }
template <typename T> inline T silu_grad(T x, T y) {
  const T s = sigmoid(y);
  return x * s * (T(1) + y * (T(1) - s));
}
template <typename T> inline T gelu_grad(T x, T y) {
  const T cdf = T(0.5) * (T(1) + maths::erf(y * T(0.70710678118654752440)));
  return x * (cdf + y * T(0.39894228040143267794) * maths::exp(T(-0.5) * y * y));
}
template <typename T> inline T gelu_tanh_grad(T x, T y) {
  const T k = T(0.79788456080286535588);
  const T t = maths::tanh(k * (y + T(0.044715) * y * y * y));
  const T slope = k * (T(1) + T(3 * 0.044715) * y * y);
  return x * T(0.5) * (T(1) + t + y * (T(1) - t * t) * slope);
}

}  // namespace ops

#endif
