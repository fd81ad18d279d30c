// docs/numerics.md sections 5 and 6: exp, softmax and log_softmax over the rows of x [rows, n].
#include "arithmetic.h"

namespace reference {

template <typename T>
void exp(const T* x, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = exponential(x[i]);
  }
}

template <typename T>
T row_maximum(const T* x, int64_t n) {
  T m = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    m = maximum(m, x[i]);
  }
  return m;
}

template <typename T>
void softmax(const T* x, T* out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * n;
    T* out_row = out + row * n;
    const T m = row_maximum(x_row, n);
    LaneSum<T> s(kSumLanes);
    std::vector<T> e(n);
    for (int64_t i = 0; i < n; ++i) {
      e[i] = exponential(x_row[i] - m);
      s.add(i, e[i]);
    }
    const T denominator = s.total();
    for (int64_t i = 0; i < n; ++i) {
      out_row[i] = e[i] / denominator;
    }
  }
}

template <typename T>
void log_softmax(const T* x, T* out, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * n;
    T* out_row = out + row * n;
    const T m = row_maximum(x_row, n);
    LaneSum<T> s(kSumLanes);
    for (int64_t i = 0; i < n; ++i) {
      s.add(i, exponential(x_row[i] - m));
    }
    const T log_of_sum = std::log(s.total());
    for (int64_t i = 0; i < n; ++i) {
      const T shifted = x_row[i] - m;
      out_row[i] = shifted - log_of_sum;
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                                   \
  extern "C" void exp_##T(const T* x, T* out, int64_t n) {                         \
    reference::exp<T>(x, out, n);                                                  \
  }                                                                                \
  extern "C" void softmax_##T(const T* x, T* out, int64_t rows, int64_t n) {       \
    reference::softmax<T>(x, out, rows, n);                                        \
  }                                                                                \
  extern "C" void log_softmax_##T(const T* x, T* out, int64_t rows, int64_t n) {   \
    reference::log_softmax<T>(x, out, rows, n);                                    \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
