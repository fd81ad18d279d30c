// Writes or reduces the elements of src into the rows of out that an index names.
//
// Numerics: each element of out is one chain over the elements of src that go there, in ascending position along the dim, from the element
// of self (or from the neutral element), rounded to T once. "set" keeps the last one. docs/numerics.md section 9.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "../common/sums.h"

namespace bi {

enum ScatterReduce : int64_t { scatter_set, scatter_sum, scatter_prod, scatter_amax, scatter_amin, scatter_mean };

template <class A>
inline A scatter_combine(int64_t reduce, A chain, A x) {
  switch (reduce) {
    case scatter_prod: return chain * x;
    case scatter_amax: return x > chain || x != x ? x : chain;
    case scatter_amin: return x < chain || x != x ? x : chain;
    default: return chain + x;
  }
}

// One element that a chain starts from without self; a maximum starts from its first element.
template <class A>
inline A scatter_start(int64_t reduce, A first) {
  if (reduce == scatter_amax || reduce == scatter_amin) return first;
  return scatter_combine(reduce, A(reduce == scatter_prod ? 1 : 0), first);
}

// self and out are contiguous [outer, rows, columns], src [outer, count, columns]; the index of an element of src is
// index[o * index_outer + j * index_row + c * index_column]. out is fully written. Throws std::out_of_range.
template <class T>
void scatter(int64_t reduce, int64_t include_self, int64_t outer, int64_t rows, int64_t columns, int64_t count, const T* self,
             const int64_t* index, int64_t index_outer, int64_t index_row, int64_t index_column, const T* src, T* out, int64_t threads) {
  using A = accumulator_t<T>;
  // Before the threads start: an exception cannot leave them.
  for (int64_t o = 0; o < (index_outer ? outer : 1); o++)
    for (int64_t j = 0; j < count; j++)
      for (int64_t c = 0; c < (index_column ? columns : 1); c++) {
        const int64_t v = index[o * index_outer + j * index_row + c * index_column];
        if (v < 0 || v >= rows) throw std::out_of_range("scatter: an index is out of bounds");
      }
  // A thread owns whole columns of an outer entry, so that every chain is its own.
  constexpr int64_t width = 64;
  const int64_t blocks = (columns + width - 1) / width;
  const double cost = double(rows + 2 * count) * double(math::min(columns, width));
  parallel_for(outer * blocks, cost, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      const int64_t o = task / blocks, first = task % blocks * width, used = math::min(width, columns - first);
      const T* from = src + o * count * columns + first;
      const int64_t* at = index + o * index_outer + first * index_column;
      const T* before = self + o * rows * columns + first;
      T* to = out + o * rows * columns + first;
      if (reduce == scatter_set) {
        for (int64_t v = 0; v < rows; v++) std::memcpy(to + v * columns, before + v * columns, size_t(used) * sizeof(T));
        for (int64_t j = 0; j < count; j++)
          for (int64_t c = 0; c < used; c++) to[at[j * index_row + c * index_column] * columns + c] = from[j * columns + c];
        continue;
      }
      A* chains = scratch<A, 2>(rows * width);
      for (int64_t v = 0; v < rows; v++)
        for_each_vector(used, [&](int64_t c, auto n) { store(load<A>(before + v * columns + c, n), chains + v * width + c, n); });
      const bool counts = !include_self || reduce == scatter_mean;
      if (!counts && reduce == scatter_sum && index_column == 0) {
        for (int64_t j = 0; j < count; j++) {
          A* chain = chains + at[j * index_row] * width;
          for_each_vector(used, [&](int64_t c, auto n) {
            store(load<A>(chain + c, n) + load<A>(from + j * columns + c, n), chain + c, n);
          });
        }
      } else {
        int64_t* terms = counts ? scratch<int64_t, 3>(rows * width) : nullptr;
        if (counts)
          for (int64_t i = 0; i < rows * width; i++) terms[i] = include_self ? 1 : 0;
        for (int64_t j = 0; j < count; j++)
          for (int64_t c = 0; c < used; c++) {
            const int64_t place = at[j * index_row + c * index_column] * width + c;
            const A x = widen(from[j * columns + c]);
            chains[place] = counts && terms[place] == 0 ? scatter_start(reduce, x) : scatter_combine(reduce, chains[place], x);
            if (counts) terms[place]++;
          }
        if (reduce == scatter_mean)
          for (int64_t i = 0; i < rows * width; i++)
            if (i % width < used && terms[i] > 0) chains[i] = chains[i] / A(terms[i]);
      }
      for (int64_t v = 0; v < rows; v++)
        for_each_vector(used, [&](int64_t c, auto n) { store(load<A>(chains + v * width + c, n), to + v * columns + c, n); });
    }
  });
}

}  // namespace bi
