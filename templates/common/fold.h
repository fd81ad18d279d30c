// The last steps of eight lane sums, or eight maxima, at once: the fold of one leaves most of a register unused.
//
// Numerics: steps 2 and 3 of docs/numerics.md section 2 for each sum, from its eight lanes that are left; the bits of fold_lanes<1>.
#pragma once

#include "vector.h"

namespace bi {

// What joins two lanes. As larger() of vector.h, Larger may drop a NaN.
struct Add {
  template <class A>
  static BI_INLINE A join(A a, A b) {
    return a + b;
  }
#if BI_AVX2
  static BI_INLINE __m256 join(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static BI_INLINE __m256d join(__m256d a, __m256d b) { return _mm256_add_pd(a, b); }
#endif
};
struct Larger {
  template <class A>
  static BI_INLINE A join(A a, A b) {
    return a > b ? a : b;
  }
#if BI_AVX2
  static BI_INLINE __m256 join(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
  static BI_INLINE __m256d join(__m256d a, __m256d b) { return _mm256_max_pd(a, b); }
#endif
};

// Element i of the result: the eight lanes of x[i] joined by halves.
template <class Joining, class A>
BI_INLINE Vec<A> join_eight(const Vec<A>* x) {
  A joined[8];
  for (int i = 0; i < 8; i++) {
    A lane[8];
    x[i].store(lane);
    for (int half = 4; half >= 1; half /= 2)
      for (int j = 0; j < half; j++) lane[j] = Joining::join(lane[j], lane[j + half]);
    joined[i] = lane[0];
  }
  return Vec<A>::load(joined);
}

#if BI_AVX2
template <class Joining>
BI_INLINE Vec<float> join_eight(const Vec<float>* x) {
  __m256 four[4], two[2];
  // Lane j joins lane j + half; both joinings commute, so a pair may stand in either order.
  for (int i = 0; i < 4; i++) {
    const __m256 a = x[i].v, b = x[i + 4].v;
    four[i] = Joining::join(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
  }
  for (int i = 0; i < 2; i++) {
    const __m256 a = four[2 * i], b = four[2 * i + 1];
    two[i] = Joining::join(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
  return {Joining::join(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd))};
}

template <class Joining>
BI_INLINE Vec<double> join_eight(const Vec<double>* x) {
  __m256d one[2];
  for (int half = 0; half < 2; half++) {
    __m256d four[4], two[2];
    for (int i = 0; i < 4; i++) four[i] = Joining::join(x[4 * half + i].lo, x[4 * half + i].hi);
    for (int i = 0; i < 2; i++) {
      const __m256d a = four[2 * i], b = four[2 * i + 1];
      two[i] = Joining::join(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
    }
    // [a b] and [c d], two lanes each, become [a c b d].
    const __m256d mixed = Joining::join(_mm256_unpacklo_pd(two[0], two[1]), _mm256_unpackhi_pd(two[0], two[1]));
    one[half] = _mm256_permute4x64_pd(mixed, 0xd8);
  }
  return {one[0], one[1]};
}
#endif

// Element i of the result is the sum of the eight lanes of sums[i].
template <class A>
BI_INLINE Vec<A> fold_eight(const Vec<A>* sums) {
  return join_eight<Add>(sums) + Vec<A>::zero();
}

}  // namespace bi
