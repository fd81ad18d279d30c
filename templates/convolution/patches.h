// The terms of a convolution, laid out for its tiles: a copy of the input with its padding, and panels of patches gathered from that copy.
//
// Numerics: none; values are moved and widened. Term k is the row-major index over (channel, kernel position), and positions outside the
// input are zeros (docs/numerics.md section 3).
#pragma once

#include <cstdint>

#include "../common/vector.h"
#include "../matmul/panels.h"

namespace bi {

// Sizes along depth, height and width; a convolution over fewer dims has ones in front.
struct ConvolutionShape {
  const int64_t *size, *kernel, *stride, *padding, *dilation, *out;

  int64_t kernel_positions() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t positions() const { return out[0] * out[1] * out[2]; }
  // Elements of the padded input, along `dim`, that `count` outputs read.
  int64_t reach(int dim, int64_t count) const { return (count - 1) * stride[dim] + (kernel[dim] - 1) * dilation[dim] + 1; }
  // Whether any output reads element `index` of the padded input along `dim`.
  bool reads(int dim, int64_t index) const {
    if (stride[dim] == 1) return true;
    for (int64_t k = 0; k < kernel[dim]; k++)
      if ((index - k * dilation[dim]) % stride[dim] == 0) return true;
    return false;
  }
};

// The output positions [first, last) of the samples [begin, end); of several samples all positions.
struct ConvolutionRegion {
  int64_t begin, end, first, last;
  int64_t positions() const { return last - first; }
  int64_t columns() const { return (end - begin) * positions(); }
};

// What a region reads of the channels of one group, with zeros for the padding: [sample][channel][depth][height][phase][width / stride].
// Elements whose places differ by a multiple of the stride along the width are neighbours, so that neighbours in the output read
// neighbours.
template <class A>
class PaddedInput {
 public:
  PaddedInput(const ConvolutionShape& shape, const ConvolutionRegion& region, int64_t channels)
      : shape_(shape), region_(region), channels_(channels) {
    const int64_t plane = shape.out[1] * shape.out[2];
    const int64_t depths[2] = {region.first / plane, (region.last - 1) / plane};
    const bool one_plane = depths[0] == depths[1];
    const int64_t heights[2] = {one_plane ? region.first % plane / shape.out[2] : 0,
                                one_plane ? (region.last - 1) % plane / shape.out[2] : shape.out[1] - 1};
    start_[0] = depths[0] * shape.stride[0], start_[1] = heights[0] * shape.stride[1];
    count_[0] = shape.reach(0, depths[1] - depths[0] + 1), count_[1] = shape.reach(1, heights[1] - heights[0] + 1);
    phase_ = (shape.reach(2, shape.out[2]) + shape.stride[2] - 1) / shape.stride[2];
    row_ = phase_ * shape.stride[2];
    channel_ = count_[0] * count_[1] * row_;
    sample_ = channels * channel_;
  }

  // A panel reads whole vectors, so beyond the last element.
  int64_t elements() const { return (region_.end - region_.begin) * sample_ + 16; }
  int64_t channel() const { return channel_; }

  // Where output `column` of the region finds its first term.
  int64_t offset_of_column(int64_t column) const {
    const int64_t position = region_.first + column % region_.positions(), plane = shape_.out[1] * shape_.out[2];
    const int64_t d = position / plane * shape_.stride[0] - start_[0];
    const int64_t h = position % plane / shape_.out[2] * shape_.stride[1] - start_[1];
    return column / region_.positions() * sample_ + (d * count_[1] + h) * row_ + position % shape_.out[2];
  }
  // How many columns from `column` on lie in one row of the output, at most `most`.
  int64_t run(int64_t column, int64_t most) const {
    const int64_t position = column % region_.positions();
    return math::min(most, math::min(shape_.out[2] - (region_.first + position) % shape_.out[2], region_.positions() - position));
  }
  // From the first term of an output and channel to those of all kernel positions.
  void offsets_of_kernel(int64_t* offsets) const {
    for (int64_t d = 0; d < shape_.kernel[0]; d++)
      for (int64_t h = 0; h < shape_.kernel[1]; h++)
        for (int64_t w = 0; w < shape_.kernel[2]; w++) {
          const int64_t along = w * shape_.dilation[2];
          *offsets++ = (d * shape_.dilation[0] * count_[1] + h * shape_.dilation[1]) * row_ + along % shape_.stride[2] * phase_ +
                       along / shape_.stride[2];
        }
  }

