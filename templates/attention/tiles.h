// The two small products of attention and the exponentials between them, on tiles that live in registers.
//
// Numerics (docs/numerics.md section 8): a score is a sum over 16 lanes along the head dim, a weighted value a sum over 16 lanes along the
// keys (both fma chains, folded by halves), the denominator a sum over 128 lanes along the keys. Tile sizes change the schedule only:
// every chain runs in ascending order whichever tile computes it.
#pragma once

#include "../common/vector.h"

namespace bi::attention_tiles {

constexpr int lanes = 16;          // of a score (head dim) and of a weighted value (keys)
constexpr int keys_at_a_time = 8;  // one vector of scores
constexpr int panel_width = 16;    // columns of a packed panel of V

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Element i of the result is the fold by halves of the eight lanes of vector i.
template <class A>
BI_INLINE Vec<A> fold_eight(const Vec<A>* vectors) {
  A sums[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) sums[i] = vectors[i].fold_half(4).fold_half(2).fold_half(1).first();
  return Vec<A>::load(sums);
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

#if BI_AVX2
// The same fold for eight vectors together, a transpose in between: vectors i and i + 4 share a register after the first step.
template <>
BI_INLINE Vec<float> fold_eight(const Vec<float>* vectors) {
  __m256 four[4], two[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    four[i] = _mm256_add_ps(_mm256_permute2f128_ps(vectors[i].v, vectors[i + 4].v, 0x20),
                            _mm256_permute2f128_ps(vectors[i].v, vectors[i + 4].v, 0x31));
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xEE));
  return {_mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xDD))};
}

template <>
BI_INLINE Vec<float> add_mask(Vec<float> score, Vec<float> mask) {
  const __m256 masked = _mm256_cmp_ps(mask.v, _mm256_set1_ps(-std::numeric_limits<float>::infinity()), _CMP_EQ_OQ);
  return {_mm256_blendv_ps(_mm256_add_ps(score.v, mask.v), mask.v, masked)};
}
#endif

// Scaled scores of `rows` queries against eight keys; vectors along the head dim. `depth` is the head dim, a multiple of 16.
// One query keeps all 16 lanes of four keys in registers; two queries take lanes 0-7 first and lanes 8-15 after.
template <int rows, class K, class A>
BI_INLINE void score_tile(int64_t depth, const A* q, int64_t q_stride, const K* const* key, A scale, A* scores, int64_t scores_stride) {
  constexpr int together = rows == 1 ? 2 : 1;  // halves of the 16 lanes in one sweep over the head dim
  Vec<A> sums[rows][8];
#pragma GCC unroll 2
  for (int group = 0; group < 8; group += 4) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half += together) {
      Vec<A> lane[rows][4][together];
#pragma GCC unroll 16
      for (int i = 0; i < rows * 4 * together; i++) (&lane[0][0][0])[i] = Vec<A>::zero();
      const K* const k0 = key[group] + 8 * half;
      const K* const k1 = key[group + 1] + 8 * half;
      const K* const k2 = key[group + 2] + 8 * half;
      const K* const k3 = key[group + 3] + 8 * half;
      const A* const queries = q + 8 * half;
      for (int64_t d = 0; d < depth; d += lanes) {
#pragma GCC unroll 2
        for (int t = 0; t < together; t++) {
          const Vec<A> k[4] = {Vec<A>::load(k0 + d + 8 * t), Vec<A>::load(k1 + d + 8 * t), Vec<A>::load(k2 + d + 8 * t),
                               Vec<A>::load(k3 + d + 8 * t)};
#pragma GCC unroll 2
          for (int r = 0; r < rows; r++) {
            const Vec<A> query = Vec<A>::load(queries + r * q_stride + d + 8 * t);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) lane[r][j][t] = fma(query, k[j], lane[r][j][t]);
          }
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          if constexpr (together == 2)
            sums[r][group + j] = lane[r][j][0] + lane[r][j][1];
          else
            sums[r][group + j] = half == 0 ? lane[r][j][0] : sums[r][group + j] + lane[r][j][0];
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < rows; r++)
    ((fold_eight(sums[r]) + Vec<A>::zero()) * Vec<A>::fill(scale)).store(scores + r * scores_stride);
}

