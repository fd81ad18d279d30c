// Many rows against many columns: one lane, or four of them, at a time over tiles of rows x columns.
//
// Numerics: a pass runs the fma chains of its lanes (lane l: k = l, l + 16, ...) for a whole tile of outputs; the sixteen partial tiles
// fold by halves, + 0 at the end: the bits of lanes.h (docs/numerics.md sections 2 and 3). Operands are copied into panels in the order
// in which the passes read them, [lane][step][row or column], step = k / 16, in the accumulation type, padded with zeros along K.
#pragma once

#include <type_traits>

#include "../common/vector.h"
#include "lanes.h"

namespace bi {

// Lanes of a pass, and rows of a tile. Passes over a K of 768 are short: each ends in a wait for its last products and in partial tiles
// that go to memory and back. The 32 registers of AVX512 hold four lanes of a tile, which then fold without that; 16 registers hold one.
template <class A>
inline constexpr int lanes_together = sizeof(A) == 4 && BI_AVX512 ? 4 : 1;
template <class A>
inline constexpr int panel_rows = lanes_together<A> == 4 ? 7 : 6;
// Doubles take two registers a vector: 6 x 8 of them need as many accumulators as 6 x 16 floats.
template <class A>
inline constexpr int panel_columns = sizeof(A) == 4 ? 16 : 8;
// One row of a tile.
template <class A>
using PanelRow = std::conditional_t<panel_columns<A> == 16, Sixteen<A>, Vec<A>>;

inline int64_t lane_steps(int64_t k) { return (k + matmul_lanes - 1) / matmul_lanes; }
// Elements from one lane of a panel to the next: an odd number of cache lines, since a power of two would put the sixteen lanes into one
// set of the cache, with room for the overhang of the 8-wide stores in pack_vectors.
inline int64_t lane_stride(int64_t width, int64_t steps) { return (((width * steps + 15) / 16 + 1) | 1) * 16; }

// Copies `count` <= 8 vectors of length k into a panel: element p of vector j goes to panel[(p mod lanes) * lane + (p / lanes) * width + j].
// Stores are 8 wide: what hangs over `width` is overwritten by the next step or lands in the lane's slack.
template <class T, class A>
inline void pack_vectors(const T* source, int64_t vector_stride, int64_t k_stride, int64_t count, int64_t k, A* panel, int64_t width,
                         int64_t lane, int64_t lanes = matmul_lanes) {
  const int64_t padded = lane_steps(k) * matmul_lanes;
  if (k_stride == 1) {
    for (int64_t p = 0; p < padded; p += 8) {
      const int64_t left = k - p;
      Vec<A> block[8];
      if (left >= 8 && count == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) block[j] = Vec<A>::load(source + j * vector_stride + p);
      } else {
        for (int j = 0; j < 8; j++)
          block[j] = j >= count || left <= 0 ? Vec<A>::zero()
                     : left >= 8             ? Vec<A>::load(source + j * vector_stride + p)
                                             : Vec<A>::load(source + j * vector_stride + p, left);
      }
      transpose_eight(block);
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) block[j].store(panel + ((p + j) % lanes) * lane + ((p + j) / lanes) * width);
    }
    return;
  }
  for (int64_t p = 0; p < padded; p++) {
    A* target = panel + (p % lanes) * lane + (p / lanes) * width;
    const T* from = source + p * k_stride;
    if (p >= k) {
      Vec<A>::zero().store(target);
    } else if (vector_stride == 1) {
      (count == 8 ? Vec<A>::load(from) : Vec<A>::load(from, count)).store(target);
    } else {
      A row[8] = {};
      for (int64_t j = 0; j < count; j++) row[j] = widen(from[j * vector_stride]);
      Vec<A>::load(row).store(target);
    }
  }
}

// The lanes fold by halves while they are summed: taken in the order 0, 8, 4, 12, 2, 10, ... (the lane number with its bits reversed),
// a finished lane merges with as many stored partial tiles as its place in that order has trailing one bits. Lanes of one pass follow each
// other in that order, so they fold among themselves first, and the folds of passes merge in the same way.
inline constexpr int fold_levels = 4;
inline int lane_of_pass(int pass) { return (pass & 1) << 3 | (pass & 2) << 1 | (pass & 4) >> 1 | (pass & 8) >> 3; }
template <class A>
inline constexpr int64_t partial_tile = panel_rows<A> * 16;

