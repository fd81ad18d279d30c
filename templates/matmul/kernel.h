// out[b, m, n] = alpha * sum_k a[b, m, k] * b[b, k, n] + beta * bias[b, m, n]
//
// Numerics: acc = lane sum over k with 16 lanes (fma chains in ascending k, folded by halves, + 0); float accumulates the 16-bit types.
// One rounding to T, after alpha and bias. The bits follow from the operands' values alone: docs/numerics.md section 3.
//
// Three schedules compute these bits; sizes and strides choose one, for speed only:
//   lanes   few rows or few columns: vectors along K                 (lanes.h)
//   strips  few rows, B contiguous along N: sixteen lanes of a strip (lanes.h)
//   passes  everything else: packed panels, one lane at a time       (panels.h)
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>

#include "../common/vector.h"
#include "lanes.h"
#include "panels.h"

namespace bi {

// Scratch memory of one thread; grows and is kept, since the next call needs as much.
template <class A>
class MatmulScratch {
 public:
  A* reserve(int64_t elements) {
    if (elements > size_) {
      std::free(data_);
      const size_t bytes = (size_t(elements) * sizeof(A) + 4095) / 4096 * 4096;
      data_ = static_cast<A*>(std::aligned_alloc(4096, bytes));
      size_ = data_ ? elements : 0;
      if (!data_) throw std::bad_alloc();
    }
    return data_;
  }
  ~MatmulScratch() { std::free(data_); }

