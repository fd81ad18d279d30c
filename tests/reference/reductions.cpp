// docs/numerics.md section 4: sum, mean, prod, var, std. Each reduces the rows of x [rows, n] to out [rows].
#include "arithmetic.h"

namespace reference {

template <typename T>
T mean(const T* x, int64_t n) {
  return sum(x, n) / static_cast<T>(n);
}

// Lanes and fold as in a lane sum, with * for +.
template <typename T>
T product(const T* x, int64_t n) {
  std::vector<T> lane(kSumLanes, T(1));
  for (int64_t i = 0; i < n; ++i) {
    lane[i % kSumLanes] = lane[i % kSumLanes] * x[i];
  }
  for (int64_t half = kSumLanes / 2; half >= 1; half /= 2) {
    for (int64_t j = 0; j < half; ++j) {
      lane[j] = lane[j] * lane[j + half];
    }
  }
  return lane[0];
}

template <typename T>
T variance(const T* x, int64_t n, double correction) {
  const T m = mean(x, n);
  std::vector<T> deviation(n);
  for (int64_t i = 0; i < n; ++i) {
    deviation[i] = x[i] - m;
  }
  const T q = sum_of_squares(deviation.data(), n);
  const T degrees_of_freedom = static_cast<T>(n) - static_cast<T>(correction);
  return q / (degrees_of_freedom > T(0) ? degrees_of_freedom : T(0));
}

}  // namespace reference

#define ENTRY(T)                                                                                         \
  extern "C" void sum_##T(const T* x, T* out, int64_t rows, int64_t n) {                                 \
    for (int64_t row = 0; row < rows; ++row) out[row] = reference::sum<T>(x + row * n, n);               \
  }                                                                                                      \
  extern "C" void mean_##T(const T* x, T* out, int64_t rows, int64_t n) {                                \
    for (int64_t row = 0; row < rows; ++row) out[row] = reference::mean<T>(x + row * n, n);              \
  }                                                                                                      \
  extern "C" void prod_##T(const T* x, T* out, int64_t rows, int64_t n) {                                \
    for (int64_t row = 0; row < rows; ++row) out[row] = reference::product<T>(x + row * n, n);           \
  }                                                                                                      \
  extern "C" void var_##T(const T* x, T* out, int64_t rows, int64_t n, double correction) {              \
    for (int64_t row = 0; row < rows; ++row) {                                                           \
      out[row] = reference::variance<T>(x + row * n, n, correction);                                     \
    }                                                                                                    \
  }                                                                                                      \
  extern "C" void std_##T(const T* x, T* out, int64_t rows, int64_t n, double correction) {              \
    for (int64_t row = 0; row < rows; ++row) {                                                           \
      out[row] = std::sqrt(reference::variance<T>(x + row * n, n, correction));                          \
    }                                                                                                    \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
