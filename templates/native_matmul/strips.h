// Few rows against a B that is contiguous along N: pairs of its rows are interleaved in registers, which copies nothing.
//
// Numerics: those of tile.h. A vector holds one lane of sixteen columns; the lanes of a strip of columns live in memory (L1).
#pragma once

#include "../matmul/entry.h"
#include "copies.h"

namespace bi {

// Columns that a pair of registers takes, one row of B each.
inline constexpr int64_t native_strip = 32;

// One block of K for a strip of columns: every lane continues its chain over the pairs of the block. `a` is packed as for native_tile. The
// lanes of 32 columns stand in the order in which interleaving leaves them, four by four (see columns_in_order).
template <int rows>
BI_INLINE void native_strip_pass(const BFloat16* a, int64_t a_row, const BFloat16* b, int64_t b_row, int64_t k, int64_t columns,
                                 float* lanes, int64_t lanes_lane, int64_t lanes_row) {
  for (int64_t l = 0; l < matmul_lanes && 2 * l < k; l++) {
    for (int64_t n = 0; n < columns; n += native_strip) {
      const __mmask32 mask = columns - n >= native_strip ? ~__mmask32(0) : __mmask32((1u << (columns - n)) - 1);
      float* lane = lanes + l * lanes_lane + n;
      Sixteen<float> first[rows], second[rows];
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) {
        first[i] = Sixteen<float>::load(lane + i * lanes_row);
        second[i] = Sixteen<float>::load(lane + i * lanes_row + matmul_lanes);
      }
      for (int64_t p = 2 * l; p < k; p += native_step) {
        const __m512i even = _mm512_maskz_loadu_epi16(mask, b + p * b_row + n);
        const __m512i odd = _mm512_maskz_loadu_epi16(p + 1 < k ? mask : 0, b + (p + (p + 1 < k)) * b_row + n);
        const Pairs low{_mm512_unpacklo_epi16(even, odd)}, high{_mm512_unpackhi_epi16(even, odd)};
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
          int pair;
          std::memcpy(&pair, a + i * a_row + p, sizeof(pair));
          const Pairs x{_mm512_set1_epi32(pair)};
          first[i] = add_products(x, low, first[i]);
          second[i] = add_products(x, high, second[i]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) {
        first[i].store(lane + i * lanes_row);
        second[i].store(lane + i * lanes_row + matmul_lanes);
      }
    }
  }
}

// The sums of 32 columns, of which `found` has those that the low halves of 128 bits gave and then those of the high halves.
BI_INLINE void columns_in_order(const float* found, float* sums) {
  for (int part = 0; part < 8; part++) std::memcpy(sums + 4 * part, found + (part % 2) * 16 + (part / 2) * 4, 4 * sizeof(float));
}

// The columns [begin, end) of few rows.
inline void multiply_native_strips(const MatmulEntry<BFloat16>& e, int64_t begin, int64_t end) {
  constexpr int64_t block = 8 * native_step;  // a lane's accumulators stay in registers for this many rows of B
  const int64_t stride = native_steps(e.k) * native_step;
  const int64_t strip = math::max<int64_t>(2, 2048 / e.m / native_strip) * native_strip;
  MatmulBuffers<float>& buffers = MatmulBuffers<float>::of_this_thread();
  BFloat16* packed = MatmulBuffers<BFloat16>::of_this_thread().rows.reserve(e.m * stride + 1);
  copy_pairs(e.a, e.a_row, e.a_col, e.m, e.k, packed, stride);
  const int64_t lanes_row = matmul_lanes * strip;
  float *lanes = buffers.columns.reserve(e.m * lanes_row), *sums = buffers.sums.reserve(e.m * strip);
  for (int64_t n0 = begin; n0 < end; n0 += strip) {
    const int64_t columns = math::min(strip, end - n0);
    std::memset(lanes, 0, size_t(e.m * lanes_row) * sizeof(float));
    for (int64_t p = 0; p < e.k; p += block) {
      const BFloat16* b = e.b + p * e.b_row + n0;
      const int64_t depth = math::min(block, e.k - p);
      int64_t i = 0;
      for (; i + 4 <= e.m; i += 4)
        native_strip_pass<4>(packed + i * stride + p, stride, b, e.b_row, depth, columns, lanes + i * lanes_row, strip, lanes_row);
      for (; i + 2 <= e.m; i += 2)
        native_strip_pass<2>(packed + i * stride + p, stride, b, e.b_row, depth, columns, lanes + i * lanes_row, strip, lanes_row);
      for (; i < e.m; i++)
        native_strip_pass<1>(packed + i * stride + p, stride, b, e.b_row, depth, columns, lanes + i * lanes_row, strip, lanes_row);
    }
    for (int64_t i = 0; i < e.m; i++) {
      for (int64_t n = 0; n < columns; n += native_strip) {
        float found[native_strip];
        for (int64_t half = 0; half < native_strip; half += matmul_lanes) {
          Sixteen<float> lane[matmul_lanes];
          for (int l = 0; l < matmul_lanes; l++) lane[l] = Sixteen<float>::load(lanes + i * lanes_row + l * strip + n + half);
          for (int fold = matmul_lanes / 2; fold >= 1; fold /= 2)
            for (int l = 0; l < fold; l++) lane[l] = lane[l] + lane[l + fold];
          (lane[0] + Sixteen<float>::zero()).store(found + half);
        }
        columns_in_order(found, sums + i * strip + n);
      }
    }
    e.finish(0, e.m, n0, n0 + columns, sums, strip);
  }
}

}  // namespace bi
