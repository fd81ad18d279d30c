// Rows that are consumed where they are made: an epilogue in place of a kernel that would read them back.
//
// Numerics: an epilogue reads elements rounded to T, as from a tensor, so the bits are those of the two kernels one after the other
// (docs/numerics.md section 1).
#pragma once

#include "sums.h"

namespace bi {

// Consumes elements column_begin..column_end of rows row_begin..row_end, which lie at `results` one row after the other. Called by several
// threads at once.
using RowEpilogueFunction = void (*)(void* context, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                                     const void* results);

template <class T>
struct Results {
  T* out;  // null where nobody but the epilogue reads
  int64_t n;
  RowEpilogueFunction epilogue;
  void* context;

  // Where rows first..first+count go; with an epilogue alone, to memory of the calling thread until its next call.
  T* rows(int64_t first, int64_t count) const { return out ? out + first * n : scratch<T, 3>(count * n); }
  // Where elements begin..begin+count of one row go.
  T* part(int64_t row, int64_t begin, int64_t count) const { return out ? out + row * n + begin : scratch<T, 3>(count); }
  void consume_rows(int64_t first, int64_t count, const T* results) const {
    if (epilogue) epilogue(context, first, first + count, 0, n, results);
  }
  void consume_part(int64_t row, int64_t begin, int64_t count, const T* results) const {
    if (epilogue) epilogue(context, row, row + 1, begin, begin + count, results);
  }
};

}  // namespace bi
