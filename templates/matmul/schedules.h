// The schedules of matmul. Each computes the same bits for the outputs it is given (docs/numerics.md section 3); kernel.h chooses among
// them. A schedule works region by region: sums, then MatmulEntry::finish for that region while it is in the cache.
#pragma once

#include "entry.h"
#include "lanes.h"
#include "panels.h"

namespace bi {

// Rows of A that stay in the cache while B streams past them. Below 32 the wait for B shows, even where they only fit L3.
inline int64_t lanes_block_rows(int64_t k) { return k > 3072 ? 96 : math::max<int64_t>(32, 65536 / math::max<int64_t>(1, k)); }

// Schedule "lanes": the vectors [begin, end) of the long side stream past blocks of the vectors [short_begin, short_end) of the short one.
// Sides are rows and columns of the output, or columns and rows: a product does not care which factor comes first.
template <class T>
inline void multiply_lanes(const MatmulEntry<T>& e, bool rows_are_short, int64_t short_begin, int64_t short_end, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  const T *short_side = rows_are_short ? e.a : e.b, *long_side = rows_are_short ? e.b : e.a;
  const int64_t short_stride = rows_are_short ? e.a_row : e.b_col, short_k = rows_are_short ? e.a_col : e.b_row;
  const int64_t long_stride = rows_are_short ? e.b_col : e.a_row, long_k = rows_are_short ? e.b_row : e.a_col;
  // An odd number of cache lines from one copied vector to the next: a power of two would put all of them into one set of the cache.
  const int64_t padded = lane_steps(e.k) * matmul_lanes, stride = (lane_steps(e.k) | 1) * matmul_lanes;
  constexpr int64_t group = lanes_columns<A>;
  const int64_t most = lanes_block_rows(e.k), blocks = (short_end - short_begin + most - 1) / most;
  const int64_t block = (short_end - short_begin + blocks - 1) / blocks;
  // Columns between two epilogues: whole groups, and few enough for the results to stay in L1 or L2.
  const int64_t region = math::max<int64_t>(16, 8192 / block / group) * group;
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  A* packed = buffers.rows.reserve(block * stride + 1);
  // Converting (or gathering) a group of long vectors pays once several short ones use it.
  const bool copy_group = long_k != 1 || (!std::is_same<T, A>::value && block > 4);
  A* copied = copy_group ? buffers.columns.reserve(group * stride + 1) : nullptr;
  const bool in_place = rows_are_short && e.stores_sums_in_out();
  A* scratch = in_place ? nullptr : buffers.sums.reserve(block * (region + 1));
  for (int64_t s0 = short_begin; s0 < short_end; s0 += block) {
    const int64_t few = math::min(block, short_end - s0);
    copy_vectors(short_side + s0 * short_stride, short_stride, short_k, few, e.k, packed, stride);
    for (int64_t n0 = begin; n0 < end; n0 += region) {
      const int64_t n1 = math::min(end, n0 + region);
      A* sums = in_place ? reinterpret_cast<A*>(e.out) + s0 * e.out_row + n0 : scratch;
      const int64_t sums_row = in_place ? e.out_row : region;
      for (int64_t n = n0; n < n1; n += group) {
        const int64_t columns = math::min(group, n1 - n);
        const T* vectors = long_side + n * long_stride;
        const NextVectors<T> next{vectors + columns * long_stride, long_stride};
        if (copy_group) {
          copy_vectors(vectors, long_stride, long_k, columns, e.k, copied, stride);
          multiply_lanes_group(few, packed, stride, copied, stride, columns, padded, sums + n - n0, sums_row, next);
        } else {
          multiply_lanes_group(few, packed, stride, vectors, long_stride, columns, e.k, sums + n - n0, sums_row, next);
        }
      }
      if (rows_are_short) {
        e.finish(s0, s0 + few, n0, n1, sums, sums_row);
      } else {
        A row[matmul_lanes * 8];
        for (int64_t m = n0; m < n1; m++) {
          for (int64_t j = 0; j < few; j++) row[j] = sums[j * sums_row + m - n0];
          e.finish_row(m, s0, row, few);
        }
        e.run_epilogue(n0, n1, s0, s0 + few);
      }
    }
  }
}

// Schedule "strips" for the columns [begin, end).
template <class T>
inline void multiply_strips(const MatmulEntry<T>& e, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  constexpr int64_t block = 8 * matmul_lanes;  // a lane's accumulators stay in registers for this many rows of B
  const int64_t padded = lane_steps(e.k) * matmul_lanes, strip = math::max<int64_t>(64, 2048 / e.m / 16 * 16);
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  A* packed = buffers.rows.reserve(e.m * padded + 1);
  copy_vectors(e.a, e.a_row, e.a_col, e.m, e.k, packed, padded);
  A* lanes = buffers.columns.reserve(e.m * matmul_lanes * strip);
  A* sums = buffers.sums.reserve(e.m * strip);
  const int64_t lanes_lane = strip, lanes_row = matmul_lanes * strip;
  for (int64_t n0 = begin; n0 < end; n0 += strip) {
    const int64_t columns = math::min(strip, end - n0);
    for (int64_t i = 0; i < e.m * lanes_row; i++) lanes[i] = A(0);
    for (int64_t p = 0; p < e.k; p += block) {
      const T* b = e.b + p * e.b_row + n0;
      const int64_t depth = math::min(block, e.k - p);
      int64_t i = 0;
      for (; i + 4 <= e.m; i += 4)
        strip_pass<4>(packed + i * padded + p, padded, b, e.b_row, depth, columns, lanes + i * lanes_row, lanes_lane, lanes_row);
      for (; i + 2 <= e.m; i += 2)
        strip_pass<2>(packed + i * padded + p, padded, b, e.b_row, depth, columns, lanes + i * lanes_row, lanes_lane, lanes_row);
      for (; i < e.m; i++)
        strip_pass<1>(packed + i * padded + p, padded, b, e.b_row, depth, columns, lanes + i * lanes_row, lanes_lane, lanes_row);
    }
    for (int64_t i = 0; i < e.m; i++)
      for (int64_t n = 0; n < columns; n += 8) {
        Vec<A> lane[matmul_lanes];
        for (int l = 0; l < matmul_lanes; l++) lane[l] = Vec<A>::load(lanes + i * lanes_row + l * lanes_lane + n);
        for (int half = matmul_lanes / 2; half >= 1; half /= 2)
          for (int l = 0; l < half; l++) lane[l] = lane[l] + lane[l + half];
        (lane[0] + Vec<A>::zero()).store(sums + i * strip + n);
      }
    e.finish(0, e.m, n0, n0 + columns, sums, strip);
  }
}

// Schedule "passes" for the rows [m0, m1) x columns [n0, n1).
template <class T>
inline void multiply_passes(const MatmulEntry<T>& e, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  using A = accumulator_t<T>;
  constexpr int64_t width = panel_columns<A>;
  // A long K is cut into blocks and carries its lanes from block to block. Several panels then share a block of the rows, which stays in
  // L2 meanwhile; a shorter K needs no more than few enough rows.
  const bool long_k = e.k > 6144;
  const int64_t depth = long_k ? 1024 : math::max<int64_t>(e.k, 1), depth_blocks = math::max<int64_t>(1, (e.k + depth - 1) / depth);
  const int64_t most_rows = long_k ? 128 : math::min<int64_t>(384, 524288 / depth), group = (long_k ? 4 : 1) * width;
  const int64_t row_blocks = (m1 - m0 + most_rows - 1) / most_rows, block_rows = (m1 - m0 + row_blocks - 1) / row_blocks;
  // Columns between two epilogues: the results of a region stay in L2.
  const int64_t region = math::max<int64_t>(64, 32768 / block_rows / 64 * 64);
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  const int64_t panel_elements = matmul_lanes * lane_stride(width, lane_steps(depth));
  const int64_t partial_elements = tiles_together * fold_levels * partial_tile<A>;
  const int64_t carried_elements = long_k ? RowPanels<A>(block_rows, e.k).count * matmul_lanes * partial_tile<A> : 0;
  A* partial = buffers.columns.reserve(partial_elements + panel_elements + group / width * carried_elements);
  A *b_panel = partial + partial_elements, *carried = b_panel + panel_elements;
  A* scratch = e.stores_sums_in_out() ? nullptr : buffers.sums.reserve(block_rows * region);
  for (int64_t m = m0; m < m1; m += block_rows) {
    const int64_t block_end = math::min(m1, m + block_rows);
    const RowPanels<A> rows(block_end - m, e.k);
    A* packed = buffers.rows.reserve(rows.elements());
    pack_rows(rows, e.a + m * e.a_row, e.a_row, e.a_col, e.k, packed);
    for (int64_t c = n0; c < n1; c += region) {
      const int64_t region_end = math::min(n1, c + region);
      A* sums = e.stores_sums_in_out() ? reinterpret_cast<A*>(e.out) + m * e.out_row + c : scratch;
      const int64_t sums_row = e.stores_sums_in_out() ? e.out_row : region;
      for (int64_t g = c; g < region_end; g += group) {
        const int64_t group_end = math::min(region_end, g + group);
        for (int64_t d = 0; d < depth_blocks; d++) {
          const int64_t k0 = d * depth, k1 = math::min(e.k, k0 + depth);
          const DepthBlock block{k0 / matmul_lanes, lane_steps(k1 - k0), d == 0, d == depth_blocks - 1};
          for (int64_t n = g; n < group_end; n += width) {
            const int64_t columns = math::min(width, group_end - n);
            pack_columns(e.b + k0 * e.b_row + n * e.b_col, e.b_row, e.b_col, columns, k1 - k0, b_panel);
            // What is packed next: the group's next panel, its next block of K, or the next group.
            int64_t next_n = n + columns, next_k = k0;
            if (next_n == group_end) {
              next_k = block.last ? 0 : k1;
              if (!block.last) next_n = g;
            }
            Prefetch next;
            if (next_n < n1)
              next = Prefetch(e.b + next_k * e.b_row + next_n * e.b_col, e.b_row, e.b_col, math::min(width, n1 - next_n),
                              math::min(depth, e.k - next_k));
            multiply_panel(rows, packed, b_panel, block, carried + (n - g) / width * carried_elements, partial, sums + n - c, sums_row,
                           columns, next);
          }
        }
      }
      e.finish(m, block_end, c, region_end, sums, sums_row);
    }
  }
}

// Schedule "short k" for the rows [m0, m1) x columns [n0, n1): rows of A and, where it is small,
// B are read where they lie when they have the accumulation type already.
template <class T>
inline void multiply_short_k(const MatmulEntry<T>& e, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  using A = accumulator_t<T>;
  constexpr bool same_type = std::is_same<T, A>::value;
  constexpr int64_t width = panel_columns<A>, region_columns = 256, region_rows = 48;
  const int64_t steps = lane_steps(e.k), padded = steps * matmul_lanes;
  const int64_t panel_lane = lane_stride(width, steps), panel_elements = matmul_lanes * panel_lane;
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  A* panels = buffers.columns.reserve(region_columns / width * panel_elements);
  A* scratch = same_type ? nullptr : buffers.sums.reserve(region_rows * region_columns);
  A* copied = buffers.rows.reserve(region_rows * padded + 1);
  for (int64_t c = n0; c < n1; c += region_columns) {
    const int64_t region_end = math::min(n1, c + region_columns);
    const bool direct = same_type && e.b_col == 1 && (m1 - m0 <= 8 || e.k * (region_end - c) <= 4096);
    for (int64_t n = c; n < region_end; n += width)
      if (!direct || n + width > region_end)
        pack_columns(e.b + n * e.b_col, e.b_row, e.b_col, math::min(width, region_end - n), e.k,
                     panels + (n - c) / width * panel_elements);
    for (int64_t m = m0; m < m1; m += region_rows) {
      const int64_t block_end = math::min(m1, m + region_rows);
      const A* a = reinterpret_cast<const A*>(e.a + m * e.a_row);
      int64_t a_row = e.a_row, a_col = e.a_col;
      if (!same_type && (a_row != 1 || a_col == 1)) {
        copy_vectors(e.a + m * e.a_row, e.a_row, e.a_col, block_end - m, e.k, copied, padded);
        a = copied, a_row = padded, a_col = 1;
      } else if (a_col != 1) {
        // Transposed: as far apart as the values of a row are, they would fall into few sets of the cache.
        copy_vectors(e.a + m * e.a_row, e.a_col, e.a_row, e.k, block_end - m, copied, region_rows);
        a = copied, a_row = 1, a_col = region_rows;
      }
      A* sums = same_type ? reinterpret_cast<A*>(e.out) + m * e.out_row + c : scratch;
      const int64_t sums_row = same_type ? e.out_row : region_columns;
      for (int64_t row = 0; row < block_end - m; row += short_k_rows) {
        const int64_t rows = math::min<int64_t>(short_k_rows, block_end - m - row);
        for (int64_t n = c; n < region_end; n += width) {
          if (direct && n + width <= region_end)
            multiply_short_k_tile(rows, a + row * a_row, a_row, a_col, reinterpret_cast<const A*>(e.b) + n, e.b_row,
                                  matmul_lanes * e.b_row, e.k, sums + row * sums_row + n - c, sums_row, width);
          else
            multiply_short_k_tile(rows, a + row * a_row, a_row, a_col, panels + (n - c) / width * panel_elements, panel_lane, width,
                                  e.k, sums + row * sums_row + n - c, sums_row, math::min(width, region_end - n));
        }
      }
      e.finish(m, block_end, c, region_end, sums, sums_row);
    }
  }
}

}  // namespace bi
