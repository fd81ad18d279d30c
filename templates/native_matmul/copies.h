// Copies of vectors of bfloat16, contiguous along K and padded with zeros to whole steps of the native product.
//
// Numerics: none; values are moved, never changed.
#pragma once

#include "tile.h"

namespace bi {

// Sixteen vectors that lie side by side (stride 1 between them), eight elements of each: row p of `source` holds element p of all of them.
BI_INLINE void transpose_sixteen(const BFloat16* source, int64_t k_stride, BFloat16* target, int64_t target_row) {
  __m256i row[8], pairs[8], fours[8];
#pragma GCC unroll 8
  for (int p = 0; p < 8; p++) row[p] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + p * k_stride));
#pragma GCC unroll 4
  for (int p = 0; p < 4; p++) {
    pairs[p] = _mm256_unpacklo_epi16(row[2 * p], row[2 * p + 1]);
    pairs[p + 4] = _mm256_unpackhi_epi16(row[2 * p], row[2 * p + 1]);
  }
  // fours[2 * i + q]: elements 4q..4q+3 of the vectors 2i and 2i + 1 in the low half, of 2i + 8 and 2i + 9 in the high half.
#pragma GCC unroll 2
  for (int q = 0; q < 2; q++) {
    fours[0 + q] = _mm256_unpacklo_epi32(pairs[2 * q], pairs[2 * q + 1]);
    fours[2 + q] = _mm256_unpackhi_epi32(pairs[2 * q], pairs[2 * q + 1]);
    fours[4 + q] = _mm256_unpacklo_epi32(pairs[2 * q + 4], pairs[2 * q + 5]);
    fours[6 + q] = _mm256_unpackhi_epi32(pairs[2 * q + 4], pairs[2 * q + 5]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m256i even = _mm256_unpacklo_epi64(fours[2 * i], fours[2 * i + 1]);
    const __m256i odd = _mm256_unpackhi_epi64(fours[2 * i], fours[2 * i + 1]);
    BFloat16* to = target + 2 * i * target_row;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(even));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + target_row), _mm256_castsi256_si128(odd));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8 * target_row), _mm256_extracti128_si256(even, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 9 * target_row), _mm256_extracti128_si256(odd, 1));
  }
}

// `count` vectors of length k, any strides, into rows of `target`, whose rows hold whole steps.
BI_NOINLINE inline void copy_pairs(const BFloat16* source, int64_t vector_stride, int64_t k_stride, int64_t count, int64_t k,
                                   BFloat16* target, int64_t target_row) {
  const int64_t padded = native_steps(k) * native_step;
  const bool side_by_side = vector_stride == 1 && k_stride != 1;
  const int64_t transposed = side_by_side ? count / 16 * 16 : 0, whole = k / 8 * 8;
  // A block of K at a time, whose cache lines are still there for the next sixteen vectors.
  constexpr int64_t block = 64;
  for (int64_t k0 = 0; k0 < whole; k0 += block)
    for (int64_t j = 0; j < transposed; j += 16)
      for (int64_t p = k0; p < whole && p < k0 + block; p += 8)
        transpose_sixteen(source + j + p * k_stride, k_stride, target + j * target_row + p, target_row);
  for (int64_t j = 0; j < count; j++) {
    const BFloat16* from = source + j * vector_stride;
    BFloat16* to = target + j * target_row;
    if (k_stride == 1) {
      std::memcpy(to, from, size_t(k) * sizeof(BFloat16));
    } else {
      for (int64_t p = j < transposed ? whole : 0; p < k; p++) to[p] = from[p * k_stride];
    }
    std::memset(static_cast<void*>(to + k), 0, size_t(padded - k) * sizeof(BFloat16));
  }
}

}  // namespace bi
