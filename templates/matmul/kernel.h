// out[b, m, n] = alpha * sum_k a[b, m, k] * b[b, k, n] + beta * bias[b, m, n]
//
// Numerics: acc = lane sum over k with 16 lanes (fma chains in ascending k, folded by halves, + 0); float accumulates the 16-bit types.
// One rounding to T, after alpha and bias. The bits follow from the operands' values alone: docs/numerics.md section 3.
#pragma once

#include "../common/vector.h"
#include "schedules.h"

namespace bi {

// Five ways to the same bits; sizes and strides choose one, for speed only.
enum class MatmulSchedule {
  lanes,        // vectors along K, B read where it lies                       (lanes.h)
  few_columns,  // the same with the factors' parts exchanged
  strips,       // few rows, B contiguous along N: sixteen lanes of a strip    (lanes.h)
  short_k,      // two lanes a pass, A in place                                (panels.h)
  passes        // everything else: packed panels, one or four lanes a pass    (panels.h)
};

template <class T>
inline MatmulSchedule choose_schedule(int64_t m, int64_t n, int64_t k, int64_t a_col, int64_t b_row, int64_t b_col) {
  // Few rows have to stay in L1 or L2 while B streams past them; wider tiles read them less often. The widest tile, of four rows by six
  // columns of floats, beats the panels with any number of rows, until K is so long that a block of rows leaves the cache: panels cut K.
  constexpr bool widest = BI_AVX512 && std::is_same<T, float>::value;
  const bool along_k = m <= 8 || (m <= 64 && m * k <= (BI_AVX512 ? 196608 : 65536)) || (widest && k >= 384 && (k <= 16384 || m <= 32));
  const bool short_k = k <= (a_col == 1 ? 256 : 192);
  if (along_k && (b_row == 1 || (m == 1 && b_col != 1))) return MatmulSchedule::lanes;
  if (n <= 12 && n < m && a_col == 1) return MatmulSchedule::few_columns;
  if (m <= 16 && b_col == 1 && (!short_k || (m <= 8 && n > 128))) return MatmulSchedule::strips;
  return short_k ? MatmulSchedule::short_k : MatmulSchedule::passes;
}

// Strides count elements and may take any value, 0 included; `b` is [k, n]; `bias` may be null; `out` has column stride 1 and overlaps
// nothing. `epilogue` (may be null) runs once for every region of the output, on the thread that has just written that region.
template <class T>
void matmul(int64_t batch, int64_t m, int64_t n, int64_t k, const T* a, int64_t a_batch, int64_t a_row, int64_t a_col, const T* b,
            int64_t b_batch, int64_t b_row, int64_t b_col, const T* bias, int64_t bias_batch, int64_t bias_row, int64_t bias_col,
            double alpha, double beta, T* out, int64_t out_batch, int64_t out_row, int64_t threads, MatmulEpilogue epilogue,
            void* epilogue_context) {
  using A = accumulator_t<T>;
  if (batch <= 0 || m <= 0 || n <= 0) return;
  MatmulBatch<T> call{batch, m, n, k, a, a_batch, a_row, a_col, b, b_batch, b_row, b_col, A(beta) == A(0) ? nullptr : bias, bias_batch,
                      bias_row, bias_col, A(alpha), A(beta), out, out_batch, out_row, epilogue, epilogue_context, m};
  call.merge();
  m = call.m, batch = call.count;
  if (k == 1) call.a_col = call.b_row = 1;
  if (n == 1) call.b_col = call.b_row == 1 ? k : 1;
  const MatmulSchedule schedule = choose_schedule<T>(m, n, k, call.a_col, call.b_row, call.b_col);
  // Work in element operations. Small work stays on this thread; threads split the outputs of one entry where the batch alone does not
  // feed them evenly.
  const double cost = double(m) * double(n) * double(k) / 16 + double(k) * double(m + n) / 4 + double(m) * double(n) / 8;
  const int64_t used = math::max<int64_t>(1, math::min<int64_t>(threads, int64_t(double(batch) * cost / 16384)));
  const int64_t parts = batch % used == 0 || batch >= 8 * used ? 1 : used;
  // Whichever cut copies less: every part packs its own rows of A and, for panels, columns of B.
  const bool lanes = schedule == MatmulSchedule::lanes || schedule == MatmulSchedule::few_columns;
  const bool split_rows = schedule == MatmulSchedule::few_columns ||
                          (schedule != MatmulSchedule::strips && (n < 16 * parts || m >= 8 * n || m > 384 * parts));
  // Whole tiles for every part; few columns are rows of the tile.
  const int64_t grain = lanes ? lanes_columns<A> : split_rows ? panel_rows<A> : 16;
  parallel_for(batch * parts, cost / double(parts), int(used), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      const MatmulEntry<T> e = call.entry(task / parts);
      const int64_t part = task % parts, length = split_rows ? m : n;
      const int64_t units = (length + grain - 1) / grain;
      const int64_t first = units * part / parts * grain, last = math::min(length, units * (part + 1) / parts * grain);
      if (first >= last) continue;
      const int64_t m0 = split_rows ? first : 0, m1 = split_rows ? last : m;
      const int64_t n0 = split_rows ? 0 : first, n1 = split_rows ? n : last;
      switch (schedule) {
        case MatmulSchedule::lanes: multiply_lanes(e, true, m0, m1, n0, n1); break;
        case MatmulSchedule::few_columns: multiply_lanes(e, false, 0, n, m0, m1); break;
        case MatmulSchedule::strips: multiply_strips(e, n0, n1); break;
        case MatmulSchedule::short_k: multiply_short_k(e, m0, m1, n0, n1); break;
        case MatmulSchedule::passes: multiply_passes(e, m0, m1, n0, n1); break;
      }
    }
  });
}

}  // namespace bi
