// The tile of the native product of bfloat16: vectors along K, two elements of each operand to a lane of an accumulator.
//
// Numerics: docs/numerics.md section 3, "Native bfloat16". Lane l of a sum takes the pairs of elements (2p, 2p + 1) with p mod 16 = l, in
// ascending p; VDPBF16PS adds a pair to its lane as fma of the odd elements, then fma of the even ones, both without subnormals. Lanes are
// folded by halves, + 0 at the end.
#pragma once

#include "../matmul/lanes.h"

#if !BI_AVX512 || !defined(__AVX512BF16__)
#error "the native product of bfloat16 is for CPUs with AVX512-BF16 and needs the compiler flag -mavx512bf16"
#endif

namespace bi {

// Elements of one operand that an instruction takes: two for each of the sixteen lanes.
inline constexpr int64_t native_step = 2 * matmul_lanes;
// As for floats, whose accumulators and operands take as many registers.
inline constexpr int64_t native_rows = lanes_rows<float>, native_columns = lanes_columns<float>;

inline int64_t native_steps(int64_t k) { return (k + native_step - 1) / native_step; }

// Sixteen pairs of elements.
struct Pairs {
  __m512i v;
  static BI_INLINE Pairs load(const BFloat16* p) { return {_mm512_loadu_si512(p)}; }
  // The first `count` (1..31) elements from memory, +0 for the rest; never reads past `count`.
  static BI_INLINE Pairs load(const BFloat16* p, int64_t count) { return {_mm512_maskz_loadu_epi16(__mmask32((1u << count) - 1), p)}; }
};

BI_INLINE void hold_in_register(Pairs& pairs) { asm("" : "+v"(pairs.v)); }

BI_INLINE Sixteen<float> add_products(Pairs a, Pairs b, Sixteen<float> sums) {
  return {_mm512_dpbf16_ps(sums.v, (__m512bh)a.v, (__m512bh)b.v)};
}

// sums[i * sums_row + j] = lane sum of a[i * a_row + k] * b[j * b_column + k]. `a` is padded with zeros to whole steps along K; `b` is never
// read past `k`, and zeros stand there in its place. The tile asks for `asked` of the next vectors.
template <int rows, int columns, int asked>
BI_INLINE void native_tile(const BFloat16* a, int64_t a_row, const BFloat16* b, int64_t b_column, int64_t k, float* sums, int64_t sums_row,
                           NextVectors<BFloat16> next) {
  constexpr int count = rows * columns;
  Sixteen<float> accumulator[count];
#pragma GCC unroll 24
  for (int i = 0; i < count; i++) accumulator[i] = Sixteen<float>::zero();
  const int64_t full = k / native_step * native_step;
  for (int64_t p = 0; p < full; p += native_step) {
#pragma GCC unroll 6
    for (int j = 0; j < asked; j++) __builtin_prefetch(next.first + j * next.stride + p, 0, 2);
    Pairs weight[columns];
#pragma GCC unroll 6
    for (int j = 0; j < columns; j++) {
      weight[j] = Pairs::load(b + j * b_column + p);
      if (rows > 1) hold_in_register(weight[j]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
      Pairs x = Pairs::load(a + i * a_row + p);
      hold_in_register(x);
#pragma GCC unroll 6
      for (int j = 0; j < columns; j++) accumulator[i * columns + j] = add_products(x, weight[j], accumulator[i * columns + j]);
    }
  }
  if (full < k) {
#pragma GCC unroll 6
    for (int j = 0; j < columns; j++) {
      const Pairs weight = Pairs::load(b + j * b_column + full, k - full);
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++)
        accumulator[i * columns + j] = add_products(Pairs::load(a + i * a_row + full), weight, accumulator[i * columns + j]);
    }
  }
  fold_tile<rows, columns, float>([&](int i) __attribute__((always_inline)) { return accumulator[i].fold(); }, sums, sums_row);
}

// The rows against `columns` columns; `asked` as in lanes_of_columns.
template <int columns, int asked>
inline void native_tiles(int64_t rows, const BFloat16* a, int64_t a_row, const BFloat16* b, int64_t b_column, int64_t k, float* sums,
                         int64_t sums_row, NextVectors<BFloat16> next) {
  int64_t i = 0;
  for (int64_t asking = 0; i + 4 <= rows && asking < columns; i += 4, asking += math::max(asked, 1))
    native_tile<4, columns, asked>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next.after(asking));
  for (; i + 4 <= rows; i += 4)
    native_tile<4, columns, 0>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
  // Up to three rows more, or alone: then the one tile asks for everything.
  switch (rows - i) {
    case 3: return native_tile<3, columns, asked ? columns : 0>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
    case 2: return native_tile<2, columns, asked ? columns : 0>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
    case 1: return native_tile<1, columns, asked ? columns : 0>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
  }
}

// The rows against at most native_columns columns.
BI_NOINLINE inline void multiply_native_group(int64_t rows, const BFloat16* a, int64_t a_row, const BFloat16* b, int64_t b_column,
                                              int64_t columns, int64_t k, float* sums, int64_t sums_row, NextVectors<BFloat16> next) {
  if (columns == native_columns) {
    // As few for each tile as bring all of them.
    switch (rows / native_rows) {
      case 0:
      case 1: return native_tiles<native_columns, 6>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
      case 2: return native_tiles<native_columns, 3>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
      default: return native_tiles<native_columns, 1>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
    }
  }
  int64_t j = 0;
  for (; j + 2 <= columns; j += 2) native_tiles<2, 0>(rows, a, a_row, b + j * b_column, b_column, k, sums + j, sums_row, next);
  if (j < columns) native_tiles<1, 0>(rows, a, a_row, b + j * b_column, b_column, k, sums + j, sums_row, next);
}

}  // namespace bi