// A long K is cut into blocks of steps, so that a block of the rows stays in L2. Between two blocks the lanes of a tile are carried in
// memory: a chain continues from exactly the value where it stopped.
struct DepthBlock {
  int64_t first_step, steps;
  bool first, last;
};

// One step of a chain for a tile: a[i * a_row] times a row of B, for each row i.
template <int rows, class A>
BI_INLINE void add_products(const A* a, int64_t a_row, const A* b, PanelRow<A>* accumulator) {
  PanelRow<A> weight = PanelRow<A>::load(b), x;
  hold_in_register(weight);
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++) {
    fill_register(a[i * a_row], x);
    accumulator[i] = fma(x, weight, accumulator[i]);
  }
}

// A finished row of a tile, of which `columns` are wanted.
template <class Row, class A>
BI_INLINE void store_sums(Row row, A* sums, int64_t columns) {
  row = row + Row::zero();
  if (columns >= panel_columns<A>)
    row.store(sums);
  else
    row.store(sums, columns);
}

// One pass over one tile and one block of K, for the lanes at the places [place, place + lanes_together) of the order above. a, b and
// carried point to the first of them: [lane][steps][rows], [lane][steps][panel_columns] and [lane][rows][panel_columns], with a_lane,
// b_lane and carried_lane elements from one lane to the next. partial: fold_levels stored tiles. The last pass of the last block writes
// the finished sums of `columns` columns.
// A call of its own: inside of multiply_panel compilers run out of registers for its pointers.
template <int rows, class A>
__attribute__((noinline)) void lanes_pass(const A* a, int64_t a_lane, const A* b, int64_t b_lane, const DepthBlock& block, A* carried,
                          int64_t carried_lane, int place, A* partial, A* sums, int64_t sums_row, int64_t columns) {
  constexpr int width = panel_columns<A>, together = lanes_together<A>;
  PanelRow<A> accumulator[together][rows];
  const A *a_of[together], *b_of[together];
  A* carried_of[together];
#pragma GCC unroll 4
  for (int t = 0; t < together; t++) {
    const int lane = lane_of_pass(t);  // after the first one
    a_of[t] = a + lane * a_lane, b_of[t] = b + lane * b_lane, carried_of[t] = carried + lane * carried_lane;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) accumulator[t][i] = block.first ? PanelRow<A>::zero() : PanelRow<A>::load(carried_of[t] + i * width);
  }
  for (int64_t s = 0; s < block.steps; s++) {
#pragma GCC unroll 4
    for (int t = 0; t < together; t++) add_products<rows>(a_of[t] + s * rows, 1, b_of[t] + s * width, accumulator[t]);
  }
  if (!block.last) {
#pragma GCC unroll 4
    for (int t = 0; t < together; t++) {
#pragma GCC unroll 8
      for (int i = 0; i < rows; i++) accumulator[t][i].store(carried_of[t] + i * width);
    }
    return;
  }
  if constexpr (together == 4) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
      accumulator[0][i] = (accumulator[0][i] + accumulator[1][i]) + (accumulator[2][i] + accumulator[3][i]);
  }
  for (int merged = place / together; merged & 1; merged >>= 1, partial += partial_tile<A>) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) accumulator[0][i] = accumulator[0][i] + PanelRow<A>::load(partial + i * width);
  }
  if (place + together != matmul_lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) accumulator[0][i].store(partial + i * width);
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++) store_sums(accumulator[0][i], sums + i * sums_row, columns);
}

// The rows of one packed operand, dealt evenly to panels of at most panel_rows: 16 rows make panels of 6, 5 and 5, because a tile of
// few rows leaves the multipliers waiting for each other.
// Laid out [lane][panel][step][row], since a pass goes through its lanes of one panel after the other.
template <class A>
struct RowPanels {
  int64_t count, smaller, larger_count, steps, stride, lane;  // stride, lane: elements from one panel or lane to the next
  RowPanels(int64_t rows, int64_t k)
      : count((rows + panel_rows<A> - 1) / panel_rows<A>), smaller(rows / count), larger_count(rows % count), steps(lane_steps(k)),
        stride(lane_stride(panel_rows<A>, steps)), lane(lane_stride(count, stride)) {}
  int64_t size(int64_t panel) const { return smaller + (panel < larger_count); }
  int64_t first(int64_t panel) const { return panel * smaller + (panel < larger_count ? panel : larger_count); }
  int64_t elements() const { return matmul_lanes * lane; }
};