// Turns one row of scores into unnormalised probabilities in place. `mask` is additive or null. The row ends at `keys`; memory up to
// the next multiple of eight is written (zeros). Where every score is -inf the row comes out NaN: the caller knows which of the two
// cases of a -inf maximum it is.
template <class A>
inline void softmax_row(A* row, int64_t keys, const A* mask, A* maximum_out, A* denominator) {
  constexpr A minus_infinity = -std::numeric_limits<A>::infinity();
  const int64_t whole = keys / 8 * 8, padded = round_up(keys, 8);
  Vec<A> largest[2] = {Vec<A>::fill(minus_infinity), Vec<A>::fill(minus_infinity)};
  if (mask) {
    for (int64_t j = 0; j < whole; j += 8) {
      const Vec<A> s = add_mask(Vec<A>::load(row + j), Vec<A>::load(mask + j));
      s.store(row + j);
      largest[0] = maximum(largest[0], s);
    }
  } else {
    int64_t j = 0;
    for (; j + 16 <= whole; j += 16) {
      largest[0] = maximum(largest[0], Vec<A>::load(row + j));
      largest[1] = maximum(largest[1], Vec<A>::load(row + j + 8));
    }
    for (; j < whole; j += 8) largest[0] = maximum(largest[0], Vec<A>::load(row + j));
  }
  if (whole < padded) {
    Vec<A> s = Vec<A>::load(row + whole, keys - whole, minus_infinity);
    if (mask) s = add_mask(s, Vec<A>::load(mask + whole, keys - whole, minus_infinity));
    s.store(row + whole);
    largest[1] = maximum(largest[1], s);
  }
  const A m = max_lanes(maximum(largest[0], largest[1]));
  *maximum_out = m;
  Vec<A> lane[16];
  for (int i = 0; i < 16; i++) lane[i] = Vec<A>::zero();
  for (int64_t begin = 0; begin < padded; begin += 128) {
    const int count = int(padded - begin < 128 ? (padded - begin) / 8 : 16);
    for (int i = 0; i < count; i++) {
      const Vec<A> e = exp_nonpositive(Vec<A>::load(row + begin + 8 * i) - Vec<A>::fill(m));
      e.store(row + begin + 8 * i);
      lane[i] = lane[i] + e;
    }
  }
  // Lanes that no key reached hold +0; folding them in changes nothing, so short rows start further down.
  *denominator = padded <= 32 ? fold_lanes<4>(lane) : padded <= 64 ? fold_lanes<8>(lane) : fold_lanes<16>(lane);
}

// Weighted sums of 8 * `vectors` columns of V for `rows` queries, undivided; vectors along the value dim, one pass per lane of keys.
// The keys go through in chunks so that a chunk of V and of the probabilities stays in the first-level cache for all passes.
template <int rows, int vectors, class V, class A>
inline void value_tile(int64_t keys, const A* probability, int64_t probability_stride, const V* v, int64_t v_row, Vec<A>* sums) {
  constexpr int64_t chunk = 256;
  Vec<A> partial[lanes][rows * vectors];
  for (int64_t begin = 0; begin == 0 || begin < keys; begin += chunk) {
    const int64_t end = keys < begin + chunk ? keys : begin + chunk;
    for (int lane = 0; lane < lanes; lane++) {
      Vec<A> sum[rows][vectors];
#pragma GCC unroll 12
      for (int i = 0; i < rows * vectors; i++) (&sum[0][0])[i] = begin == 0 ? Vec<A>::zero() : partial[lane][i];
      for (int64_t j = begin + lane; j < end; j += lanes) {
        Vec<A> value[vectors];
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++) value[c] = Vec<A>::load(v + j * v_row + 8 * c);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
          const Vec<A> p = Vec<A>::fill(probability[r * probability_stride + j]);
#pragma GCC unroll 8
          for (int c = 0; c < vectors; c++) sum[r][c] = fma(p, value[c], sum[r][c]);
        }
      }
#pragma GCC unroll 12
      for (int i = 0; i < rows * vectors; i++) partial[lane][i] = (&sum[0][0])[i];
    }
  }
  for (int i = 0; i < rows * vectors; i++) {
    Vec<A> tree[lanes];
#pragma GCC unroll 8
    for (int lane = 0; lane < 8; lane++) tree[lane] = partial[lane][i] + partial[lane + 8][i];
#pragma GCC unroll 3
    for (int half = 4; half >= 1; half /= 2)
#pragma GCC unroll 4
      for (int lane = 0; lane < half; lane++) tree[lane] = tree[lane] + tree[lane + half];
    sums[i] = tree[0] + Vec<A>::zero();
  }
}

}  // namespace bi::attention_tiles
