// What every schedule of matmul shares: scratch memory, one batch entry, and the way from sums to rounded results (docs/numerics.md
// section 3: alpha, bias, one rounding).
#pragma once

#include <cstdlib>
#include <new>
#include <type_traits>

#include "../common/vector.h"

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

  BI_NOINLINE void finish(int64_t m0, int64_t m1, int64_t n0, int64_t n1, const A* sums, int64_t sums_row) const {
    for (int64_t row = m0; row < m1; row++) finish_row(row, n0, sums + (row - m0) * sums_row, n1 - n0);
    run_epilogue(m0, m1, n0, n1);
  }

  BI_NOINLINE void run_epilogue(int64_t m0, int64_t m1, int64_t n0, int64_t n1) const {
    if (!epilogue) return;
    while (m0 < m1) {
      const int64_t entry = m0 / merged_rows, first = m0 - entry * merged_rows;
      const int64_t last = math::min(merged_rows, first + m1 - m0);
      epilogue(epilogue_context, batch + entry, first, last, n0, n1);
      m0 += last - first;
    }
  }
};

// A batch of products, in the arguments of matmul (kernel.h).
template <class T>
struct MatmulBatch {
  int64_t count, m, n, k;
  const T* a;
  int64_t a_batch, a_row, a_col;
  const T* b;
  int64_t b_batch, b_row, b_col;
  const T* bias;  // null where beta is 0
  int64_t bias_batch, bias_row, bias_col;
  accumulator_t<T> alpha, beta;
  T* out;
  int64_t out_batch, out_row;
  MatmulEpilogue epilogue;
  void* epilogue_context;
  int64_t merged_rows;

  // A shared B makes one tall product of the batch where the strides allow it.
  void merge() {
    if (count <= 1 || b_batch != 0 || out_batch != m * out_row) return;
    if ((a_batch != m * a_row || (bias && bias_batch != m * bias_row)) && m != 1) return;
    if (m == 1) a_row = a_batch, out_row = out_batch, bias_row = bias_batch;
    m *= count;
    count = 1;
  }

  MatmulEntry<T> entry(int64_t index) const {
    return {index, m, n, k, a + index * a_batch, a_row, a_col, b + index * b_batch, b_row, b_col, bias ? bias + index * bias_batch : nullptr,
            bias_row, bias_col, alpha, beta, out + index * out_batch, out_row, epilogue, epilogue_context, merged_rows};
  }
};

// Copies `count` vectors of length k into rows of the accumulation type, contiguous along K, padded with zeros to target_row.
template <class T, class A>
BI_NOINLINE void copy_vectors(const T* source, int64_t vector_stride, int64_t k_stride, int64_t count, int64_t k, A* target,
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

}  // namespace bi
