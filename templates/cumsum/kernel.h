// cumsum along one dim.
//
// Numerics: one chain in index order from +0, c = c + x[i]; out[i] is c rounded to T. c itself is double for float and double, float for the
// 16-bit types. docs/numerics.md section 4.
#pragma once

#include "../common/sums.h"

namespace bi {

namespace detail {

template <class T>
struct Chain {
  using type = accumulator_t<T>;
};
template <>
struct Chain<float> {
  using type = double;
};

// Chains side by side in memory (inner columns): eight at a time.
template <class T, class Count>
BI_INLINE void cumsum_columns(int64_t n, int64_t inner, const T* x, T* out, Count count) {
  using A = accumulator_t<T>;
  typename Chain<T>::type chain[8] = {};
  A row[8];
  for (int64_t i = 0; i < n; i++) {
    load<A>(x + i * inner, count).store(row);
    for (int j = 0; j < 8; j++) {
      chain[j] = chain[j] + row[j];
      row[j] = A(chain[j]);
    }
    store(Vec<A>::load(row), out + i * inner, count);
  }
}

// A chain waits for each addition, so several independent chains advance together. They run in a buffer whose rows do not share cache
// sets, as rows of x a power of two apart would.
constexpr int cumsum_together = 8;
constexpr int64_t cumsum_chunk = 128;

template <class T>
inline void cumsum_chains(int chains, const int64_t* start, int64_t n, int64_t inner, const T* x, T* out) {
  using A = accumulator_t<T>;
  A buffer[cumsum_together][cumsum_chunk + 8] = {};
  typename Chain<T>::type chain[cumsum_together] = {};
  for (int64_t begin = 0; begin < n; begin += cumsum_chunk) {
    const int64_t here = std::min(cumsum_chunk, n - begin);
    for (int k = 0; k < chains; k++) {
      const T* source = x + start[k] + begin * inner;
      if (inner == 1)
        for_each_vector(here, [&](int64_t i, auto count) { load<A>(source + i, count).store(buffer[k] + i); });
      else
        for (int64_t i = 0; i < here; i++) buffer[k][i] = widen(source[i * inner]);
    }
    for (int64_t i = 0; i < here; i++)
      for (int k = 0; k < cumsum_together; k++) {
        chain[k] = chain[k] + buffer[k][i];
        buffer[k][i] = A(chain[k]);
      }
    for (int k = 0; k < chains; k++) {
      T* target = out + start[k] + begin * inner;
      if (inner == 1)
        for_each_vector(here, [&](int64_t i, auto count) { store(Vec<A>::load(buffer[k] + i), target + i, count); });
      else
        for (int64_t i = 0; i < here; i++) narrow(buffer[k][i], target + i * inner);
    }
  }
}

}  // namespace detail

// x and out are contiguous [outer, n, inner]; the sums run along n.
template <class T>
void cumsum(int64_t outer, int64_t n, int64_t inner, const T* x, T* out, int64_t threads) {
  if (inner >= 8) {
    const int64_t blocks = (inner + 7) / 8;
    parallel_for(outer * blocks, double(n) * 4, int(threads), [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; unit++) {
        const int64_t column = unit % blocks * 8, start = unit / blocks * n * inner + column;
        if (column + 8 <= inner)
          detail::cumsum_columns(n, inner, x + start, out + start, Full());
        else
          detail::cumsum_columns(n, inner, x + start, out + start, inner - column);
      }
    });
    return;
  }
  constexpr int together = detail::cumsum_together;
  const int64_t chains = outer * inner, blocks = (chains + together - 1) / together;
  parallel_for(blocks, double(n) * together, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * together; first < std::min(end * together, chains); first += together) {
      const int here = int(std::min<int64_t>(together, chains - first));
      int64_t start[together];
      for (int k = 0; k < here; k++) start[k] = (first + k) / inner * n * inner + (first + k) % inner;
      detail::cumsum_chains(here, start, n, inner, x, out);
    }
  });
}

}  // namespace bi
