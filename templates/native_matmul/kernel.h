// The matmul family in bfloat16 by the CPU's own product of bfloat16 (option native_bfloat16).
//
// Numerics: docs/numerics.md section 3, "Native bfloat16": another order of additions than kernel.h of matmul has, and one for every size,
// stride and number of threads. What follows the sums, alpha, bias and one rounding, is that of every matmul.
#pragma once

#include "../grouped_matmul/groups.h"
#include "../matmul/entry.h"
#include "copies.h"
#include "strips.h"
#include "tile.h"

namespace bi {

// Rows of A that stay in the cache while B streams past them.
inline int64_t native_block_rows(int64_t k) { return math::max<int64_t>(128, 262144 / math::max<int64_t>(1, k)); }

// The schedule of vectors along K: the vectors [begin, end) of the long side stream past blocks of the vectors [short_begin, short_end) of the short one.
// Sides are rows and columns of the output, or columns and rows: a product does not care which factor comes first.
inline void multiply_native(const MatmulEntry<BFloat16>& e, bool rows_are_short, int64_t short_begin, int64_t short_end, int64_t begin,
                            int64_t end) {
  const BFloat16 *short_side = rows_are_short ? e.a : e.b, *long_side = rows_are_short ? e.b : e.a;
  const int64_t short_stride = rows_are_short ? e.a_row : e.b_col, short_k = rows_are_short ? e.a_col : e.b_row;
  const int64_t long_stride = rows_are_short ? e.b_col : e.a_row, long_k = rows_are_short ? e.b_row : e.a_col;
  // An odd number of cache lines from one copied vector to the next: a power of two would put all of them into one set of the cache.
  const int64_t padded = native_steps(e.k) * native_step, stride = (native_steps(e.k) | 1) * native_step;
  // Blocks of about one size, in whole tiles.
  const int64_t most = native_block_rows(e.k), blocks = (short_end - short_begin + most - 1) / most;
  const int64_t shared = (short_end - short_begin + blocks - 1) / blocks;
  const int64_t block = math::min(short_end - short_begin, (shared + native_rows - 1) / native_rows * native_rows);
  // Vectors that are transposed at a time, whole cache lines of what they are read from; else a group, where it lies.
  const bool copies = long_k != 1;
  const int64_t step = copies ? 8 * native_columns : native_columns;
  // Columns between two epilogues: whole steps, and few enough for the results to stay in L1 or L2.
  const int64_t region = math::max<int64_t>(math::max<int64_t>(2, 96 / step), 8192 / block / step) * step;
  MatmulBuffers<BFloat16>& buffers = MatmulBuffers<BFloat16>::of_this_thread();
  BFloat16* packed = buffers.rows.reserve(block * stride + 1);
  BFloat16* copied = copies ? buffers.columns.reserve(step * stride + 1) : nullptr;
  float* sums = MatmulBuffers<float>::of_this_thread().sums.reserve(block * (region + 1));
  for (int64_t s0 = short_begin; s0 < short_end; s0 += block) {
    const int64_t few = math::min(block, short_end - s0);
    copy_pairs(short_side + s0 * short_stride, short_stride, short_k, few, e.k, packed, stride);
    for (int64_t n0 = begin; n0 < end; n0 += region) {
      const int64_t n1 = math::min(end, n0 + region);
      for (int64_t c = n0; c < n1; c += step) {
        const int64_t c1 = math::min(n1, c + step);
        const BFloat16* vectors = long_side + c * long_stride;
        if (copies) copy_pairs(vectors, long_stride, long_k, c1 - c, e.k, copied, stride);
        for (int64_t n = c; n < c1; n += native_columns) {
          const int64_t columns = math::min(native_columns, c1 - n);
          const BFloat16* group = copies ? copied + (n - c) * stride : long_side + n * long_stride;
          const int64_t group_stride = copies ? stride : long_stride;
          multiply_native_group(few, packed, stride, group, group_stride, columns, copies ? padded : e.k, sums + n - n0, region,
                                NextVectors<BFloat16>{group + columns * group_stride, group_stride});
        }
      }
      if (rows_are_short) {
        e.finish(s0, s0 + few, n0, n1, sums, region);
      } else {
        float row[matmul_lanes];
        for (int64_t m = n0; m < n1; m++) {
          for (int64_t j = 0; j < few; j++) row[j] = sums[j * region + m - n0];
          e.finish_row(m, s0, row, few);
        }
        e.run_epilogue(n0, n1, s0, s0 + few);
      }
    }
  }
}

// Arguments as matmul's. T is bfloat16.
template <class T>
void native_matmul(int64_t batch, int64_t m, int64_t n, int64_t k, const T* a, int64_t a_batch, int64_t a_row, int64_t a_col, const T* b,
                   int64_t b_batch, int64_t b_row, int64_t b_col, const T* bias, int64_t bias_batch, int64_t bias_row, int64_t bias_col,
                   double alpha, double beta, T* out, int64_t out_batch, int64_t out_row, int64_t threads, MatmulEpilogue epilogue,
                   void* epilogue_context) {
  static_assert(std::is_same<T, BFloat16>::value, "the instruction takes bfloat16");
  if (batch <= 0 || m <= 0 || n <= 0) return;
  MatmulBatch<T> call{batch, m, n, k, a, a_batch, a_row, a_col, b, b_batch, b_row, b_col, float(beta) == 0.0f ? nullptr : bias, bias_batch,
                      bias_row, bias_col, float(alpha), float(beta), out, out_batch, out_row, epilogue, epilogue_context, m};
  call.merge();
  m = call.m, batch = call.count;
  if (k == 1) call.a_col = call.b_row = 1;
  const bool few_columns = n <= 12 && n < m;
  // Work in element operations, as matmul counts it; an operation here is two products.
  const double cost = double(m) * double(n) * double(k) / 32 + double(k) * double(m + n) / 8 + double(m) * double(n) / 8;
  const int64_t used = math::max<int64_t>(1, math::min<int64_t>(threads, int64_t(double(batch) * cost / 16384)));
  const int64_t parts = batch % used == 0 || batch >= 8 * used ? 1 : used;
  const bool split_rows = few_columns || n < 16 * parts || m >= 8 * n || m > 384 * parts;
  // Few rows would not pay back the transposition of a B that is contiguous along N.
  const bool strips = m <= 16 && call.b_col == 1 && call.b_row != 1 && !split_rows && n >= native_strip * parts;
  const int64_t grain = strips ? native_strip : split_rows && !few_columns ? native_rows : native_columns;
  parallel_for(batch * parts, cost / double(parts), int(used), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      const MatmulEntry<T> e = call.entry(task / parts);
      const int64_t part = task % parts, length = split_rows ? m : n;
      const int64_t units = (length + grain - 1) / grain;
      const int64_t first = units * part / parts * grain, last = math::min(length, units * (part + 1) / parts * grain);
      if (first >= last) continue;
      if (strips) {
        multiply_native_strips(e, first, last);
      } else if (few_columns) {
        multiply_native(e, false, 0, n, first, last);
      } else if (split_rows) {
        multiply_native(e, true, first, last, 0, n);
      } else {
        multiply_native(e, true, 0, m, first, last);
      }
    }
  });
}

// Arguments as grouped_matmul's.
template <class T>
void native_grouped_matmul(int64_t grouped, int64_t groups, int64_t m, int64_t n, int64_t k, const int64_t* ends, const T* a,
                           int64_t a_group, int64_t a_row, int64_t a_col, const T* b, int64_t b_group, int64_t b_row, int64_t b_col, T* out,
                           int64_t out_group, int64_t out_row, int64_t threads) {
  multiply_groups(native_matmul<T>, grouped, groups, m, n, k, ends, a, a_group, a_row, a_col, b, b_group, b_row, b_col, out, out_group,
                  out_row, threads);
}

}  // namespace bi
