// exp of vectors whose elements are not positive: what softmax and attention take of scores below their maximum.
//
// Numerics: exp32 and exp64 of docs/numerics.md section 5. exp_lane is that definition word for word; the vectors leave out what only a
// large x needs.
#pragma once

#include <initializer_list>

#include "vector.h"

namespace bi {

inline float exp_lane(float x) {
  if (x != x) return x;
  if (x < -87.33654f) return 0.0f;
  if (x > 88.37626f) return std::numeric_limits<float>::infinity();
  const float k = math::nearbyint(x * 1.44269504088896341f);
  float r = math::fma(k, -0.693359375f, x);
  r = math::fma(k, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = math::fma(p, r, c);
  p = math::fma(p, r * r, r + 1.0f);
  const int exponent = int(k);
  if (exponent == 128) return p * 0x1p127f * 2.0f;
  return p * float_from_bits(uint32_t(exponent + 127) << 23);
}

inline double exp_lane(double x) {
  static constexpr double coefficient[14] = {1.0,
                                             1.0,
                                             1.0 / 2,
                                             1.0 / 6,
                                             1.0 / 24,
                                             1.0 / 120,
                                             1.0 / 720,
                                             1.0 / 5040,
                                             1.0 / 40320,
                                             1.0 / 362880,
                                             1.0 / 3628800,
                                             1.0 / 39916800,
                                             1.0 / 479001600,
                                             1.0 / 6227020800.0};
  if (x != x) return x;
  if (x < -708.39) return 0.0;
  if (x > 709.78) return std::numeric_limits<double>::infinity();
  const double k = math::nearbyint(x * 1.4426950408889634);
  double r = math::fma(k, -0x1.62e42fefa39efp-1, x);
  r = math::fma(k, -0x1.abc9e3b39803fp-56, r);
  double p = coefficient[13];
  for (int j = 12; j >= 0; j--) p = math::fma(p, r, coefficient[j]);
  const int64_t exponent = int64_t(k);
  if (exponent == 1024) return p * 0x1p1023 * 2.0;
  const uint64_t bits = uint64_t(exponent + 1023) << 52;
  double scale;
  std::memcpy(&scale, &bits, 8);
  return p * scale;
}

// exp_lane of each lane, for lanes <= 0 or NaN.
template <class A>
BI_INLINE Vec<A> exp_nonpositive(Vec<A> x) {
  A lane[8];
  x.store(lane);
  for (int i = 0; i < 8; i++) lane[i] = exp_lane(lane[i]);
  return Vec<A>::load(lane);
}

#if BI_AVX2
// An x below `low` is not clamped: whatever comes of it, -inf included, gives way to +0 in the last step.
template <>
BI_INLINE Vec<float> exp_nonpositive(Vec<float> x) {
  const __m256 low = _mm256_set1_ps(-87.33654f);
  const __m256 k = _mm256_round_ps(_mm256_mul_ps(x.v, _mm256_set1_ps(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fmadd_ps(k, _mm256_set1_ps(-0.693359375f), x.v);
  r = _mm256_fmadd_ps(k, _mm256_set1_ps(2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
#if BI_AVX512
  return {_mm256_maskz_scalef_ps(_mm256_cmp_ps_mask(x.v, low, _CMP_NLT_UQ), p, k)};
#else
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127));
  const __m256 result = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, low, _CMP_LT_OQ), result)};
#endif
}

BI_INLINE __m256d exp_nonpositive_pd(__m256d x) {
  constexpr double reciprocal_factorial[13] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,      1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
  const __m256d low = _mm256_set1_pd(-708.39);
  const __m256d k = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(1.4426950408889634)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256d r = _mm256_fmadd_pd(k, _mm256_set1_pd(-0x1.62e42fefa39efp-1), x);
  r = _mm256_fmadd_pd(k, _mm256_set1_pd(-0x1.abc9e3b39803fp-56), r);
  __m256d p = _mm256_set1_pd(1.0 / 6227020800.0);
#pragma GCC unroll 13
  for (int j = 12; j >= 0; j--) p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(reciprocal_factorial[j]));
#if BI_AVX512
  return _mm256_maskz_scalef_pd(_mm256_cmp_pd_mask(x, low, _CMP_NLT_UQ), p, k);
#else
  const __m256i exponent = _mm256_cvtepi32_epi64(_mm_add_epi32(_mm256_cvtpd_epi32(k), _mm_set1_epi32(1023)));
  const __m256d result = _mm256_mul_pd(p, _mm256_castsi256_pd(_mm256_slli_epi64(exponent, 52)));
  return _mm256_andnot_pd(_mm256_cmp_pd(x, low, _CMP_LT_OQ), result);
#endif
}
template <>
BI_INLINE Vec<double> exp_nonpositive(Vec<double> x) {
  return {exp_nonpositive_pd(x.lo), exp_nonpositive_pd(x.hi)};
}
#endif

}  // namespace bi