template <class T, class A>
inline void pack_rows(const RowPanels<A>& panels, const T* a, int64_t a_row, int64_t a_col, int64_t k, A* packed) {
  for (int64_t p = 0; p < panels.count; p++)
    pack_vectors(a + panels.first(p) * a_row, a_row, a_col, panels.size(p), k, packed + p * panels.stride, panels.size(p), panels.lane);
}

// Panels of panel_columns columns of b, one after the other; zeros in the columns that the last panel lacks.
template <class T, class A>
inline void pack_columns(const T* b, int64_t b_row, int64_t b_col, int64_t columns, int64_t k, A* panels) {
  constexpr int64_t width = panel_columns<A>;
  const int64_t steps = lane_steps(k), lane = lane_stride(width, steps), stride = matmul_lanes * lane;
  if (b_col != 1) {
    for (int64_t n = 0; n < columns; n += 8)
      pack_vectors(b + n * b_col, b_col, b_row, columns - n < 8 ? columns - n : 8, k, panels + n / width * stride + n % width, width, lane);
  } else {
    for (int64_t p = 0; p < steps * matmul_lanes; p++) {
      A* target = panels + (p % matmul_lanes) * lane + (p / matmul_lanes) * width;
      for (int64_t n = 0; n < columns; n += 8) {
        const int64_t left = p < k ? columns - n : 0;
        const Vec<A> row = left >= 8 ? Vec<A>::load(b + p * b_row + n) : left > 0 ? Vec<A>::load(b + p * b_row + n, left) : Vec<A>::zero();
        row.store(target + n / width * stride + n % width);
      }
    }
  }
  // The half panel that no column reached.
  for (int64_t n = (columns + 7) / 8 * 8; n % width; n += 8)
    for (int64_t p = 0; p < steps * matmul_lanes; p++)
      Vec<A>::zero().store(panels + n / width * stride + n % width + (p % matmul_lanes) * lane + (p / matmul_lanes) * width);
}

// Asks for the memory of the next panels while these are being multiplied: packing would wait for it. Cache lines of `outer` runs, each
// `run` bytes long and `stride` bytes after the one before.
class Prefetch {
 public:
  Prefetch() = default;
  template <class T>
  Prefetch(const T* b, int64_t b_row, int64_t b_col, int64_t columns, int64_t k) {
    constexpr int64_t size = sizeof(T);
    run_ = reinterpret_cast<const char*>(b);
    if (b_col == 1)
      lines_in_run_ = (columns * size + line - 1) / line, left_ = lines_in_run_ * k, stride_ = b_row * size;
    else if (b_row == 1)
      lines_in_run_ = (k * size + line - 1) / line, left_ = lines_in_run_ * columns, stride_ = b_col * size;
  }
  int64_t left() const { return left_; }
  void advance(int64_t count) {
    count = count < left_ ? count : left_;
    left_ -= count;
    for (; count > 0; count--) {
      __builtin_prefetch(run_ + within_ * line, 0, 2);
      if (++within_ == lines_in_run_) within_ = 0, run_ += stride_;
    }
  }

 private:
  static constexpr int64_t line = 64;
  const char* run_ = nullptr;
  int64_t lines_in_run_ = 0, stride_ = 0, left_ = 0, within_ = 0;
};

// Tiles between two uses of the same lanes of B: they share them in L1 while their own partial sums stay there too.
inline constexpr int64_t tiles_together = 8;

