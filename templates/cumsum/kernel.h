// cumsum along one dim.
//
// Numerics: one chain in index order from +0, c = c + x[i]; out[i] is c rounded to T, c itself stays in the accumulation type.
// docs/numerics.md section 4.
#pragma once

#include "../common/sums.h"

namespace bi {

namespace detail {

// Chains side by side in memory (inner columns): eight at a time in a vector.
template <class T, class Count>
BI_INLINE void cumsum_columns(int64_t n, int64_t inner, const T* x, T* out, Count count) {
  using A = accumulator_t<T>;
  Vec<A> chain = Vec<A>::zero();
  for (int64_t i = 0; i < n; i++) {
    chain = chain + load<A>(x + i * inner, count);
    store(chain, out + i * inner, count);
  }
}

}  // namespace detail

// x and out are contiguous [outer, n, inner]; the sums run along n.
template <class T>
void cumsum(int64_t outer, int64_t n, int64_t inner, const T* x, T* out, int64_t threads) {
  using A = accumulator_t<T>;
  if (inner >= 8) {
    const int64_t blocks = (inner + 7) / 8;
    parallel_for(outer * blocks, double(n) * 8, int(threads), [&](int64_t begin, int64_t end) {
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
  // A chain waits for each addition, so several independent chains advance together.
  constexpr int together = 8;
  const int64_t chains = outer * inner, blocks = (chains + together - 1) / together;
  parallel_for(blocks, double(n) * 2 * together, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++) {
      const int64_t first = block * together, here = std::min<int64_t>(together, chains - first);
      int64_t start[together];
      A chain[together];
      for (int k = 0; k < together; k++) {
        const int64_t index = std::min<int64_t>(first + k, chains - 1);
        start[k] = index / inner * n * inner + index % inner;
        chain[k] = A(0);
      }
      if (here == together) {
        for (int64_t i = 0; i < n * inner; i += inner)
          for (int k = 0; k < together; k++) {
            chain[k] = chain[k] + widen(x[start[k] + i]);
            narrow(chain[k], out + start[k] + i);
          }
      } else {
        for (int64_t k = 0; k < here; k++)
          for (int64_t i = 0; i < n * inner; i += inner) {
            chain[k] = chain[k] + widen(x[start[k] + i]);
            narrow(chain[k], out + start[k] + i);
          }
      }
    }
  });
}

}  // namespace bi