  // Fills `target` from the region's samples; `x` is the first channel of the group in the first sample of the batch.
  template <class T>
  void copy(const T* x, int64_t x_batch, int64_t x_channel, const int64_t* x_stride, A* target) const {
    for (int64_t b = region_.begin; b < region_.end; b++)
      for (int64_t d = 0; d < count_[0]; d++)
        for (int64_t h = 0; h < count_[1]; h++) {
          const int64_t from_d = start_[0] + d, from_h = start_[1] + h;
          if (!shape_.reads(0, from_d) || !shape_.reads(1, from_h)) continue;
          const int64_t source_d = from_d - shape_.padding[0], source_h = from_h - shape_.padding[1];
          const bool outside = source_d < 0 || source_d >= shape_.size[0] || source_h < 0 || source_h >= shape_.size[1];
          const T* row = outside ? nullptr : x + b * x_batch + source_d * x_stride[0] + source_h * x_stride[1];
          A* to = target + (b - region_.begin) * sample_ + (d * count_[1] + h) * row_;
          for (int64_t p = 0; p < shape_.stride[2]; p++)
            if (shape_.reads(2, p)) copy_phase(row, x_channel, x_stride[2], p, to + p * phase_);
        }
  }

 private:
  // In each channel, target[i] = padded row at i * stride + p; a null row is padding.
  template <class T>
  void copy_phase(const T* row, int64_t x_channel, int64_t x_stride, int64_t p, A* target) const {
    const int64_t stride = shape_.stride[2], shift = p - shape_.padding[2];
    // The first i inside of the input, and the first one after it.
    const int64_t begin = row ? math::min(phase_, shift >= 0 ? 0 : (-shift + stride - 1) / stride) : phase_;
    const int64_t end = math::max(begin, math::min(phase_, (shape_.size[2] - shift + stride - 1) / stride));
    for (int64_t c = 0; c < channels_; c++, target += channel_) {
      const T* from = row ? row + c * x_channel : nullptr;
      for (int64_t i = 0; i < begin; i++) target[i] = 0;
      int64_t i = begin;
      if (stride == 1 && x_stride == 1)
        for (; i + 8 <= end; i += 8) Vec<A>::load(from + i + shift).store(target + i);
      // A stride that the compiler knows makes vectors.
      if (stride == 2 && x_stride == 1)
        for (; i < end; i++) target[i] = widen(from[2 * i + shift]);
      for (; i < end; i++) target[i] = widen(from[(i * stride + shift) * x_stride]);
      for (; i < phase_; i++) target[i] = 0;
    }
  }

  const ConvolutionShape& shape_;
  const ConvolutionRegion& region_;
  int64_t channels_, start_[2], count_[2], phase_, row_, channel_, sample_;
};

// Copies the patches of at most panel_columns columns of a region into a panel: term k of column j goes to
// panel[(k mod groups) * group_stride + (k / groups) * panel_columns + j]. Whole vectors are stored: what hangs over is overwritten by the
// next run of columns, by a later term, or lies in the slack of the group. `offsets` are those of the kernel's positions.
template <class A>
inline void pack_patches(const PaddedInput<A>& input, const A* padded, const int64_t* offsets, int64_t kernel_positions, int64_t channels,
                         int64_t column, int64_t columns, int64_t groups, int64_t group_stride, A* panel) {
  constexpr int64_t width = panel_columns<A>;
  struct Run {
    int64_t column, offset;
  } runs[width];
  int64_t count = 0;
  for (int64_t j = 0; j < columns; count++) {
    runs[count] = {j, input.offset_of_column(column + j)};
    j += input.run(column + j, columns - j);
  }
  int64_t group = 0;
  A* row = panel;
  for (int64_t c = 0; c < channels; c++, padded += input.channel())
    for (int64_t position = 0; position < kernel_positions; position++) {
      const A* terms = padded + offsets[position];
      A* target = row + group * group_stride;
      PanelRow<A>::load(terms + runs[0].offset).store(target);
      for (int64_t i = 1; i < count; i++) PanelRow<A>::load(terms + runs[i].offset).store(target + runs[i].column);
      if (++group == groups) group = 0, row += width;
    }
}

}  // namespace bi
