// Eight virtual lanes of float or double, the same bits on every instruction set.
//
// Numerics: every operation is one IEEE operation per lane, rounded to nearest-even; fma has one rounding; nothing is contracted or
// reassociated (build with -ffp-contract=off -fsigned-zeros). AVX2 machines use intrinsics, all others plain loops over the lanes; sixteen
// lanes of floats are one register where there is AVX512.
// docs/numerics.md sections 1 and 2 define what the conversions and folds below compute.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "math.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define BI_AVX2 1
#else
#define BI_AVX2 0
#endif
#if BI_AVX2 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BI_AVX512 1
#else
#define BI_AVX512 0
#endif

#define BI_INLINE inline __attribute__((always_inline))
// What runs once for a block of work and not once for a vector: copies of it at each caller would only take longer to compile.
#if defined(__clang__)
#define BI_NOINLINE __attribute__((noinline))
#else
#define BI_NOINLINE __attribute__((noinline, noclone))
#endif

namespace bi {

// Storage types of the 16-bit formats. Plain bits: these headers know no torch type.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

template <class T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <class T>
using accumulator_t = typename Accumulator<T>::type;

BI_INLINE uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
BI_INLINE float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

BI_INLINE float widen(float value) { return value; }
BI_INLINE double widen(double value) { return value; }
BI_INLINE float widen(BFloat16 value) { return float_from_bits(uint32_t(value.bits) << 16); }
BI_INLINE float widen(Half value) {
#if BI_AVX2
  return _cvtsh_ss(value.bits);
#else
  const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  const uint32_t magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x400) return float_from_bits(sign | (magnitude << 13) + (112u << 23));
  // Subnormal: an exact multiple of 2^-24.
  const float scaled = float(magnitude) * 0x1p-24f;
  return float_from_bits(sign | float_bits(scaled));
#endif
}

// Rounds to nearest-even; NaN becomes a quiet NaN.
BI_INLINE void narrow(float value, float* out) { *out = value; }
BI_INLINE void narrow(double value, double* out) { *out = value; }
BI_INLINE void narrow(double value, float* out) { *out = float(value); }
BI_INLINE void narrow(float value, BFloat16* out) {
  const uint32_t bits = float_bits(value);
  out->bits = value != value ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
BI_INLINE void narrow(float value, Half* out) {
#if BI_AVX2
  out->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
  const uint32_t bits = float_bits(value);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    out->bits = 0x7e00;
  } else if (magnitude >= 0x477ff000) {  // rounds to 65536 or beyond
    out->bits = sign | 0x7c00;
  } else if (magnitude < 0x38800000) {  // subnormal: the addition rounds to a multiple of 2^-24
    const float rounded = float_from_bits(magnitude) + 0.5f;
    out->bits = sign | uint16_t(float_bits(rounded) - 0x3f000000);
  } else {
    out->bits = sign | uint16_t((magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13);
  }
#endif
}

// Copies the first `count` (0..8) of eight elements in at most four fixed-size moves: a memcpy of unknown size is a call, and masked stores
// are slow on some machines.
template <class T>
BI_INLINE void copy_partial(T* target, const T* source, int64_t count) {
  if (count & 8) {
    std::memcpy(target, source, 8 * sizeof(T));
    return;
  }
  if (count & 4) {
    std::memcpy(target, source, 4 * sizeof(T));
    target += 4;
    source += 4;
  }
  if (count & 2) {
    std::memcpy(target, source, 2 * sizeof(T));
    target += 2;
    source += 2;
  }
  if (count & 1) *target = *source;
}

template <class A>
struct Vec;

#if BI_AVX2

template <>
struct Vec<float> {
  static constexpr int size = 8;
  __m256 v;
  static BI_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
  static BI_INLINE Vec fill(float value) { return {_mm256_set1_ps(value)}; }
  static BI_INLINE __m256i tail_mask(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static BI_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static BI_INLINE Vec load(const BFloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static BI_INLINE Vec load(const Half* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  // The first `count` (0..8) lanes from memory, `other` in the rest; never reads past `count`.
  static BI_INLINE Vec load(const float* p, int64_t count, float other = 0) {
    const __m256i mask = tail_mask(count);
    return {_mm256_blendv_ps(_mm256_set1_ps(other), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask))};
  }
#if BI_AVX512
  static BI_INLINE __mmask8 first(int64_t count) { return __mmask8((1u << count) - 1); }
  static BI_INLINE Vec load(const BFloat16* p, int64_t count, float other = 0) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(first(count), p));
    return {_mm256_mask_mov_ps(_mm256_set1_ps(other), first(count), _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)))};
  }
  static BI_INLINE Vec load(const Half* p, int64_t count, float other = 0) {
    return {_mm256_mask_cvtph_ps(_mm256_set1_ps(other), first(count), _mm_maskz_loadu_epi16(first(count), p))};
  }
