// out[b, o, p] = sum_k weight[o, k] * patch[b, k, p] + bias[o], the patches read from the input as they are needed.
//
// Numerics: the sum is the matmul family's, k the row-major index over (channel within the group, kernel position), positions outside the
// input being zeros; one rounding, after the bias. The bits are those of matmul over a tensor of all patches: docs/numerics.md section 3.
#pragma once

#include "../common/vector.h"
#include "../common/sums.h"
#include "../matmul/entry.h"
#include "patches.h"
#include "tiles.h"

namespace bi {

template <class A>
struct ConvolutionBuffers {
  MatmulScratch<A> weight, input, patches, sums;
  MatmulScratch<int64_t> offsets;
  static ConvolutionBuffers& of_this_thread() {
    static thread_local ConvolutionBuffers buffers;
    return buffers;
  }
};

// Columns between two epilogues: the results of a region stay in L2, and a last panel that is not full counts little.
inline int64_t convolution_region_columns(int64_t rows) { return math::max<int64_t>(384, 32768 / rows / 64 * 64); }

// Regions of a batch: pieces of one sample, or several whole samples where one has too few positions.
struct ConvolutionRegions {
  int64_t batch, positions, pieces, samples, count;  // pieces of a sample; samples of a region
  ConvolutionRegions(int64_t batch, int64_t positions, int64_t columns)
      : batch(batch), positions(positions), pieces((positions + columns - 1) / columns) {
    const int64_t wanted = math::min(batch, math::max<int64_t>(1, (columns + positions - 1) / positions));
    const int64_t groups = pieces > 1 ? batch : (batch + wanted - 1) / wanted;
    samples = (batch + groups - 1) / groups;
    count = pieces * groups;
  }
  ConvolutionRegion at(int64_t index) const {
    const int64_t begin = index / pieces * samples, piece = index % pieces, blocks = (positions + 15) / 16;
    return {begin, math::min(batch, begin + samples), blocks * piece / pieces * 16,
            math::min(positions, blocks * (piece + 1) / pieces * 16)};
  }
};

// `channels` and `out_channels` are those of one group; sizes of the shape are along depth, height and width. `x` has any strides, `weight`
// [groups * out_channels, channels, kernel] and `out` [batch, groups * out_channels, positions] are row-major, `bias` may be null.
// `epilogue` (may be null) runs once for every region of the output, on the thread that has just written that region.
template <class T>
void convolution(int64_t batch, int64_t groups, int64_t channels, int64_t out_channels, const T* x, int64_t x_batch, int64_t x_channel,
                 const int64_t* x_stride, const int64_t* size, const int64_t* kernel, const int64_t* stride, const int64_t* padding,
                 const int64_t* dilation, const int64_t* out_size, const T* weight, const T* bias, int64_t bias_stride, T* out,
                 int64_t threads, MatmulEpilogue epilogue, void* epilogue_context) {
  using A = accumulator_t<T>;
  constexpr int64_t width = panel_columns<A>;
  const ConvolutionShape shape{size, kernel, stride, padding, dilation, out_size};
  const int64_t k = channels * shape.kernel_positions(), positions = shape.positions(), all_channels = groups * out_channels;
  if (batch <= 0 || all_channels <= 0 || positions <= 0) return;
  const double cost = double(out_channels) * double(k) / 16 * double(positions) * double(batch) + double(out_channels) * double(k);
  const int64_t used = math::max<int64_t>(1, math::min<int64_t>(threads, int64_t(double(groups) * cost / 16384)));
  // Threads share a group's samples and positions; where these are few, its output channels.
  const int64_t regions_of_all = ConvolutionRegions(batch, positions, convolution_region_columns(out_channels)).count;
  const bool split_rows = groups < 4 * used && regions_of_all < 4 * used && regions_of_all % used != 0 && out_channels >= 6 * used;
  const int64_t row_parts = split_rows ? used : 1;
  const ConvolutionRegions regions(batch, positions, convolution_region_columns((out_channels + row_parts - 1) / row_parts));
  const int64_t patches_pass = pass_stride<A>(width, k);
  parallel_for(groups * row_parts * regions.count, double(groups) * cost / double(groups * row_parts * regions.count), int(used),
               [&](int64_t first_task, int64_t last_task) {
    ConvolutionBuffers<A>& buffers = ConvolutionBuffers<A>::of_this_thread();
    A* partial = buffers.patches.reserve(tiles_together * fold_levels * convolution_partial + convolution_passes<A> * patches_pass);
    A *patches = partial + tiles_together * fold_levels * convolution_partial, *packed = nullptr;
    WeightPanels panels{};
    int64_t row0 = 0, row1 = 0;
    for (int64_t task = first_task; task < last_task; task++) {
      const int64_t part = task / regions.count, group = part / row_parts;
      if (task == first_task || task % regions.count == 0) {
        const int64_t units = (out_channels + convolution_rows - 1) / convolution_rows, cut = part % row_parts;
        row0 = units * cut / row_parts * convolution_rows, row1 = math::min(out_channels, units * (cut + 1) / row_parts * convolution_rows);
        panels = WeightPanels::of<A>(row1 - row0, k);
        packed = buffers.weight.reserve(convolution_passes<A> * panels.pass);
        pack_weight(panels, weight + (group * out_channels + row0) * k, k, packed);
      }
      const ConvolutionRegion region = regions.at(task % regions.count);
      const PaddedInput<A> input(shape, region, channels);
      A* padded = buffers.input.reserve(input.elements());
      input.copy(x + group * channels * x_channel, x_batch, x_channel, x_stride, padded);
      int64_t* offsets = buffers.offsets.reserve(shape.kernel_positions());
      input.offsets_of_kernel(offsets);
      const int64_t channel0 = group * out_channels + row0, columns = region.columns();
      const bool in_place = std::is_same<T, A>::value && region.end - region.begin == 1;
      A* sums = in_place ? reinterpret_cast<A*>(out) + (region.begin * all_channels + channel0) * positions + region.first
                         : buffers.sums.reserve((row1 - row0) * columns);
      const int64_t sums_row = in_place ? positions : columns;
      for (int64_t column = 0; column < columns; column += width) {
        const int64_t count = math::min(width, columns - column);
        pack_patches(input, padded, offsets, shape.kernel_positions(), channels, column, count, convolution_passes<A>, patches_pass,
                     patches);
        multiply_patches(panels, packed, patches, patches_pass, k, partial, sums + column, sums_row, count);
      }
      for (int64_t b = region.begin; b < region.end; b++) {
        const MatmulEntry<T> e{b, all_channels, positions, k, nullptr, 0, 0, nullptr, 0, 0, bias, bias_stride, 0, A(1), A(1),
                               out + b * all_channels * positions, positions, epilogue, epilogue_context, all_channels};
        e.finish(channel0, channel0 + row1 - row0, region.first, region.last, sums + (b - region.begin) * region.positions(), sums_row);
      }
    }
  });
}

}  // namespace bi