// sums[row * sums_row + column] of all rows against one panel of columns, one block of K. partial: tiles_together * fold_levels *
// partial_tile elements; carried: as many tiles as lanes times row panels, [lane][panel].
template <class A>
inline void multiply_panel(const RowPanels<A>& panels, const A* rows, const A* b_panel, const DepthBlock& block, A* carried, A* partial,
                           A* sums, int64_t sums_row, int64_t columns, Prefetch next) {
  constexpr int together = lanes_together<A>;
  const int64_t pieces = panels.count * (matmul_lanes / together), share = (next.left() + pieces - 1) / pieces;
  const int64_t b_lane = lane_stride(panel_columns<A>, block.steps), carried_lane = panels.count * partial_tile<A>;
  for (int64_t begin = 0; begin < panels.count; begin += tiles_together) {
    const int64_t end = begin + tiles_together < panels.count ? begin + tiles_together : panels.count;
    for (int place = 0; place < matmul_lanes; place += together) {
      const int64_t lane = lane_of_pass(place);
      for (int64_t p = begin; p < end; p++) {
        const int64_t size = panels.size(p);
        const A* a = rows + lane * panels.lane + p * panels.stride + block.first_step * size;
        A* lanes = carried + lane * carried_lane + p * partial_tile<A>;
        A* stored = partial + (p - begin) * fold_levels * partial_tile<A>;
        A* target = sums + panels.first(p) * sums_row;
        const auto pass = [&](auto count) {
          lanes_pass<count()>(a, panels.lane, b_panel + lane * b_lane, b_lane, block, lanes, carried_lane, place, stored, target, sums_row,
                              columns);
        };
        next.advance(share);
        switch (size) {
          case 7:
            if constexpr (panel_rows<A> == 7) pass(std::integral_constant<int, 7>());
            break;
          case 6: pass(std::integral_constant<int, 6>()); break;
          case 5: pass(std::integral_constant<int, 5>()); break;
          case 4: pass(std::integral_constant<int, 4>()); break;
          case 3: pass(std::integral_constant<int, 3>()); break;
          case 2: pass(std::integral_constant<int, 2>()); break;
          default: pass(std::integral_constant<int, 1>());
        }
      }
    }
  }
}

// A short K spends more time on merging partial tiles than on multiplying. Then two lanes, l and l + 8, share a pass over half as many
// rows, so that the first fold happens in registers; A is read where it lies, since it is small enough for L1.
inline constexpr int short_k_rows = 3;

template <int rows, class A>
inline void short_k_tile(const A* a, int64_t a_row, int64_t a_col, const A* b, int64_t b_lane, int64_t b_step, int64_t k, A* sums,
                         int64_t sums_row, int64_t columns) {
  constexpr int width = panel_columns<A>, half = matmul_lanes / 2;
  const int64_t a_step = matmul_lanes * a_col;
  A partial[fold_levels - 1][short_k_rows * width];
#pragma GCC unroll 8
  for (int pass = 0; pass < half; pass++) {
    const int lane = lane_of_pass(2 * pass);
    const int64_t steps = k > lane ? (k - lane + matmul_lanes - 1) / matmul_lanes : 0;
    const int64_t steps_of_both = k > lane + half ? (k - lane - half + matmul_lanes - 1) / matmul_lanes : 0;
    const A *a_low = a + lane * a_col, *a_high = a_low + half * a_col;
    const A *b_low = b + lane * b_lane, *b_high = b_low + half * b_lane;
    PanelRow<A> low[rows], high[rows];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) low[i] = high[i] = PanelRow<A>::zero();
    for (int64_t s = 0; s < steps_of_both; s++) {
      add_products<rows>(a_low + s * a_step, a_row, b_low + s * b_step, low);
      add_products<rows>(a_high + s * a_step, a_row, b_high + s * b_step, high);
    }
    if (steps_of_both < steps) add_products<rows>(a_low + steps_of_both * a_step, a_row, b_low + steps_of_both * b_step, low);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) low[i] = low[i] + high[i];
    int level = 0;
    for (; pass >> level & 1; level++) {
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) low[i] = low[i] + PanelRow<A>::load(partial[level] + i * width);
    }
    if (pass != half - 1) {
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) low[i].store(partial[level] + i * width);
      continue;
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) store_sums(low[i], sums + i * sums_row, columns);
  }
}

// sums[row * sums_row + column] of at most short_k_rows rows against at most panel_columns columns. b holds full vectors: element
// (k, column) lies at b[(k mod 16) * b_lane + (k / 16) * b_step + column].
template <class A>
inline void multiply_short_k_tile(int64_t rows, const A* a, int64_t a_row, int64_t a_col, const A* b, int64_t b_lane, int64_t b_step,
                                  int64_t k, A* sums, int64_t sums_row, int64_t columns) {
  switch (rows) {
    case 3: return short_k_tile<3>(a, a_row, a_col, b, b_lane, b_step, k, sums, sums_row, columns);
    case 2: return short_k_tile<2>(a, a_row, a_col, b, b_lane, b_step, k, sums, sums_row, columns);
    default: return short_k_tile<1>(a, a_row, a_col, b, b_lane, b_step, k, sums, sums_row, columns);
  }
}

}  // namespace bi
