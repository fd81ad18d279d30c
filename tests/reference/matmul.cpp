// docs/numerics.md section 3: the matmul family.
#include "arithmetic.h"

namespace reference {

// a [batch, rows, depth], b [batch, depth, columns], bias and out [batch, rows, columns]; bias may be null.
template <typename T>
void matmul(const T* a, const T* b, const T* bias, T* out, int64_t batch, int64_t rows, int64_t columns, int64_t depth,
            double alpha, double beta) {
  const T alpha_t = static_cast<T>(alpha);
  const T beta_t = static_cast<T>(beta);
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < columns; ++n) {
        LaneSum<T> products(kMatmulLanes);
        for (int64_t k = 0; k < depth; ++k) {
          products.add_product(k, a[(i * rows + m) * depth + k], b[(i * depth + k) * columns + n]);
        }
        T result = products.total();
        const int64_t at = (i * rows + m) * columns + n;
        if (bias != nullptr && beta_t != T(0)) {
          const T scaled = alpha_t * result;
          const T scaled_bias = beta_t * bias[at];
          result = scaled + scaled_bias;
        } else if (alpha_t != T(1)) {
          result = alpha_t * result;
        }
        out[at] = result;
      }
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                                                                \
  extern "C" void matmul_##T(const T* a, const T* b, const T* bias, T* out, int64_t batch, int64_t rows,        \
                             int64_t columns, int64_t depth, double alpha, double beta) {                       \
    reference::matmul<T>(a, b, bias, out, batch, rows, columns, depth, alpha, beta);                            \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
