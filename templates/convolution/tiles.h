// Tiles of a convolution: rows of the weight against panels of patches, several lanes at a time.
//
// Numerics: lane l of an output is the chain of fma over k = l, l + 16, ...; a pass runs the lanes l, l + groups, l + 2 * groups, ... of a
// tile and folds them by halves, and the passes fold by halves, + 0 at the end: the bits of matmul (docs/numerics.md sections 2 and 3).
#pragma once

#include "../matmul/panels.h"

namespace bi {

// Rows of a tile, and the elements of a stored one.
inline constexpr int convolution_rows = 6;
inline constexpr int64_t convolution_partial = convolution_rows * 16;
// Passes of lanes_together lanes, as in matmul; also how far apart the lanes of a pass are.
template <class A>
inline constexpr int convolution_passes = matmul_lanes / lanes_together<A>;

// Elements from the terms of one pass to those of the next: their rows, one row of slack, and an odd number of cache lines.
template <class A>
inline int64_t pass_stride(int64_t width, int64_t k) {
  return lane_stride(width, lane_steps(k) * lanes_together<A> + 1);
}

// Passes in the order in which a finished one merges with as many stored partial tiles as its place has trailing one bits.
template <class A>
inline int convolution_pass(int place) {
  int pass = 0;
  for (int bit = 1, mirrored = convolution_passes<A> / 2; mirrored; bit <<= 1, mirrored >>= 1)
    if (place & bit) pass |= mirrored;
  return pass;
}

// The pass at `place` over one tile. a: [term of the pass][row], b: [term of the pass][column], partial: fold_levels stored tiles. The last
// one writes the sums of `columns` columns.
template <int rows, class A>
inline __attribute__((noinline)) void convolution_tile(const A* a, const A* b, int64_t k, int place, A* partial, A* sums, int64_t sums_row,
                                                       int64_t columns) {
  constexpr int width = panel_columns<A>, together = lanes_together<A>, passes = convolution_passes<A>;
  PanelRow<A> lane[together][rows];
#pragma GCC unroll 4
  for (int t = 0; t < together; t++) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) lane[t][i] = PanelRow<A>::zero();
  }
  // The weight passes by once for each panel of patches, out of a cache too far away for the machine's own prefetching.
  constexpr int ahead = 24 * together * rows;
  const int64_t whole = k / matmul_lanes;
  for (int64_t step = 0; step < whole; step++, a += together * rows, b += together * width) {
#pragma GCC unroll 2
    for (int line = 0; line < together * rows; line += 16) __builtin_prefetch(a + ahead + line, 0, 3);
#pragma GCC unroll 4
    for (int t = 0; t < together; t++) add_products<rows>(a + t * rows, 1, b + t * width, lane[t]);
  }
  const int64_t left = k - whole * matmul_lanes - convolution_pass<A>(place);
#pragma GCC unroll 4
  for (int t = 0; t < together; t++)
    if (passes * t < left) add_products<rows>(a + t * rows, 1, b + t * width, lane[t]);
  // Spelt out: an index that the compiler does not know would move all lanes from registers to memory.
  if constexpr (together == 4) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) lane[0][i] = (lane[0][i] + lane[2][i]) + (lane[1][i] + lane[3][i]);
  }
  int level = place;
  for (; level & 1; level >>= 1, partial += convolution_partial) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) lane[0][i] = lane[0][i] + PanelRow<A>::load(partial + i * width);
  }
  if (place != passes - 1) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) lane[0][i].store(partial + i * width);
    return;
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; i++) store_sums(lane[0][i], sums + i * sums_row, columns);
}

// Rows of the weight, dealt evenly to panels of at most convolution_rows and laid out [pass][panel][term of the pass][row].
struct WeightPanels {
  int64_t count, smaller, larger_count, panel, pass;  // panel, pass: elements from one to the next
  template <class A>
  static WeightPanels of(int64_t rows, int64_t k) {
    WeightPanels p;
    p.count = (rows + convolution_rows - 1) / convolution_rows, p.smaller = rows / p.count, p.larger_count = rows % p.count;
    p.panel = pass_stride<A>(convolution_rows, k), p.pass = lane_stride(p.count, p.panel);
    return p;
  }
  int64_t size(int64_t index) const { return smaller + (index < larger_count); }
  int64_t first(int64_t index) const { return index * smaller + math::min(index, larger_count); }
};

template <class T, class A>
inline void pack_weight(const WeightPanels& panels, const T* weight, int64_t k, A* packed) {
  for (int64_t p = 0; p < panels.count; p++)
    pack_vectors(weight + panels.first(p) * k, k, 1, panels.size(p), k, packed + p * panels.panel, panels.size(p), panels.pass,
                 convolution_passes<A>);
}

// sums[row * sums_row + column] of all rows against one panel of patches. partial: tiles_together * fold_levels * convolution_partial
// elements.
template <class A>
inline void multiply_patches(const WeightPanels& panels, const A* weight, const A* patches, int64_t patches_pass, int64_t k, A* partial,
                             A* sums, int64_t sums_row, int64_t columns) {
  for (int64_t begin = 0; begin < panels.count; begin += tiles_together) {
    const int64_t end = math::min(panels.count, begin + tiles_together);
    for (int place = 0; place < convolution_passes<A>; place++) {
      const int pass = convolution_pass<A>(place);
      const A* b = patches + pass * patches_pass;
      for (int64_t p = begin; p < end; p++) {
        const A* a = weight + pass * panels.pass + p * panels.panel;
        A* stored = partial + (p - begin) * fold_levels * convolution_partial;
        A* target = sums + panels.first(p) * sums_row;
        switch (panels.size(p)) {
          case 6: convolution_tile<6>(a, b, k, place, stored, target, sums_row, columns); break;
          case 5: convolution_tile<5>(a, b, k, place, stored, target, sums_row, columns); break;
          case 4: convolution_tile<4>(a, b, k, place, stored, target, sums_row, columns); break;
          case 3: convolution_tile<3>(a, b, k, place, stored, target, sums_row, columns); break;
          case 2: convolution_tile<2>(a, b, k, place, stored, target, sums_row, columns); break;
          default: convolution_tile<1>(a, b, k, place, stored, target, sums_row, columns);
        }
      }
    }
  }
}

}  // namespace bi