#else
  template <class T>
  static BI_INLINE Vec load(const T* p, int64_t count, float other = 0) {
    T padded[8];
    std::memset(padded, 0, sizeof(padded));
    copy_partial(padded, p, count);
    const __m256 mask = _mm256_castsi256_ps(tail_mask(count));
    return {_mm256_blendv_ps(_mm256_set1_ps(other), load(padded).v, mask)};
  }
#endif
  BI_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
  BI_INLINE void store(BFloat16* p) const {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
  }
  BI_INLINE void store(Half* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  template <class T>
  BI_INLINE void store(T* p, int64_t count) const {
    T full[8];
    store(full);
    copy_partial(p, full, count);
  }
  // The first `count` lanes, +0 in the rest, whatever they held.
  BI_INLINE Vec first_lanes(int64_t count) const { return {_mm256_and_ps(v, _mm256_castsi256_ps(tail_mask(count)))}; }
  friend BI_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend BI_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend BI_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend BI_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  friend BI_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  friend BI_INLINE Vec square_root(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
  // Exact maximum; NaN in either operand gives NaN.
  friend BI_INLINE Vec maximum(Vec a, Vec b) {
    const __m256 nan = _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q);  // maxps already returns b when either is NaN
    return {_mm256_blendv_ps(_mm256_max_ps(a.v, b.v), a.v, nan)};
  }
  // a > b ? a : b, so a NaN in a is dropped and one in b is kept.
  friend BI_INLINE Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  // Lane j of the result is lane j + half of the first 2 * half lanes added to lane j; lanes from half on are unspecified.
  BI_INLINE Vec fold_half(int half) const {
    const __m256 moved = half == 4   ? _mm256_permute2f128_ps(v, v, 0x11)
                         : half == 2 ? _mm256_permute_ps(v, 0xEE)
                                     : _mm256_permute_ps(v, 0x55);
    return {_mm256_add_ps(v, moved)};
  }
  BI_INLINE float first() const { return _mm256_cvtss_f32(v); }
};

