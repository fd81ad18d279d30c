// Vectors along K: few rows against many columns, and many rows where the registers are wide.
//
// Numerics: sums over 16 lanes along K (lane = k mod 16), each lane a chain of fma in ascending k, folded by halves, + 0 at the end
// (docs/numerics.md sections 2 and 3). Both kernels here read B where it lies and convert it in registers, because with few rows
// the time goes into reading B. `lanes_tile` wants B contiguous along K, `strip_pass` wants it contiguous along N.
#pragma once

#include <type_traits>

#include "../common/fold.h"
#include "../common/registers.h"
#include "../common/vector.h"

namespace bi {

inline constexpr int matmul_lanes = 16;
// Rows and columns of the widest tile whose accumulators and operands the registers hold: a sum of sixteen lanes takes one register of
// AVX512, two of AVX2, and twice as many as doubles.
template <class A>
inline constexpr int lanes_rows = sizeof(A) == 8 ? 1 : BI_AVX512 ? 4 : 2;
template <class A>
inline constexpr int lanes_columns = sizeof(A) == 4 && BI_AVX512 ? 6 : 3;
// What a tile multiplies at a time: all lanes where they are one register, else half of them, so that operands take few registers.
template <class A>
using LanePart = std::conditional_t<sizeof(A) == 4 && BI_AVX512, Sixteen<A>, Vec<A>>;

// The first fold by halves, of the parts of one sum.
template <class A>
BI_INLINE Vec<A> fold_parts(const Vec<A>* parts) {
  return parts[0] + parts[1];
}
template <class A>
BI_INLINE Vec<A> fold_parts(const Sixteen<A>* parts) {
  return parts[0].fold();
}

// sums[i * sums_row + j] = the fold of half(columns * i + j), the lanes of a sum after their first fold, eight of them.
template <int rows, int columns, class A, class Half>
BI_INLINE void fold_tile(const Half& half, A* sums, int64_t sums_row) {
  constexpr int count = rows * columns, folded_count = (count + 7) / 8 * 8;
  Vec<A> halves[folded_count];
#pragma GCC unroll 24
  for (int i = 0; i < folded_count; i++) halves[i] = i < count ? half(i) : Vec<A>::zero();
  A folded[folded_count];
#pragma GCC unroll 3
  for (int i = 0; i < folded_count; i += 8) fold_eight(halves + i).store(folded + i);
#pragma GCC unroll 4
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 6
    for (int j = 0; j < columns; j++) sums[i * sums_row + j] = folded[columns * i + j];
}

// Vectors that are multiplied later, contiguous along K as they lie in memory: a tile asks for them while it multiplies.
template <class T>
struct NextVectors {
  const T* first;
  int64_t stride;
  NextVectors after(int64_t count) const { return {first + count * stride, stride}; }
};

// sums[i * sums_row + j] = lane sum of a[i * a_row + k] * b[j * b_column + k]. `a` holds the accumulation type, padded with zeros to a
// multiple of 16 along K; `b` is never read past `k`. The tile asks for `asked` of the next vectors.
template <int rows, int columns, int asked, class T, class A, class Stored>
BI_INLINE void lanes_tile(const A* a, int64_t a_row, const T* b, int64_t b_column, int64_t k, A* sums, int64_t sums_row,
                          NextVectors<Stored> next) {
  using Part = LanePart<A>;
  constexpr int size = Part::size, parts = matmul_lanes / size;
  Part accumulator[rows * columns][parts];
#pragma GCC unroll 24
  for (int i = 0; i < rows * columns * parts; i++) (&accumulator[0][0])[i] = Part::zero();
  const int64_t full = k / matmul_lanes * matmul_lanes;
  for (int64_t p = 0; p < full; p += matmul_lanes) {
#pragma GCC unroll 6
    for (int j = 0; j < asked; j++) __builtin_prefetch(next.first + j * next.stride + p, 0, 2);
#pragma GCC unroll 2
    for (int v = 0; v < parts; v++) {
      Part weight[columns];
#pragma GCC unroll 6
      for (int j = 0; j < columns; j++) {
        weight[j] = Part::load(b + j * b_column + p + size * v);
        if (rows > 1) hold_in_register(weight[j]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) {
        Part x = Part::load(a + i * a_row + p + size * v);
        hold_in_register(x);
#pragma GCC unroll 6
        for (int j = 0; j < columns; j++) accumulator[i * columns + j][v] = fma(x, weight[j], accumulator[i * columns + j][v]);
      }
    }
  }
  if (full < k) {
#pragma GCC unroll 2
    for (int v = 0; v < parts; v++) {
      const int64_t left = k - full - size * v;
      if (left <= 0) break;
#pragma GCC unroll 6
      for (int j = 0; j < columns; j++) {
        const Part weight = Part::load(b + j * b_column + full + size * v, left < size ? left : size);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
          const Part x = Part::load(a + i * a_row + full + size * v);
          accumulator[i * columns + j][v] = fma(x, weight, accumulator[i * columns + j][v]);
        }
      }
    }
  }
  fold_tile<rows, columns, A>([&](int i) __attribute__((always_inline)) { return fold_parts(accumulator[i]); }, sums, sums_row);
}

// The rows against `columns` columns. Each tile asks for `asked` of the next ones, until all are on their way: one tile that asked for all
// of them would wait for the memory that the others leave idle.
template <int columns, int asked, class T, class A, class Stored>
inline void lanes_of_columns(int64_t rows, const A* a, int64_t a_row, const T* b, int64_t b_column, int64_t k, A* sums, int64_t sums_row,
                             NextVectors<Stored> next) {
  constexpr int tile = lanes_rows<A>;
  int64_t i = 0;
  for (int64_t asking = 0; i + tile <= rows && asking < columns; i += tile, asking += asked)
    lanes_tile<tile, columns, asked>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next.after(asking));
  for (; i + tile <= rows; i += tile)
    lanes_tile<tile, columns, 0>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
  if constexpr (tile > 2) {
    for (; i + 2 <= rows; i += 2)
      lanes_tile<2, columns, columns>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
  }
  if constexpr (tile > 1) {
    if (i < rows) lanes_tile<1, columns, columns>(a + i * a_row, a_row, b, b_column, k, sums + i * sums_row, sums_row, next);
  }
}

