// Few rows against many columns: vectors along K.
//
// Numerics: sums over 16 lanes along K (lane = k mod 16), each lane a chain of fma in ascending k, folded by halves, + 0 at the end
// (docs/numerics.md sections 2 and 3). Both kernels here read every weight once and convert it in registers, because with few rows
// the time goes into reading B. `lanes_tile` wants B contiguous along K, `strip_pass` wants it contiguous along N.
#pragma once

#include "../common/registers.h"
#include "../common/vector.h"

namespace bi {

inline constexpr int matmul_lanes = 16;
inline constexpr int lane_vectors = matmul_lanes / 8;

// Folds eight 8-lane sums at once: element i of the result is the sum of sums[i] (steps 2 and 3 of docs/numerics.md section 2).
template <class A>
BI_INLINE Vec<A> fold_eight(const Vec<A>* sums) {
  A folded[8];
  for (int i = 0; i < 8; i++) folded[i] = fold_lanes<1>(sums + i);
  return Vec<A>::load(folded);
}

#if BI_AVX2
template <>
BI_INLINE Vec<float> fold_eight(const Vec<float>* sums) {
  __m256 four[4], two[2];
  // The fold pairs lane j with lane j + half; addition commutes, so a pair may stand in either order.
  for (int i = 0; i < 4; i++) {
    const __m256 a = sums[i].v, b = sums[i + 4].v;
    four[i] = _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
  }
  for (int i = 0; i < 2; i++) {
    const __m256 a = four[2 * i], b = four[2 * i + 1];
    two[i] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
  const __m256 one = _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
  return {_mm256_add_ps(one, _mm256_setzero_ps())};
}
#endif

// sums[i * sums_row + j] = lane sum of a[i * a_row + k] * b[j * b_column + k], for `rows` <= 2 rows and `columns` <= 4 columns.
// `a` holds the accumulation type, padded with zeros to a multiple of 16 along K; `b` is never read past `k`. `prefetch` asks for the
// columns that follow these.
template <int rows, int columns, bool prefetch, class T, class A>
BI_INLINE void lanes_tile(const A* a, int64_t a_row, const T* b, int64_t b_column, int64_t k, A* sums, int64_t sums_row) {
  Vec<A> accumulator[rows][columns][lane_vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows * columns * lane_vectors; i++) (&accumulator[0][0][0])[i] = Vec<A>::zero();
  const int64_t full = k / matmul_lanes * matmul_lanes;
  for (int64_t p = 0; p < full; p += matmul_lanes) {
    if (prefetch) {
#pragma GCC unroll 4
      for (int j = 0; j < columns; j++) __builtin_prefetch(b + (j + columns) * b_column + p, 0, 2);
    }
#pragma GCC unroll 2
    for (int v = 0; v < lane_vectors; v++) {
      Vec<A> weight[columns];
#pragma GCC unroll 4
      for (int j = 0; j < columns; j++) {
        weight[j] = Vec<A>::load(b + j * b_column + p + 8 * v);
        if (rows > 1) hold_in_register(weight[j]);
      }
#pragma GCC unroll 2
      for (int i = 0; i < rows; i++) {
        Vec<A> x = Vec<A>::load(a + i * a_row + p + 8 * v);
        hold_in_register(x);
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) accumulator[i][j][v] = fma(x, weight[j], accumulator[i][j][v]);
      }
    }
  }
  if (full < k) {
#pragma GCC unroll 2
    for (int v = 0; v < lane_vectors; v++) {
      const int64_t left = k - full - 8 * v;
      if (left <= 0) break;
#pragma GCC unroll 4
      for (int j = 0; j < columns; j++) {
        const Vec<A> weight = Vec<A>::load(b + j * b_column + full + 8 * v, left < 8 ? left : 8);
#pragma GCC unroll 2
        for (int i = 0; i < rows; i++) {
          const Vec<A> x = Vec<A>::load(a + i * a_row + full + 8 * v);
          accumulator[i][j][v] = fma(x, weight, accumulator[i][j][v]);
        }
      }
    }
  }
  Vec<A> halves[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) halves[i] = Vec<A>::zero();
#pragma GCC unroll 2
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < columns; j++) halves[4 * i + j] = accumulator[i][j][0] + accumulator[i][j][1];
  A folded[8];
  fold_eight(halves).store(folded);
#pragma GCC unroll 2
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int j = 0; j < columns; j++) sums[i * sums_row + j] = folded[4 * i + j];
}

// The widest tile that keeps its accumulators in 16 vector registers; doubles take two registers a vector.
template <class T, class A>
inline void lanes_columns(int64_t rows, const A* a, int64_t a_row, const T* b, int64_t b_column, int64_t columns, int64_t k,
                          A* sums, int64_t sums_row) {
  constexpr int tile_rows = sizeof(A) == 4 ? 2 : 1;
  int64_t i = 0;
  if (columns == 3) {
    if (rows >= tile_rows) lanes_tile<tile_rows, 3, true>(a, a_row, b, b_column, k, sums, sums_row), i = tile_rows;
    for (; i + tile_rows <= rows; i += tile_rows)
      lanes_tile<tile_rows, 3, false>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row);
    if (i < rows) lanes_tile<1, 3, true>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row);
    return;
  }
  for (int64_t j = 0; j < columns; j++)
    for (i = 0; i < rows; i++)
      lanes_tile<1, 1, false>(a + i * a_row, a_row, b + j * b_column, b_column, k, sums + i * sums_row + j, sums_row);
}

// One block of K for a strip of columns: lane[l][i][n] continues its chain over k = l, l + 16, ... of the block.
// `a` is packed as for lanes_tile, `b` has column stride 1 and row stride b_row; the lanes live in memory (L1), n fastest.
template <int rows, class T, class A>
BI_INLINE void strip_pass(const A* a, int64_t a_row, const T* b, int64_t b_row, int64_t k, int64_t columns, A* lanes,
                          int64_t lanes_lane, int64_t lanes_row) {
  for (int64_t l = 0; l < matmul_lanes && l < k; l++) {
    A* lane = lanes + l * lanes_lane;
    int64_t n = 0;
    for (; n + 16 <= columns; n += 16) {
      Vec<A> accumulator[rows][2];
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++)
        for (int v = 0; v < 2; v++) accumulator[i][v] = Vec<A>::load(lane + i * lanes_row + n + 8 * v);
      for (int64_t p = l; p < k; p += matmul_lanes) {
        Vec<A> w0 = Vec<A>::load(b + p * b_row + n), w1 = Vec<A>::load(b + p * b_row + n + 8);
        if (rows > 1) hold_in_register(w0), hold_in_register(w1);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
          const Vec<A> x = Vec<A>::fill(a[i * a_row + p]);
          accumulator[i][0] = fma(x, w0, accumulator[i][0]);
          accumulator[i][1] = fma(x, w1, accumulator[i][1]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++)
        for (int v = 0; v < 2; v++) accumulator[i][v].store(lane + i * lanes_row + n + 8 * v);
    }
    for (; n < columns; n += 8) {
      const int64_t count = columns - n < 8 ? columns - n : 8;
      for (int i = 0; i < rows; i++) {
        Vec<A> accumulator = Vec<A>::load(lane + i * lanes_row + n);
        for (int64_t p = l; p < k; p += matmul_lanes)
          accumulator = fma(Vec<A>::fill(a[i * a_row + p]), Vec<A>::load(b + p * b_row + n, count), accumulator);
        accumulator.store(lane + i * lanes_row + n);
      }
    }
  }
}

}  // namespace bi
