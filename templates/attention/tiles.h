// The two small products of attention and the exponentials between them, on tiles that live in registers.
//
// Numerics (docs/numerics.md section 8): a score is a sum over 16 lanes along the head dim, a weighted value a sum over 16 lanes along the
// keys (both fma chains, folded by halves), the denominator a sum over 128 lanes along the keys. Tile sizes change the schedule only:
// every chain runs in ascending order whichever tile computes it.
#pragma once

#include <type_traits>

#include "../common/exponential.h"
#include "../common/registers.h"
#include "../common/vector.h"

namespace bi::attention_tiles {

constexpr int lanes = 16;          // of a score (head dim) and of a weighted value (keys)
constexpr int keys_at_a_time = 8;  // one vector of scores
constexpr int panel_width = 16;    // keys of a packed panel of K, columns of one of V

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Eight folds by halves of eight lanes each, together: the vectors of keys 0, 1, 4, 5 fold to two lanes a key, those of keys 2, 3, 6, 7
// do the same, and the last step adds the two lanes and brings the keys into order. The plain spelling is for other instruction sets.
template <class A>
BI_INLINE Vec<A> fold_to_two_lanes(Vec<A> a, Vec<A> b, Vec<A> c, Vec<A> d) {
  A lane[4][8], two[8];
  a.fold_half(4).fold_half(2).store(lane[0]);
  b.fold_half(4).fold_half(2).store(lane[1]);
  c.fold_half(4).fold_half(2).store(lane[2]);
  d.fold_half(4).fold_half(2).store(lane[3]);
  for (int i = 0; i < 8; i++) two[i] = lane[i / 2][i % 2];
  return Vec<A>::load(two);
}

template <class A>
BI_INLINE Vec<A> fold_two_lanes(Vec<A> keys0145, Vec<A> keys2367) {
  A x[8], y[8], sum[8];
  keys0145.store(x);
  keys2367.store(y);
  for (int i = 0; i < 2; i++) {
    sum[i] = x[2 * i] + x[2 * i + 1];
    sum[i + 4] = x[2 * i + 4] + x[2 * i + 5];
    sum[i + 2] = y[2 * i] + y[2 * i + 1];
    sum[i + 6] = y[2 * i + 4] + y[2 * i + 5];
  }
  return Vec<A>::load(sum);
}

// A score with its additive mask; a mask of -inf replaces the score, because NaN or +inf plus -inf would be NaN.
template <class A>
BI_INLINE Vec<A> add_mask(Vec<A> score, Vec<A> mask) {
  A s[8], b[8];
  score.store(s);
  mask.store(b);
  for (int i = 0; i < 8; i++) s[i] = b[i] == -std::numeric_limits<A>::infinity() ? b[i] : s[i] + b[i];
  return Vec<A>::load(s);
}

// Largest of the eight lanes. A NaN may be lost: its exponential is NaN all the same.
template <class A>
BI_INLINE A largest_lane(Vec<A> x) {
  return max_lanes(x);
}

#if BI_AVX2
// Blending one operand and exchanging the halves of the other saves a shuffle: the sums are commuted, which is exact.
BI_INLINE __m256 fold_four_lanes(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xF0), _mm256_permute2f128_ps(a, b, 0x21));
}
template <>
BI_INLINE Vec<float> fold_to_two_lanes(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d) {
  const __m256 ac = fold_four_lanes(a.v, c.v), bd = fold_four_lanes(b.v, d.v);
  return {_mm256_add_ps(_mm256_blend_ps(ac, bd, 0xCC), _mm256_shuffle_ps(ac, bd, 0x4E))};
}
template <>
BI_INLINE Vec<float> fold_two_lanes(Vec<float> x, Vec<float> y) {
  return {_mm256_add_ps(_mm256_shuffle_ps(x.v, y.v, 0x88), _mm256_shuffle_ps(x.v, y.v, 0xDD))};
}
template <>
BI_INLINE Vec<double> fold_to_two_lanes(Vec<double> a, Vec<double> b, Vec<double> c, Vec<double> d) {
  const auto two = [](Vec<double> x, Vec<double> y) {
    const __m256d first = _mm256_add_pd(x.lo, x.hi), second = _mm256_add_pd(y.lo, y.hi);
    return _mm256_add_pd(_mm256_blend_pd(first, second, 0xC), _mm256_permute2f128_pd(first, second, 0x21));
  };
  return {two(a, b), two(c, d)};
}
template <>
BI_INLINE Vec<double> fold_two_lanes(Vec<double> x, Vec<double> y) {
  const auto ordered = [](__m256d a, __m256d b) { return _mm256_permute4x64_pd(_mm256_hadd_pd(a, b), 0xD8); };
  return {ordered(x.lo, y.lo), ordered(x.hi, y.hi)};
}

