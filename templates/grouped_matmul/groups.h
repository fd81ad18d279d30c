// A product for each group of rows, columns or terms, groups of any size one after the other.
//
// Numerics: every element is that of the product it is given, with the rows, columns or terms of its group alone. A row's bits depend on no
// other row and on no other group. docs/numerics.md section 3.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace bi {

enum GroupedDim : int64_t { grouped_rows, grouped_columns, grouped_terms };

// `product` takes the arguments of matmul (matmul/kernel.h). ends[g] is where group g ends, ascending, at most the size of the grouped dim.
// The operand that is not grouped has a stride per group. Rows or columns after the last group are +0. Throws std::out_of_range.
template <class Product, class T>
void multiply_groups(Product product, int64_t grouped, int64_t groups, int64_t m, int64_t n, int64_t k, const int64_t* ends, const T* a,
                     int64_t a_group, int64_t a_row, int64_t a_col, const T* b, int64_t b_group, int64_t b_row, int64_t b_col, T* out,
                     int64_t out_group, int64_t out_row, int64_t threads) {
  const int64_t size = grouped == grouped_rows ? m : grouped == grouped_columns ? n : k;
  for (int64_t g = 0; g < groups; g++)
    if (ends[g] < (g ? ends[g - 1] : 0) || ends[g] > size)
      throw std::out_of_range("grouped_mm: offs must be ascending and within the grouped dim");
  for (int64_t g = 0; g < groups; g++) {
    const int64_t first = g ? ends[g - 1] : 0, length = ends[g] - first;
    const T* left = a + (grouped == grouped_rows ? first * a_row : grouped == grouped_terms ? first * a_col : g * a_group);
    const T* right = b + (grouped == grouped_columns ? first * b_col : grouped == grouped_terms ? first * b_row : g * b_group);
    T* target = out + (grouped == grouped_rows ? first * out_row : grouped == grouped_columns ? first : g * out_group);
    product(1, grouped == grouped_rows ? length : m, grouped == grouped_columns ? length : n, grouped == grouped_terms ? length : k, left,
            0, a_row, a_col, right, 0, b_row, b_col, nullptr, 0, 0, 0, 1.0, 1.0, target, 0, out_row, threads, nullptr, nullptr);
  }
  const int64_t last = groups ? ends[groups - 1] : 0;
  if (grouped == grouped_terms) return;
  for (int64_t row = grouped == grouped_rows ? last : 0; row < m; row++)
    for (int64_t column = grouped == grouped_columns ? last : 0; column < n; column++) out[row * out_row + column] = T(0.0f);
}

}  // namespace bi
