// docs/numerics.md section 4: cumsum, cumprod and logcumsumexp, one chain per row of x [rows, n].
#include <cmath>

#include "arithmetic.h"

namespace reference {

template <typename T>
void cumsum(const T* x, T* out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    T c = T(0);
    for (int64_t i = 0; i < n; ++i) {
      c = c + x[row * n + i];
      out[row * n + i] = c;
    }
  }
}

template <typename T>
void cumprod(const T* x, T* out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    T c = T(1);
    for (int64_t i = 0; i < n; ++i) {
      c = c * x[row * n + i];
      out[row * n + i] = c;
    }
  }
}

template <typename T>
void logcumsumexp(const T* x, T* out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    T c = T(-INFINITY);
    for (int64_t i = 0; i < n; ++i) {
      const T v = x[row * n + i];
      const T a = v > c ? v : c, b = v > c ? c : v;
      if (std::isnan(c) || std::isnan(v)) {
        c = T(NAN);
      } else if (a != b || std::isfinite(a)) {
        c = a + std::log1p(std::exp(b - a));
      }
      out[row * n + i] = c;
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                              \
  extern "C" void cumsum_##T(const T* x, T* out, int64_t rows, int64_t n) {   \
    reference::cumsum<T>(x, out, rows, n);                                    \
  }                                                                           \
  extern "C" void cumprod_##T(const T* x, T* out, int64_t rows, int64_t n) {  \
    reference::cumprod<T>(x, out, rows, n);                                   \
  }                                                                           \
  extern "C" void logcumsumexp_##T(const T* x, T* out, int64_t rows, int64_t n) { \
    reference::logcumsumexp<T>(x, out, rows, n);                              \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
