// docs/numerics.md section 9: scatter.
#include "arithmetic.h"

namespace reference {

enum Reduce { kSet, kSum, kProd, kAmax, kAmin, kMean };

// self, out [outer, rows, columns]; index, src [outer, count, columns].
template <typename T>
void scatter(const T* self, const int64_t* index, const T* src, T* out, int64_t outer, int64_t rows, int64_t columns, int64_t count,
             int64_t reduce, int64_t include_self) {
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t v = 0; v < rows; ++v) {
      for (int64_t c = 0; c < columns; ++c) {
        T chain = self[(o * rows + v) * columns + c];
        int64_t terms = include_self ? 1 : 0;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t at = (o * count + i) * columns + c;
          if (index[at] != v) continue;
          const T x = src[at];
          if (terms == 0) {
            chain = reduce == kProd ? T(1) : reduce == kAmax || reduce == kAmin ? x : T(0);
          }
          ++terms;
          if (reduce == kSet) chain = x;
          if (reduce == kSum || reduce == kMean) chain = chain + x;
          if (reduce == kProd) chain = chain * x;
          if (reduce == kAmax && (x > chain || std::isnan(x))) chain = x;
          if (reduce == kAmin && (x < chain || std::isnan(x))) chain = x;
        }
        out[(o * rows + v) * columns + c] = reduce == kMean && terms > 0 ? chain / T(terms) : chain;
      }
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                                                                              \
  extern "C" void scatter_##T(const T* self, const int64_t* index, const T* src, T* out, int64_t outer, int64_t rows,         \
                              int64_t columns, int64_t count, int64_t reduce, int64_t include_self) {                         \
    reference::scatter<T>(self, index, src, out, outer, rows, columns, count, reduce, include_self);                          \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