// The rows against fewer columns than a tile has.
template <class T, class A>
BI_NOINLINE void lanes_of_few_columns(int64_t rows, const A* a, int64_t a_row, const T* b, int64_t b_column, int64_t columns, int64_t k,
                                      A* sums, int64_t sums_row) {
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = 0; i < rows; i++)
      lanes_tile<1, 1, 0>(a + i * a_row, a_row, b + j * b_column, b_column, k, sums + i * sums_row + j, sums_row, NextVectors<T>{});
}

template <class T, class A, class Stored>
inline void multiply_lanes_group(int64_t rows, const A* a, int64_t a_row, const T* b, int64_t b_column, int64_t columns, int64_t k, A* sums,
                                 int64_t sums_row, NextVectors<Stored> next) {
  constexpr int all = lanes_columns<A>;
  if (columns < all) return lanes_of_few_columns(rows, a, a_row, b, b_column, columns, k, sums, sums_row);
  // As few for each tile as bring all of them.
  const int64_t tiles = math::max<int64_t>(1, rows / lanes_rows<A>);
  switch ((all + tiles - 1) / tiles) {
    case 1: return lanes_of_columns<all, 1>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
    case 2: return lanes_of_columns<all, 2>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
    case 3: return lanes_of_columns<all, 3>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
    default: return lanes_of_columns<all, all>(rows, a, a_row, b, b_column, k, sums, sums_row, next);
  }
}

// strip_pass for any number of rows and fewer than sixteen columns.
template <class T, class A>
BI_NOINLINE void strip_pass_of_few(int rows, const A* a, int64_t a_row, const T* b, int64_t b_row, int64_t k, int64_t columns, A* lanes,
                                   int64_t lanes_lane, int64_t lanes_row) {
  for (int64_t l = 0; l < matmul_lanes && l < k; l++) {
    for (int64_t n = 0; n < columns; n += 8) {
      const int64_t count = columns - n < 8 ? columns - n : 8;
      for (int i = 0; i < rows; i++) {
        A* lane = lanes + l * lanes_lane + i * lanes_row + n;
        Vec<A> accumulator = Vec<A>::load(lane);
        for (int64_t p = l; p < k; p += matmul_lanes)
          accumulator = fma(Vec<A>::fill(a[i * a_row + p]), Vec<A>::load(b + p * b_row + n, count), accumulator);
        accumulator.store(lane);
      }
    }
  }
}

// One block of K for a strip of columns: lane[l][i][n] continues its chain over k = l, l + 16, ... of the block.
// `a` is packed as for lanes_tile, `b` has column stride 1 and row stride b_row; the lanes live in memory (L1), n fastest.
template <int rows, class T, class A>
BI_INLINE void strip_pass(const A* a, int64_t a_row, const T* b, int64_t b_row, int64_t k, int64_t columns, A* lanes,
                          int64_t lanes_lane, int64_t lanes_row) {
  for (int64_t l = 0; l < matmul_lanes && l < k; l++) {
    A* lane = lanes + l * lanes_lane;
    for (int64_t n = 0; n + 16 <= columns; n += 16) {
      Sixteen<A> accumulator[rows];
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) accumulator[i] = Sixteen<A>::load(lane + i * lanes_row + n);
      for (int64_t p = l; p < k; p += matmul_lanes) {
        Sixteen<A> weight = Sixteen<A>::load(b + p * b_row + n), x;
        if (rows > 1) hold_in_register(weight);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
          fill_register(a[i * a_row + p], x);
          accumulator[i] = fma(x, weight, accumulator[i]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) accumulator[i].store(lane + i * lanes_row + n);
    }
  }
  const int64_t whole = columns / 16 * 16;
  if (whole < columns) strip_pass_of_few(rows, a, a_row, b + whole, b_row, k, columns - whole, lanes + whole, lanes_lane, lanes_row);
}

}  // namespace bi
