// Rows that are computed where they are read: a prologue in place of a tensor that would be stored and read back.
//
// Numerics: a prologue stores elements rounded to T, as the op before would have, so the bits are those of the two kernels one after the
// other (docs/numerics.md section 1).
#pragma once

#include "sums.h"

namespace bi {

// Stores `count` elements of a row-major [rows, n], from element `begin` of row `row` on, to `terms`. Called by several threads at once.
using PrologueFunction = void (*)(void* context, int64_t row, int64_t begin, int64_t count, void* terms);

template <class T>
struct Rows {
  const T* x;      // null where there is a prologue
  int64_t stride;  // elements between rows of x
  int64_t n;
  PrologueFunction prologue;
  void* context;

  void fill(int64_t row, int64_t begin, int64_t count, T* terms) const { prologue(context, row, begin, count, terms); }

  // Rows first..first+count, spacing() elements apart. Computed ones lie in memory of the calling thread until its next call.
  const T* read(int64_t first, int64_t count) const {
    if (!prologue) return x + first * stride;
    T* terms = scratch<T, 2>(count * n);
    fill(first, 0, count * n, terms);
    return terms;
  }
  // One row, computed by all threads.
  const T* read_long(int64_t row, int64_t threads) const {
    if (!prologue) return x + row * stride;
    T* terms = scratch<T, 2>(n);
    constexpr int64_t block = 4096;
    parallel_for((n + block - 1) / block, double(block), int(threads), [=, this](int64_t begin, int64_t end) {
      fill(row, begin * block, math::min(end * block, n) - begin * block, terms + begin * block);
    });
    return terms;
  }
  int64_t spacing() const { return prologue ? n : stride; }
};

}  // namespace bi