template <>
BI_INLINE Vec<float> add_mask(Vec<float> score, Vec<float> mask) {
  const __m256 masked = _mm256_cmp_ps(mask.v, _mm256_set1_ps(-std::numeric_limits<float>::infinity()), _CMP_EQ_OQ);
  return {_mm256_blendv_ps(_mm256_add_ps(score.v, mask.v), mask.v, masked)};
}

template <>
BI_INLINE float largest_lane(Vec<float> x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
#endif

// Scaled scores of `rows` queries against eight keys; vectors along the head dim. `depth` is the head dim, a multiple of 16.
// One query keeps all 16 lanes of four keys in registers; two queries take lanes 0-7 first and lanes 8-15 after.
template <int rows, class K, class A>
BI_INLINE void score_tile(int64_t depth, const A* q, int64_t q_stride, const K* const* key, A scale, A* scores, int64_t scores_stride) {
  constexpr int together = rows == 1 ? 2 : 1;  // halves of the 16 lanes in one sweep over the head dim
  Vec<A> two_lanes[2][rows];
#pragma GCC unroll 2
  for (int group = 0; group < 2; group++) {
    const K* const k[4] = {key[2 * group], key[2 * group + 1], key[2 * group + 4], key[2 * group + 5]};
    Vec<A> folded[rows][4];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half += together) {
      Vec<A> lane[together][rows][4];
#pragma GCC unroll 16
      for (int i = 0; i < together * rows * 4; i++) (&lane[0][0][0])[i] = Vec<A>::zero();
      for (int64_t d = 8 * half; d < depth; d += lanes) {
#pragma GCC unroll 2
        for (int t = 0; t < together; t++) {
#pragma GCC unroll 2
          for (int r = 0; r < rows; r++) {
            const Vec<A> query = Vec<A>::load(q + r * q_stride + d + 8 * t);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) lane[t][r][j] = fma(query, Vec<A>::load(k[j] + d + 8 * t), lane[t][r][j]);
          }
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          if constexpr (together == 2)
            folded[r][j] = lane[0][r][j] + lane[1][r][j];
          else
            folded[r][j] = half == 0 ? lane[0][r][j] : folded[r][j] + lane[0][r][j];
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) two_lanes[group][r] = fold_to_two_lanes(folded[r][0], folded[r][1], folded[r][2], folded[r][3]);
  }
#pragma GCC unroll 2
  for (int r = 0; r < rows; r++)
    ((fold_two_lanes(two_lanes[0][r], two_lanes[1][r]) + Vec<A>::zero()) * Vec<A>::fill(scale)).store(scores + r * scores_stride);
}

// The softmax of a row of scores is three functions, so that the long chains of one row overlap with the next row's. A row ends at `keys`;
// memory up to the next multiple of eight is written, with values that change nothing: -inf, then +0.

// Adds the mask (null: none) and returns the exact maximum. A NaN may be lost in it: the exponential of that score is NaN all the same.
template <class A>
BI_INLINE A mask_and_maximum(A* row, int64_t keys, const A* mask) {
  constexpr A minus_infinity = -std::numeric_limits<A>::infinity();
  const int64_t whole = keys / 8 * 8;
  Vec<A> largest[2] = {Vec<A>::fill(minus_infinity), Vec<A>::fill(minus_infinity)};
  if (mask) {
    for (int64_t j = 0; j < whole; j += 8) {
      const Vec<A> s = add_mask(Vec<A>::load(row + j), Vec<A>::load(mask + j));
      s.store(row + j);
      largest[0] = larger(largest[0], s);
    }
  } else {
    int64_t j = 0;
    for (; j + 16 <= whole; j += 16) {
      largest[0] = larger(largest[0], Vec<A>::load(row + j));
      largest[1] = larger(largest[1], Vec<A>::load(row + j + 8));
    }
    for (; j < whole; j += 8) largest[0] = larger(largest[0], Vec<A>::load(row + j));
  }
  if (whole < keys) {
    Vec<A> s = Vec<A>::load(row + whole, keys - whole, minus_infinity);
    if (mask) s = add_mask(s, Vec<A>::load(mask + whole, keys - whole, minus_infinity));
    s.store(row + whole);
    largest[1] = larger(largest[1], s);
  }
  return largest_lane(larger(largest[0], largest[1]));
}

// Scores become unnormalised probabilities. Where the maximum is -inf they become NaN; the caller knows whether every key is masked.
template <class A>
BI_INLINE void exponentials(A* row, int64_t keys, A maximum) {
  const Vec<A> m = Vec<A>::fill(maximum);
  for (int64_t j = 0; j < keys; j += 8) exp_nonpositive(Vec<A>::load(row + j) - m).store(row + j);
}

// Lane sum over 128 lanes. Up to 128 keys each lane has one term, or none: a lane of +0, which is left out.
template <class A>
BI_INLINE A denominator(const A* row, int64_t keys) {
  if (keys <= 32) {
    Vec<A> lane[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) lane[i] = 8 * i < keys ? Vec<A>::load(row + 8 * i) : Vec<A>::zero();
    return fold_lanes<4>(lane);
  }
  const auto lanes_at = [&](int i) __attribute__((always_inline)) {
    Vec<A> lane = i < keys ? Vec<A>::load(row + i) : Vec<A>::zero();
    for (int64_t j = i + 128; j < keys; j += 128) lane = lane + Vec<A>::load(row + j);
    return lane;
  };
  Vec<A> lane[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) lane[i] = 64 + 8 * i < keys ? lanes_at(8 * i) + lanes_at(64 + 8 * i) : lanes_at(8 * i);
  return fold_lanes<8>(lane);
}

// `rows` x `vectors` of lane sums of products, left[row][i] * right[i][column] over i < terms: the scores from packed keys, and the weighted
// values. Vectors (Part) run along the columns; a pass takes `together` (1, 2 or 4) of the 16 lanes, `passes` apart, which are the first to
// be added by the fold. Results are scaled (by one: exactly) and stored. Long sums go through in chunks, so that a chunk of both operands
// stays in the first-level cache for all passes. Each tile is compiled by itself: inlined next to others its accumulators would spill.
template <class Part, int rows, int vectors, int together>
struct LaneTile {
  static constexpr int size = rows * vectors, passes = lanes / together;

  template <class R, class A>
  static BI_INLINE void multiply(const A* left, int64_t left_stride, const R* right, Part* sum, bool first) {
    Part value[vectors];
#pragma GCC unroll 8
    for (int c = 0; c < vectors; c++) {
      value[c] = Part::load(right + Part::size * c);
      hold_in_register(value[c]);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      Part factor;
      fill_register(left[r * left_stride], factor);
#pragma GCC unroll 8
      for (int c = 0; c < vectors; c++) {
        // A product is fma(a, b, +0) but for the sign of a zero, which the last step of a lane sum removes.
        if (first)
          sum[r * vectors + c] = factor * value[c];
        else
          sum[r * vectors + c] = fma(factor, value[c], sum[r * vectors + c]);
      }
    }
  }

  // The first folds, of the lanes of a pass.
  static BI_INLINE Part fold_together(const Part (*sum)[size], int i) {
    if constexpr (together == 4) return (sum[0][i] + sum[2][i]) + (sum[1][i] + sum[3][i]);
    return sum[0][i] + sum[together - 1][i];
  }

  template <class A>
  static BI_INLINE void fold(const Part (*partial)[size], A scale, A* out, int64_t out_stride) {
    for (int i = 0; i < size; i++) {
      const auto eighth = [&](int l) __attribute__((always_inline)) { return together == 2 ? partial[l][i] : partial[l][i] + partial[l + 8][i]; };
      const auto quarter = [&](int l) __attribute__((always_inline)) { return together == 4 ? partial[l][i] : eighth(l) + eighth(l + 4); };
      const Part even = quarter(0) + quarter(2), odd = quarter(1) + quarter(3);
      (((even + odd) + Part::zero()) * Part::fill(scale)).store(out + i / vectors * out_stride + i % vectors * Part::size);
    }
  }

  template <class R, class A>
  static __attribute__((noinline)) void run(int64_t terms, const A* left, int64_t left_stride, const R* right, int64_t right_row,
                                            A scale, A* out, int64_t out_stride) {
    // One row alone reads every value once, from far away and 16 keys apart, which no prefetcher of the machine follows.
    constexpr bool prefetches = rows == 1 && vectors > 2;
    constexpr int64_t chunk = prefetches ? 64 : sizeof(Part) == 64 ? 512 : 256;
    Part partial[lanes][size];
    for (int64_t begin = 0; begin == 0 || begin < terms; begin += chunk) {
      const int64_t end = terms < begin + chunk ? terms : begin + chunk;
      for (int pass = 0; pass < passes; pass++) {
        Part sum[together][size];
#pragma GCC unroll 4
        for (int t = 0; t < together; t++) {
#pragma GCC unroll 12
          for (int i = 0; i < size; i++) sum[t][i] = begin == 0 ? Part::zero() : partial[pass + passes * t][i];
        }
        if (prefetches) {
          const int64_t next = end + pass * (chunk / passes);
          for (int64_t row = next; row < next + chunk / passes && row < terms; row++)
#pragma GCC unroll 4
            for (int c = 0; c < vectors; c += 2) __builtin_prefetch(right + row * right_row + 8 * c, 0, 2);
        }
        int64_t i = begin + pass;
        for (; i + passes * (together - 1) < end; i += lanes) {
#pragma GCC unroll 4
          for (int t = 0; t < together; t++)
            multiply(left + i + passes * t, left_stride, right + (i + passes * t) * right_row, sum[t], false);
        }
#pragma GCC unroll 4
        for (int t = 0; t < together - 1; t++)
          if (i + passes * t < end) multiply(left + i + passes * t, left_stride, right + (i + passes * t) * right_row, sum[t], false);
        if (together > 1 && end >= terms) {
#pragma GCC unroll 12
          for (int j = 0; j < size; j++) partial[pass][j] = fold_together(sum, j);
        } else {
#pragma GCC unroll 4
          for (int t = 0; t < together; t++) {
#pragma GCC unroll 12
            for (int j = 0; j < size; j++) partial[pass + passes * t][j] = sum[t][j];
          }
        }
      }
    }
    fold(partial, scale, out, out_stride);
  }

  // 16 * `steps` terms, known to the compiler: head dims of 32 and 64 leave a lane so few terms that the loop would cost as much.
  template <int steps, class R, class A>
  static __attribute__((noinline)) void run_short(const A* left, int64_t left_stride, const R* right, int64_t right_row, A scale,
                                                  A* out, int64_t out_stride) {
    static_assert(together > 1);
    Part partial[passes][size];
#pragma GCC unroll 1
    for (int pass = 0; pass < passes; pass++) {
      Part sum[together][size];
#pragma GCC unroll 4
      for (int step = 0; step < steps; step++) {
#pragma GCC unroll 4
        for (int t = 0; t < together; t++) {
          const int i = pass + passes * t + lanes * step;
          multiply(left + i, left_stride, right + i * right_row, sum[t], step == 0);
        }
      }
#pragma GCC unroll 12
      for (int j = 0; j < size; j++) partial[pass][j] = fold_together(sum, j);
    }
    fold(partial, scale, out, out_stride);
  }
};

// Two registers of doubles make one vector, so half as many lanes fit.
template <class A>
constexpr int lanes_together = sizeof(A) == 4 ? 2 : 1;

// The most rows of a tile of 16 columns, and the tile: where one register of AVX512 takes all columns, 24 of them hold six rows of four lanes.
template <class A>
constexpr bool one_register = BI_AVX512 && sizeof(A) == 4;
template <class A>
constexpr int tile_rows = one_register<A> ? 6 : 3;
template <class A>
using Columns = std::conditional_t<one_register<A>, Sixteen<A>, Vec<A>>;
template <class A, int rows>
using ColumnTile = LaneTile<Columns<A>, rows, panel_width / Columns<A>::size, one_register<A> ? 4 : lanes_together<A>>;

// One to tile_rows rows by 16 columns of packed panels.
template <class A>
inline void panel_tile(int64_t rows, int64_t terms, const A* left, int64_t left_stride, const A* panel, A scale, A* out,
                       int64_t out_stride) {
  const auto run = [&](auto tile) { decltype(tile)::run(terms, left, left_stride, panel, panel_width, scale, out, out_stride); };
  if (rows == 1) return run(LaneTile<Vec<A>, 1, 2, 2>());
  if (rows == 2) return run(LaneTile<Vec<A>, 2, 2, lanes_together<A>>());
  if constexpr (tile_rows<A> == 6) {
    if (rows == 4) return run(ColumnTile<A, 4>());
    if (rows == 5) return run(ColumnTile<A, 5>());
    if (rows == 6) {
      using Tile = ColumnTile<A, 6>;
      if (terms == 32) return Tile::template run_short<2>(left, left_stride, panel, panel_width, scale, out, out_stride);
      if (terms == 64) return Tile::template run_short<4>(left, left_stride, panel, panel_width, scale, out, out_stride);
      return run(Tile());
    }
  } else if constexpr (lanes_together<A> == 2) {
    using Tile = ColumnTile<A, 3>;
    if (terms == 32) return Tile::template run_short<2>(left, left_stride, panel, panel_width, scale, out, out_stride);
    if (terms == 64) return Tile::template run_short<4>(left, left_stride, panel, panel_width, scale, out, out_stride);
  }
  run(ColumnTile<A, 3>());
}

// The same for columns read in place and up to three rows, 16 of them, or for a single row up to 64: one row needs more columns to have
// enough independent chains.
constexpr int strided_rows = 3;
template <class T, class A>
inline void strided_tile(int64_t rows, int64_t columns, int64_t terms, const A* left, int64_t left_stride, const T* right,
                         int64_t right_row, A* out, int64_t out_stride) {
  const auto run = [&](auto tile) { decltype(tile)::run(terms, left, left_stride, right, right_row, A(1), out, out_stride); };
  constexpr int together = lanes_together<A>;
  if (columns == 64) return run(LaneTile<Vec<A>, 1, 8, 1>());
  if (columns == 32) return run(LaneTile<Vec<A>, 1, 4, together>());
  if (rows == 1) return run(LaneTile<Vec<A>, 1, 2, 2>());
  if (rows == 2) return run(LaneTile<Vec<A>, 2, 2, together>());
  run(ColumnTile<A, 3>());
}

}  // namespace bi::attention_tiles
