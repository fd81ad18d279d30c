// docs/numerics.md section 4: cumsum, one chain per row of x [rows, n].
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

}  // namespace reference

#define ENTRY(T)                                                              \
  extern "C" void cumsum_##T(const T* x, T* out, int64_t rows, int64_t n) {   \
    reference::cumsum<T>(x, out, rows, n);                                    \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