template <>
struct Vec<double> {
  static constexpr int size = 8;
  __m256d lo, hi;
  static BI_INLINE Vec zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static BI_INLINE Vec fill(double value) { return {_mm256_set1_pd(value), _mm256_set1_pd(value)}; }
  static BI_INLINE Vec load(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
  static BI_INLINE Vec load(const float* p) { return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))}; }
  // All bits of those lanes of first..first+4 that are below `count`.
  static BI_INLINE __m256i mask_of_four(int64_t count, int64_t first) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(first, first + 1, first + 2, first + 3));
  }
  static BI_INLINE Vec load(const double* p, int64_t count, double other = 0) {
    const __m256i low = mask_of_four(count, 0), high = mask_of_four(count, 4);
    const __m256d rest = _mm256_set1_pd(other);
    return {_mm256_blendv_pd(rest, _mm256_maskload_pd(p, low), _mm256_castsi256_pd(low)),
            _mm256_blendv_pd(rest, _mm256_maskload_pd(p + 4, high), _mm256_castsi256_pd(high))};
  }
  static BI_INLINE Vec load(const float* p, int64_t count, float other = 0) {
    const __m256 x = Vec<float>::load(p, count, other).v;
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
  }
  BI_INLINE void store(double* p) const {
    _mm256_storeu_pd(p, lo);
    _mm256_storeu_pd(p + 4, hi);
  }
  BI_INLINE void store(float* p) const {
    _mm_storeu_ps(p, _mm256_cvtpd_ps(lo));
    _mm_storeu_ps(p + 4, _mm256_cvtpd_ps(hi));
  }
  template <class T>
  BI_INLINE void store(T* p, int64_t count) const {
    T full[8];
    store(full);
    copy_partial(p, full, count);
  }
  BI_INLINE Vec first_lanes(int64_t count) const {
    return {_mm256_and_pd(lo, _mm256_castsi256_pd(mask_of_four(count, 0))),
            _mm256_and_pd(hi, _mm256_castsi256_pd(mask_of_four(count, 4)))};
  }
  friend BI_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)}; }
  friend BI_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_pd(a.lo, b.lo), _mm256_sub_pd(a.hi, b.hi)}; }
  friend BI_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)}; }
  friend BI_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_pd(a.lo, b.lo), _mm256_div_pd(a.hi, b.hi)}; }
  friend BI_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
  }
  friend BI_INLINE Vec square_root(Vec a) { return {_mm256_sqrt_pd(a.lo), _mm256_sqrt_pd(a.hi)}; }
  static BI_INLINE __m256d max4(__m256d a, __m256d b) {
    return _mm256_blendv_pd(_mm256_max_pd(a, b), a, _mm256_cmp_pd(a, a, _CMP_UNORD_Q));
  }
  friend BI_INLINE Vec maximum(Vec a, Vec b) { return {max4(a.lo, b.lo), max4(a.hi, b.hi)}; }
  friend BI_INLINE Vec larger(Vec a, Vec b) { return {_mm256_max_pd(a.lo, b.lo), _mm256_max_pd(a.hi, b.hi)}; }
  BI_INLINE Vec fold_half(int half) const {
    if (half == 4) return {_mm256_add_pd(lo, hi), hi};
    const __m256d moved = half == 2 ? _mm256_permute2f128_pd(lo, lo, 0x11) : _mm256_permute_pd(lo, 0x5);
    return {_mm256_add_pd(lo, moved), hi};
  }
  BI_INLINE double first() const { return _mm256_cvtsd_f64(lo); }
};

#else

