// What the tiles of matmul and attention do with vectors beside arithmetic: keep them in registers, transpose eight of them.
//
// Numerics: none; values are moved, never changed (docs/numerics.md section 2 leaves the schedule free).
#pragma once

#include "vector.h"

namespace bi {

// Compilers fold a load into every instruction that uses it; a tile then runs at the speed of the load ports. This pins the loaded
// value to a register and computes nothing.
template <class A>
BI_INLINE void hold_in_register(Vec<A>&) {}
#if BI_AVX2
template <>
BI_INLINE void hold_in_register(Vec<float>& value) {
  asm("" : "+x"(value.v));
}
template <>
BI_INLINE void hold_in_register(Vec<double>& value) {
  asm("" : "+x"(value.lo), "+x"(value.hi));
}
#endif
template <class A>
BI_INLINE void hold_in_register(Sixteen<A>& value) {
  hold_in_register(value.low);
  hold_in_register(value.high);
}

// `value` in every lane of `lanes`, loaded once.
template <class A>
BI_INLINE void fill_register(A value, Vec<A>& lanes) {
  lanes = Vec<A>::fill(value);
  hold_in_register(lanes);
}
template <class A>
BI_INLINE void fill_register(A value, Sixteen<A>& lanes) {
  Vec<A> half;
  fill_register(value, half);
  lanes = {half, half};
}

#if BI_AVX512
template <>
BI_INLINE void hold_in_register(Sixteen<float>& value) {
  asm("" : "+v"(value.v));
}
// The one instruction that uses it may load it.
template <>
BI_INLINE void fill_register(float value, Sixteen<float>& lanes) {
  lanes = Sixteen<float>::fill(value);
}
#endif

// In place: row i, column j becomes row j, column i.
template <class A>
BI_INLINE void transpose_eight(Vec<A>* rows) {
  A in[8][8], out[8][8];
  for (int i = 0; i < 8; i++) rows[i].store(in[i]);
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++) out[i][j] = in[j][i];
  for (int i = 0; i < 8; i++) rows[i] = Vec<A>::load(out[i]);
}

#if BI_AVX2
template <>
BI_INLINE void transpose_eight(Vec<float>* rows) {
  __m256 pairs[8], quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    rows[i].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}
#endif

}  // namespace bi
