// docs/numerics.md section 7: layer_norm, rms_norm, mean_square_norm, group_norm. weight and bias may be null.
#include "arithmetic.h"

namespace reference {

template <typename T>
T reciprocal_root(T q, int64_t n, double eps) {
  const T mean_square = q / static_cast<T>(n);
  const T shifted = mean_square + static_cast<T>(eps);
  return T(1) / std::sqrt(shifted);
}

template <typename T>
T scale_and_shift(T y, const T* weight, const T* bias, int64_t at) {
  if (weight != nullptr && bias != nullptr) return std::fma(y, weight[at], bias[at]);
  if (weight != nullptr) return y * weight[at];
  if (bias != nullptr) return y + bias[at];
  return y;
}

// x and out [rows, n], weight and bias [n], mean and rstd [rows].
template <typename T>
void layer_norm(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, int64_t rows, int64_t n,
                double eps) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * n;
    const T m = sum(x_row, n) / static_cast<T>(n);
    std::vector<T> d(n);
    for (int64_t i = 0; i < n; ++i) {
      d[i] = x_row[i] - m;
    }
    const T r = reciprocal_root(sum_of_squares(d.data(), n), n, eps);
    for (int64_t i = 0; i < n; ++i) {
      const T y = d[i] * r;
      out[row * n + i] = scale_and_shift(y, weight, bias, i);
    }
    mean[row] = m;
    rstd[row] = r;
  }
}

// x and out [rows, n], weight [n], rstd [rows].
template <typename T>
void rms_norm(const T* x, const T* weight, T* out, T* rstd, int64_t rows, int64_t n, double eps) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * n;
    const T r = reciprocal_root(sum_of_squares(x_row, n), n, eps);
    for (int64_t i = 0; i < n; ++i) {
      const T y = x_row[i] * r;
      out[row * n + i] = weight != nullptr ? y * weight[i] : y;
    }
    rstd[row] = r;
  }
}

// x and out [rows, n], weight [n].
template <typename T>
void mean_square_norm(const T* x, const T* weight, T* out, int64_t rows, int64_t n, double eps) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * n;
    std::vector<T> squares(n);
    for (int64_t i = 0; i < n; ++i) {
      squares[i] = x_row[i] * x_row[i];
    }
    const T r = reciprocal_root(sum(squares.data(), n), n, eps);
    for (int64_t i = 0; i < n; ++i) {
      const T y = x_row[i] * r;
      out[row * n + i] = weight != nullptr ? y * weight[i] : y;
    }
  }
}

// x and out [samples, channels, spatial], weight and bias [channels], mean and rstd [samples, groups].
template <typename T>
void group_norm(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, int64_t samples, int64_t channels,
                int64_t spatial, int64_t groups, double eps) {
  const int64_t channels_per_group = channels / groups;
  const int64_t n = channels_per_group * spatial;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = (sample * groups + group) * n;
      const T* x_group = x + first;
      const T m = sum(x_group, n) / static_cast<T>(n);
      std::vector<T> d(n);
      for (int64_t i = 0; i < n; ++i) {
        d[i] = x_group[i] - m;
      }
      const T r = reciprocal_root(sum_of_squares(d.data(), n), n, eps);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t channel = group * channels_per_group + i / spatial;
        const T y = d[i] * r;
        out[first + i] = scale_and_shift(y, weight, bias, channel);
      }
      mean[sample * groups + group] = m;
      rstd[sample * groups + group] = r;
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                                                                       \
  extern "C" void layer_norm_##T(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, int64_t rows,   \
                                 int64_t n, double eps) {                                                              \
    reference::layer_norm<T>(x, weight, bias, out, mean, rstd, rows, n, eps);                                          \
  }                                                                                                                    \
  extern "C" void rms_norm_##T(const T* x, const T* weight, T* out, T* rstd, int64_t rows, int64_t n, double eps) {    \
    reference::rms_norm<T>(x, weight, out, rstd, rows, n, eps);                                                        \
  }                                                                                                                    \
  extern "C" void mean_square_norm_##T(const T* x, const T* weight, T* out, int64_t rows, int64_t n, double eps) {       \
    reference::mean_square_norm<T>(x, weight, out, rows, n, eps);                                                      \
  }                                                                                                                    \
  extern "C" void group_norm_##T(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd,                 \
                                 int64_t samples, int64_t channels, int64_t spatial, int64_t groups, double eps) {     \
    reference::group_norm<T>(x, weight, bias, out, mean, rstd, samples, channels, spatial, groups, eps);               \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
