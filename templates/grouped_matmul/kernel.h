// A matmul for each group of rows, columns or terms, groups of any size one after the other.
//
// Numerics: every element is that of the matmul family, with the rows, columns or terms of its group alone: 16 lanes along K, folded by
// halves, one rounding. A row's bits depend on no other row and on no other group. docs/numerics.md section 3.
#pragma once

#include "../matmul/kernel.h"
#include "groups.h"

namespace bi {

// Arguments as multiply_groups's.
template <class T>
void grouped_matmul(int64_t grouped, int64_t groups, int64_t m, int64_t n, int64_t k, const int64_t* ends, const T* a, int64_t a_group,
                    int64_t a_row, int64_t a_col, const T* b, int64_t b_group, int64_t b_row, int64_t b_col, T* out, int64_t out_group,
                    int64_t out_row, int64_t threads) {
  multiply_groups(matmul<T>, grouped, groups, m, n, k, ends, a, a_group, a_row, a_col, b, b_group, b_row, b_col, out, out_group, out_row,
                  threads);
}

}  // namespace bi