template <class A>
struct Vec {
  static constexpr int size = 8;
  A v[8];
  template <class F>
  static BI_INLINE Vec map(F f) {
    Vec r;
    for (int i = 0; i < 8; i++) r.v[i] = f(i);
    return r;
  }
  static BI_INLINE Vec zero() { return fill(A(0)); }
  static BI_INLINE Vec fill(A value) {
    return map([&](int) { return value; });
  }
  template <class T>
  static BI_INLINE Vec load(const T* p) {
    return map([&](int i) { return widen(p[i]); });
  }
  template <class T>
  static BI_INLINE Vec load(const T* p, int64_t count, A other = 0) {
    return map([&](int i) { return i < count ? widen(p[i]) : other; });
  }
  template <class T>
  BI_INLINE void store(T* p) const {
    for (int i = 0; i < 8; i++) narrow(v[i], p + i);
  }
  template <class T>
  BI_INLINE void store(T* p, int64_t count) const {
    for (int i = 0; i < count; i++) narrow(v[i], p + i);
  }
  BI_INLINE Vec first_lanes(int64_t count) const {
    return map([&](int i) { return i < count ? v[i] : A(0); });
  }
  friend BI_INLINE Vec operator+(Vec a, Vec b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend BI_INLINE Vec operator-(Vec a, Vec b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend BI_INLINE Vec operator*(Vec a, Vec b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend BI_INLINE Vec operator/(Vec a, Vec b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
  }
  friend BI_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return map([&](int i) { return math::fma(a.v[i], b.v[i], c.v[i]); });
  }
  friend BI_INLINE Vec square_root(Vec a) {
    return map([&](int i) { return math::sqrt(a.v[i]); });
  }
  friend BI_INLINE Vec maximum(Vec a, Vec b) {
    return map([&](int i) { return a.v[i] != a.v[i] || a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  friend BI_INLINE Vec larger(Vec a, Vec b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  BI_INLINE Vec fold_half(int half) const {
    return map([&](int i) { return i < half ? v[i] + v[i + half] : v[i]; });
  }
  BI_INLINE A first() const { return v[0]; }
};

#endif

// Sixteen lanes, as two vectors of eight or as one register.
template <class A>
struct Sixteen {
  static constexpr int size = 16;
  Vec<A> low, high;
  static BI_INLINE Sixteen zero() { return {Vec<A>::zero(), Vec<A>::zero()}; }
  static BI_INLINE Sixteen fill(A value) { return {Vec<A>::fill(value), Vec<A>::fill(value)}; }
  template <class T>
  static BI_INLINE Sixteen load(const T* p) {
    return {Vec<A>::load(p), Vec<A>::load(p + 8)};
  }
  // The first `count` (1..15) lanes from memory, +0 in the rest; never reads past `count`.
  template <class T>
  static BI_INLINE Sixteen load(const T* p, int64_t count) {
    return {count >= 8 ? Vec<A>::load(p) : Vec<A>::load(p, count), count > 8 ? Vec<A>::load(p + 8, count - 8) : Vec<A>::zero()};
  }
  BI_INLINE void store(A* p) const {
    low.store(p);
    high.store(p + 8);
  }
  BI_INLINE void store(A* p, int64_t count) const {
    if (count < 8) return low.store(p, count);
    low.store(p);
    if (count > 8) high.store(p + 8, count - 8);
  }
  friend BI_INLINE Sixteen operator+(Sixteen a, Sixteen b) { return {a.low + b.low, a.high + b.high}; }
  friend BI_INLINE Sixteen fma(Sixteen a, Sixteen b, Sixteen c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
};

#if BI_AVX512
template <>
struct Sixteen<float> {
  static constexpr int size = 16;
  __m512 v;
  static BI_INLINE Sixteen zero() { return {_mm512_setzero_ps()}; }
  static BI_INLINE Sixteen fill(float value) { return {_mm512_set1_ps(value)}; }
  static BI_INLINE Sixteen load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static BI_INLINE Sixteen load(const BFloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static BI_INLINE Sixteen load(const Half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static BI_INLINE Sixteen load(const float* p, int64_t count) { return {_mm512_maskz_loadu_ps(first(count), p)}; }
  static BI_INLINE Sixteen load(const BFloat16* p, int64_t count) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(count), p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static BI_INLINE Sixteen load(const Half* p, int64_t count) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), p))};
  }
  BI_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  BI_INLINE void store(float* p, int64_t count) const { _mm512_mask_storeu_ps(p, first(count), v); }
  // The first fold by halves: lane j + 8 added to lane j.
  BI_INLINE Vec<float> fold() const {
    return Vec<float>{_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1))};
  }
  friend BI_INLINE Sixteen operator+(Sixteen a, Sixteen b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend BI_INLINE Sixteen operator*(Sixteen a, Sixteen b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend BI_INLINE Sixteen fma(Sixteen a, Sixteen b, Sixteen c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

 private:
  static BI_INLINE __mmask16 first(int64_t count) { return __mmask16((1u << count) - 1); }
};
#endif

// Fold by halves (docs/numerics.md section 2, steps 2 and 3) of 8 * count lanes held as `count` (a power of two) vectors.
template <int count, class A>
BI_INLINE A fold_lanes(const Vec<A>* lanes) {
  Vec<A> partial[count];
  for (int i = 0; i < count; i++) partial[i] = lanes[i];
  for (int half = count / 2; half >= 1; half /= 2)
    for (int i = 0; i < half; i++) partial[i] = partial[i] + partial[i + half];
  return partial[0].fold_half(4).fold_half(2).fold_half(1).first() + A(0);
}

// Exact maximum of the eight lanes, NaN if any is NaN.
template <class A>
BI_INLINE A max_lanes(Vec<A> x) {
  A lane[8];
  x.store(lane);
  A result = lane[0];
  for (int i = 1; i < 8; i++) result = result != result || result > lane[i] ? result : lane[i];
  return result;
}

// Splits `total` units of work over threads in contiguous ranges; `unit_cost` is the work of one unit in element operations.
// Small work stays on the calling thread: entering a parallel region costs microseconds. Only outputs are split, never a sum.
template <class F>
inline void parallel_for(int64_t total, double unit_cost, int threads, const F& body) {
  constexpr double grain = 16384;
  int64_t wanted = int64_t(double(total) * unit_cost / grain);
  if (wanted > total) wanted = total;
  if (wanted > threads) wanted = threads;
  if (wanted <= 1) {
    if (total > 0) body(int64_t(0), total);
    return;
  }
#pragma omp parallel for num_threads(int(wanted)) schedule(static, 1)
  for (int64_t part = 0; part < wanted; part++) {
    const int64_t begin = total * part / wanted, end = total * (part + 1) / wanted;
    if (begin < end) body(begin, end);
  }
}

}  // namespace bi
