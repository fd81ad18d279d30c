// Gradient of an embedding table.
//
// Numerics: row v is one chain over the positions whose index is v, in ascending position, c = c + grad[position] from +0, rounded to T
// once; padding_idx and rows nobody looked up are +0. docs/numerics.md section 9.
#pragma once

#include "../common/sums.h"

namespace bi {

// grad is contiguous [positions, width], index [positions], out [rows, width] and fully written. padding_idx outside 0..rows means none.
template <class T>
void embedding_backward(int64_t positions, int64_t width, int64_t rows, int64_t padding_idx, const T* grad, const int64_t* index, T* out,
                        int64_t threads) {
  using A = accumulator_t<T>;
  // Positions grouped by row in a stable counting sort: group v is order[end[v-1]..end[v]), ascending.
  int64_t* end_of = scratch<int64_t, 0>(rows + 1) + 1;
  int64_t* order = scratch<int64_t, 1>(positions);
  const auto counts = [=](int64_t i) { return index[i] >= 0 && index[i] < rows && index[i] != padding_idx; };
  std::memset(end_of - 1, 0, size_t(rows + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < positions; i++)
    if (counts(i)) end_of[index[i]]++;
  int64_t total = 0;
  for (int64_t v = 0; v < rows; v++) {
    const int64_t size = end_of[v];
    end_of[v] = total;
    total += size;
  }
  for (int64_t i = 0; i < positions; i++)
    if (counts(i)) order[end_of[index[i]]++] = i;

  const double cost = 0.25 * double(width) * (1 + double(total) / double(math::max<int64_t>(rows, 1)));
  parallel_for(rows, cost, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; v++) {
      const int64_t first = end_of[v - 1], last = end_of[v];
      if (first == last) {  // most rows of a vocabulary
        std::memset(static_cast<void*>(out + v * width), 0, size_t(width) * sizeof(T));
        continue;
      }
      for_each_vector(width, [&](int64_t j, auto count) {
        Vec<A> chain = Vec<A>::zero();
        for (int64_t k = first; k < last; k++) chain = chain + load<A>(grad + order[k] * width + j, count);
        store(chain, out + v * width + j, count);
      });
    }
  });
}

}  // namespace bi