 private:
  A* data_ = nullptr;
  int64_t size_ = 0;
};

template <class A>
struct MatmulBuffers {
  MatmulScratch<A> rows, columns, sums;
  static MatmulBuffers& of_this_thread() {
    static thread_local MatmulBuffers buffers;
    return buffers;
  }
};

using MatmulEpilogue = void (*)(void* context, int64_t batch, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

// One batch entry with everything that its outputs need after the sums.
template <class T>
struct MatmulEntry {
  using A = accumulator_t<T>;
  int64_t batch, m, n, k;
  const T* a;
  int64_t a_row, a_col;
  const T* b;
  int64_t b_row, b_col;
  const T* bias;
  int64_t bias_row, bias_col;
  A alpha, beta;
  T* out;
  int64_t out_row;
  MatmulEpilogue epilogue;
  void* epilogue_context;
  int64_t merged_rows;  // rows of one original batch entry where several were merged along m, else m

  bool stores_sums_in_out() const { return std::is_same<T, A>::value; }

  // Scales, adds the bias and rounds `count` sums of row m from column n on.
  void finish_row(int64_t row, int64_t column, const A* sums, int64_t count) const {
    T* target = out + row * out_row + column;
    if (!bias && alpha == A(1) && static_cast<const void*>(sums) == target) return;
    const T* added = bias ? bias + row * bias_row + column * bias_col : nullptr;
    const Vec<A> scale = Vec<A>::fill(alpha), bias_scale = Vec<A>::fill(beta);
    for (int64_t j = 0; j < count; j += 8) {
      const int64_t left = count - j;
      Vec<A> value = scale * (left >= 8 ? Vec<A>::load(sums + j) : Vec<A>::load(sums + j, left));
      if (added && bias_col == 1) {
        value = value + bias_scale * (left >= 8 ? Vec<A>::load(added + j) : Vec<A>::load(added + j, left));
      } else if (added) {
        A gathered[8] = {};
        for (int64_t i = 0; i < 8 && i < left; i++) gathered[i] = widen(added[(j + i) * bias_col]);
        value = value + bias_scale * Vec<A>::load(gathered);
      }
      left >= 8 ? value.store(target + j) : value.store(target + j, left);
    }
  }

  void finish(int64_t m0, int64_t m1, int64_t n0, int64_t n1, const A* sums, int64_t sums_row) const {
    for (int64_t row = m0; row < m1; row++) finish_row(row, n0, sums + (row - m0) * sums_row, n1 - n0);
    run_epilogue(m0, m1, n0, n1);
  }

  void run_epilogue(int64_t m0, int64_t m1, int64_t n0, int64_t n1) const {
    if (!epilogue) return;
    while (m0 < m1) {
      const int64_t entry = m0 / merged_rows, first = m0 - entry * merged_rows;
      const int64_t last = std::min(merged_rows, first + m1 - m0);
      epilogue(epilogue_context, batch + entry, first, last, n0, n1);
      m0 += last - first;
    }
  }
};

// Copies `count` vectors of length k into rows of the accumulation type, contiguous along K, padded with zeros.
template <class T, class A>
inline void copy_vectors(const T* source, int64_t vector_stride, int64_t k_stride, int64_t count, int64_t k, A* target,
                         int64_t target_row) {
  for (int64_t j = 0; j < count; j++) {
    const T* from = source + j * vector_stride;
    A* to = target + j * target_row;
    int64_t p = 0;
    if (k_stride == 1)
      for (; p + 8 <= k; p += 8) Vec<A>::load(from + p).store(to + p);
    for (; p < k; p++) to[p] = widen(from[p * k_stride]);
    for (; p < target_row; p++) to[p] = 0;
  }
}

// Schedule "lanes" for the outputs [begin, end) along the long side; `few` vectors stand on the short side. Sides are rows and columns
// of the output, or columns and rows: a product does not care which factor comes first.
template <class T>
inline void multiply_lanes(const MatmulEntry<T>& e, bool few_are_rows, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  const T *short_side = few_are_rows ? e.a : e.b, *long_side = few_are_rows ? e.b : e.a;
  const int64_t few = few_are_rows ? e.m : e.n;
  const int64_t short_stride = few_are_rows ? e.a_row : e.b_col, short_k = few_are_rows ? e.a_col : e.b_row;
  const int64_t long_stride = few_are_rows ? e.b_col : e.a_row, long_k = few_are_rows ? e.b_row : e.a_col;
  const int64_t padded = lane_steps(e.k) * matmul_lanes;
  constexpr int64_t group = 3;
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  A* packed = buffers.rows.reserve(few * padded + 1);
  copy_vectors(short_side, short_stride, short_k, few, e.k, packed, padded);
  // Converting (or gathering) a group of long vectors pays once several short ones use it.
  const bool copy_group = long_k != 1 || (!std::is_same<T, A>::value && few > 4);
  A* copied = copy_group ? buffers.columns.reserve(group * padded + 1) : nullptr;
  const int64_t region = std::max<int64_t>(64, 8192 / few);
  const bool in_place = few_are_rows && e.stores_sums_in_out();
  A* scratch = in_place ? nullptr : buffers.sums.reserve(few * (region + 1));
  for (int64_t n0 = begin; n0 < end; n0 += region) {
    const int64_t n1 = std::min(end, n0 + region);
    A* sums = in_place ? reinterpret_cast<A*>(e.out) + n0 : scratch;
    const int64_t sums_row = in_place ? e.out_row : region;
    for (int64_t n = n0; n < n1; n += group) {
      const int64_t columns = std::min(group, n1 - n);
      const T* vectors = long_side + n * long_stride;
      if (copy_group) {
        copy_vectors(vectors, long_stride, long_k, columns, e.k, copied, padded);
        lanes_columns(few, packed, padded, copied, padded, columns, padded, sums + n - n0, sums_row);
      } else {
        lanes_columns(few, packed, padded, vectors, long_stride, columns, e.k, sums + n - n0, sums_row);
      }
    }
    if (few_are_rows) {
      e.finish(0, few, n0, n1, sums, sums_row);
    } else {
      A row[matmul_lanes * 8];
      for (int64_t m = n0; m < n1; m++) {
        for (int64_t j = 0; j < few; j++) row[j] = sums[j * sums_row + m - n0];
        e.finish_row(m, 0, row, few);
      }
      e.run_epilogue(n0, n1, 0, few);
    }
  }
}

#ifndef BI_STRIP
#define BI_STRIP 2048
#endif
#ifndef BI_STRIP_ROWS
#define BI_STRIP_ROWS 16
#endif
// Schedule "strips" for the columns [begin, end).
template <class T>
inline void multiply_strips(const MatmulEntry<T>& e, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  constexpr int64_t block = 8 * matmul_lanes;  // a lane's accumulators stay in registers for this many rows of B
  const int64_t padded = lane_steps(e.k) * matmul_lanes, strip = std::max<int64_t>(64, BI_STRIP / e.m / 16 * 16);
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  A* packed = buffers.rows.reserve(e.m * padded + 1);
  copy_vectors(e.a, e.a_row, e.a_col, e.m, e.k, packed, padded);
  A* lanes = buffers.columns.reserve(e.m * matmul_lanes * strip);
  A* sums = buffers.sums.reserve(e.m * strip);
  const int64_t lanes_lane = strip, lanes_row = matmul_lanes * strip;
  for (int64_t n0 = begin; n0 < end; n0 += strip) {
    const int64_t columns = std::min(strip, end - n0);
    std::fill(lanes, lanes + e.m * lanes_row, A(0));
    for (int64_t p = 0; p < e.k; p += block) {
      const T* b = e.b + p * e.b_row + n0;
      const int64_t depth = std::min(block, e.k - p);
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

#ifndef BI_LONGK
#define BI_LONGK 6144
#endif
#ifndef BI_DEPTH
#define BI_DEPTH 1024
#endif
#ifndef BI_ROWS
#define BI_ROWS 128
#endif
#ifndef BI_PF
#define BI_PF 1
#endif
// Schedule "passes" for the rows [m0, m1) x columns [n0, n1).
template <class T>
inline void multiply_passes(const MatmulEntry<T>& e, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  using A = accumulator_t<T>;
  constexpr int64_t width = panel_columns<A>, panels_in_group = 4;
  // Block sizes keep a block of rows in L2 beside the panels of B.
  const bool long_k = e.k > BI_LONGK;
  const int64_t depth = long_k ? BI_DEPTH : std::max<int64_t>(e.k, 1), depth_blocks = std::max<int64_t>(1, (e.k + depth - 1) / depth);
  const int64_t rows = m1 - m0, most_rows = long_k ? BI_ROWS : std::min<int64_t>(384, 524288 / depth);
  const int64_t blocks = (rows + most_rows - 1) / most_rows, block_rows = (rows + blocks - 1) / blocks;
  // Columns that lie side by side are packed together: one panel alone takes a single cache line from each row of B.
  const int64_t packed_panels = e.b_col == 1 && e.k > 0 ? (depth <= 1024 ? panels_in_group : 2) : 1;
  const int64_t group = (long_k ? panels_in_group : packed_panels) * width, packed_columns = packed_panels * width;
  // Columns between two epilogues: the results of a region stay in L2.
  const int64_t region = std::max<int64_t>(64, 32768 / block_rows / 64 * 64);
  MatmulBuffers<A>& buffers = MatmulBuffers<A>::of_this_thread();
  const int64_t panel_elements = matmul_lanes * lane_stride(width, lane_steps(depth));
  const int64_t partial_elements = tiles_together * fold_levels * partial_tile;
  const int64_t carried_elements = depth_blocks > 1 ? RowPanels(block_rows, e.k).count * matmul_lanes * partial_tile : 0;
  A* partial = buffers.columns.reserve(partial_elements + packed_panels * panel_elements + panels_in_group * carried_elements);
  A *b_panels = partial + partial_elements, *carried = b_panels + packed_panels * panel_elements;
  A* scratch = e.stores_sums_in_out() ? nullptr : buffers.sums.reserve(block_rows * region);
  for (int64_t m = m0; m < m1; m += block_rows) {
    const int64_t block_end = std::min(m1, m + block_rows);
    const RowPanels panels(block_end - m, e.k);
    A* packed = buffers.rows.reserve(panels.elements());
    pack_rows(panels, e.a + m * e.a_row, e.a_row, e.a_col, e.k, packed);
    for (int64_t c = n0; c < n1; c += region) {
      const int64_t region_end = std::min(n1, c + region);
      A* sums = e.stores_sums_in_out() ? reinterpret_cast<A*>(e.out) + m * e.out_row + c : scratch;
      const int64_t sums_row = e.stores_sums_in_out() ? e.out_row : region;
      for (int64_t g = c; g < region_end; g += group) {
        const int64_t group_end = std::min(region_end, g + group);
        for (int64_t d = 0; d < depth_blocks; d++) {
          const int64_t k0 = d * depth, k1 = std::min(e.k, k0 + depth);
          const DepthBlock block{k0 / matmul_lanes, lane_steps(k1 - k0), d == 0, d == depth_blocks - 1};
          for (int64_t n = g; n < group_end; n += packed_columns) {
            const int64_t packed_end = std::min(group_end, n + packed_columns);
            pack_columns(e.b + k0 * e.b_row + n * e.b_col, e.b_row, e.b_col, packed_end - n, k1 - k0, b_panels);
            // What is packed next: the rest of the group, the group's next block of K, or the next group.
            int64_t next_n = packed_end, next_k = k0;
            if (next_n == group_end && !block.last) next_n = g, next_k = k1;
            else if (next_n == group_end) next_k = 0;
            Prefetch next;
            if (BI_PF && next_n < n1)
              next = Prefetch(e.b + next_k * e.b_row + next_n * e.b_col, e.b_row, e.b_col, std::min(packed_columns, n1 - next_n),
                              std::min(depth, e.k - next_k));
            for (int64_t column = n; column < packed_end; column += width)
              multiply_panel(panels, packed, b_panels + (column - n) / width * matmul_lanes * lane_stride(width, block.steps), block,
                             carried + (column - g) / width * carried_elements, partial, sums + column - c, sums_row,
                             std::min(width, packed_end - column), next, (packed_end - column + width - 1) / width);
          }
        }
      }
      e.finish(m, block_end, c, region_end, sums, sums_row);
    }
  }
}

#ifndef BI_SHORTK
#define BI_SHORTK 128
#endif
inline constexpr int64_t most_short_k = BI_SHORTK;

// Schedule "short k" for the rows [m0, m1) x columns [n0, n1): passes for k <= most_short_k. Operands of the accumulation type are read
// where they lie; only columns of B that are not contiguous along N, or too few for a vector, are packed.
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
    const int64_t region_end = std::min(n1, c + region_columns);
    const bool direct = same_type && e.b_col == 1 && (m1 - m0 <= 8 || e.k * (region_end - c) <= 4096);
    for (int64_t n = c; n < region_end; n += width)
      if (!direct || n + width > region_end)
        pack_columns(e.b + n * e.b_col, e.b_row, e.b_col, std::min(width, region_end - n), e.k, panels + (n - c) / width * panel_elements);
    for (int64_t m = m0; m < m1; m += region_rows) {
      const int64_t block_end = std::min(m1, m + region_rows);
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
        const int64_t rows = std::min<int64_t>(short_k_rows, block_end - m - row);
        for (int64_t n = c; n < region_end; n += width) {
          if (direct && n + width <= region_end)
            multiply_short_k_tile(rows, a + row * a_row, a_row, a_col, reinterpret_cast<const A*>(e.b) + n, e.b_row,
                                  matmul_lanes * e.b_row, e.k, sums + row * sums_row + n - c, sums_row, width);
          else
            multiply_short_k_tile(rows, a + row * a_row, a_row, a_col, panels + (n - c) / width * panel_elements, panel_lane, width,
                                  e.k, sums + row * sums_row + n - c, sums_row, std::min(width, region_end - n));
        }
      }
      e.finish(m, block_end, c, region_end, sums, sums_row);
    }
  }
}

#ifndef BI_MATMUL_FEW
// Rows that suit vectors along K: they have to stay in L1 or L2 while B streams past them.
inline bool is_few(int64_t m, int64_t k) { return m <= 16 || (m <= 32 && m * k <= 49152); }
#else
inline bool is_few(int64_t m, int64_t) { return m <= BI_MATMUL_FEW; }
#endif

// Strides count elements and may take any value, 0 included; `b` is [k, n]; `bias` may be null; `out` has column stride 1 and overlaps
// nothing. `epilogue` (may be null) runs once for every region of the output, on the thread that has just written that region.
template <class T>
void matmul(int64_t batch, int64_t m, int64_t n, int64_t k, const T* a, int64_t a_batch, int64_t a_row, int64_t a_col, const T* b,
            int64_t b_batch, int64_t b_row, int64_t b_col, const T* bias, int64_t bias_batch, int64_t bias_row, int64_t bias_col,
            double alpha, double beta, T* out, int64_t out_batch, int64_t out_row, int64_t threads, MatmulEpilogue epilogue,
            void* epilogue_context) {
  using A = accumulator_t<T>;
  if (batch <= 0 || m <= 0 || n <= 0) return;
  const int64_t merged_rows = m;
  const bool has_bias = bias && A(beta) != A(0);
  // A shared B makes one tall product of the batch where the strides allow it.
  if (batch > 1 && b_batch == 0 && out_batch == m * out_row && (a_batch == m * a_row || m == 1) &&
      (!has_bias || bias_batch == m * bias_row || m == 1)) {
    if (m == 1) a_row = a_batch, out_row = out_batch, bias_row = bias_batch;
    m *= batch;
    batch = 1;
  }
  if (k == 1) a_col = b_row = 1;
  if (n == 1) b_col = b_row == 1 ? k : 1;
  const auto entry = [&](int64_t index) {
    return MatmulEntry<T>{index, m, n, k, a + index * a_batch, a_row, a_col, b + index * b_batch, b_row, b_col,
                          has_bias ? bias + index * bias_batch : nullptr, bias_row, bias_col, A(alpha), A(beta),
                          out + index * out_batch, out_row, epilogue, epilogue_context, merged_rows};
  };
  const bool short_k = k <= most_short_k && !(b_row == 1 && a_col == 1 && is_few(m, k));
  const bool strips = !short_k && m <= BI_STRIP_ROWS && b_col == 1 && b_row != 1;
  const bool few_rows = !short_k && !strips && (b_row == 1 || m == 1) && is_few(m, k);
  const bool few_columns = !short_k && !strips && !few_rows && n <= 12 && m > n && a_col == 1;
  // Threads split the outputs of one entry where the batch alone does not feed them evenly.
  int64_t parts = batch % threads == 0 || batch >= 8 * threads ? 1 : threads;
  const int64_t along_m = m, along_n = n;
  const double fused = double(m) * double(n) * double(k);
  const double cost = (fused / 16 + double(k) * double(m + n) / 4 + double(m) * double(n) / 8) / double(parts);
  // Whichever cut copies less into panels; every part copies its own rows of A and columns of B.
  const bool split_rows = few_columns || (!strips && !few_rows && (n < 16 * parts || m >= 8 * n || m > 384 * parts));
  parallel_for(batch * parts, cost, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      const MatmulEntry<T> e = entry(task / parts);
      const int64_t part = task % parts, length = split_rows ? along_m : along_n, grain = split_rows ? panel_rows : 16;
      const int64_t units = (length + grain - 1) / grain;
      const int64_t first = units * part / parts * grain, last = std::min(length, units * (part + 1) / parts * grain);
      if (first >= last) continue;
      if (short_k)
        split_rows ? multiply_short_k(e, first, last, 0, n) : multiply_short_k(e, 0, m, first, last);
      else if (strips)
        multiply_strips(e, first, last);
      else if (few_rows || few_columns)
        multiply_lanes(e, few_rows, first, last);
      else if (split_rows)
        multiply_passes(e, first, last, 0, n);
      else
        multiply_passes(e, 0, m, first, last);
    }
  });
}

}  // namespace bi
