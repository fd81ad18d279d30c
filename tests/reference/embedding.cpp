// docs/numerics.md section 9: embedding backward.
#include "arithmetic.h"

namespace reference {

// grad [positions, width], index [positions], out [rows, width].
template <typename T>
void embedding_backward(const T* grad, const int64_t* index, T* out, int64_t positions, int64_t width, int64_t rows,
                        int64_t padding_idx) {
  for (int64_t at = 0; at < rows * width; ++at) {
    out[at] = T(0);
  }
  for (int64_t i = 0; i < positions; ++i) {
    if (index[i] == padding_idx) continue;
    for (int64_t j = 0; j < width; ++j) {
      T& c = out[index[i] * width + j];
      c = c + grad[i * width + j];
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                                                                      \
  extern "C" void embedding_backward_##T(const T* grad, const int64_t* index, T* out, int64_t positions,              \
                                         int64_t width, int64_t rows, int64_t padding_idx) {                          \
    reference::embedding_backward<T>(grad, index, out, positions, width, rows, padding_idx);                          \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
