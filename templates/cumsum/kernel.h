// cumsum, cumprod and logcumsumexp along one dim.
//
// Numerics: one chain in index order, c = step(c, x[i]); out[i] is c rounded to T. c itself is double for float and double, float for the
// 16-bit types. docs/numerics.md section 4.
#pragma once

#include <cmath>
#include <limits>

#include "../common/sums.h"

namespace bi {

namespace detail {

// What a chain is kept in.
template <class T>
struct Chain {
  using type = accumulator_t<T>;
};
template <>
struct Chain<float> {
  using type = double;
};

// The steps of a chain, each with where it starts.
struct CumulativeSum {
  template <class C>
  static C start() {
    return C(0);
  }
  template <class C>
  BI_INLINE C operator()(C chain, C x) const {
    return chain + x;
  }
};

struct CumulativeProduct {
  template <class C>
  static C start() {
    return C(1);
  }
  template <class C>
  BI_INLINE C operator()(C chain, C x) const {
    return chain * x;
  }
};

struct CumulativeLogSumExp {
  template <class C>
  static C start() {
    return -std::numeric_limits<C>::infinity();
  }
  // The C library's functions, on one number at a time.
  template <class C>
  BI_INLINE C operator()(C chain, C x) const {
    if (std::isnan(chain) || std::isnan(x)) return chain + x;
    const C larger = math::max(chain, x), smaller = math::min(chain, x);
    // Two equal infinities have no difference.
    return larger == smaller && std::isinf(larger) ? larger : larger + std::log1p(std::exp(smaller - larger));
  }
};

// Chains side by side in memory (inner columns): eight at a time.
template <class T, class Step, class Count>
BI_INLINE void cumulate_columns(int64_t n, int64_t inner, const T* x, T* out, Step step, Count count) {
  using A = accumulator_t<T>;
  using C = typename Chain<T>::type;
  C chain[8];
  for (C& c : chain) c = Step::template start<C>();
  A row[8];
  for (int64_t i = 0; i < n; i++) {
    load<A>(x + i * inner, count).store(row);
    for (int j = 0; j < 8; j++) {
      chain[j] = step(chain[j], C(row[j]));
      row[j] = A(chain[j]);
    }
    store(Vec<A>::load(row), out + i * inner, count);
  }
}

// A chain waits for each step, so several independent chains advance together. They run in a buffer whose rows do not share cache
// sets, as rows of x a power of two apart would.
constexpr int chains_together = 8;
constexpr int64_t chain_chunk = 128;

template <class T, class Step>
inline void cumulate_chains(int chains, const int64_t* start, int64_t n, int64_t inner, const T* x, T* out, Step step) {
  using A = accumulator_t<T>;
  using C = typename Chain<T>::type;
  A buffer[chains_together][chain_chunk + 8] = {};
  C chain[chains_together];
  for (C& c : chain) c = Step::template start<C>();
  for (int64_t begin = 0; begin < n; begin += chain_chunk) {
    const int64_t here = math::min(chain_chunk, n - begin);
    for (int k = 0; k < chains; k++) {
      const T* source = x + start[k] + begin * inner;
      if (inner == 1)
        for_each_vector(here, [&](int64_t i, auto count) { load<A>(source + i, count).store(buffer[k] + i); });
      else
        for (int64_t i = 0; i < here; i++) buffer[k][i] = widen(source[i * inner]);
    }
    for (int64_t i = 0; i < here; i++)
      for (int k = 0; k < chains_together; k++) {
        chain[k] = step(chain[k], C(buffer[k][i]));
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

template <class T, class Step>
void cumulate(int64_t outer, int64_t n, int64_t inner, const T* x, T* out, int threads, Step step) {
  if (inner >= 8) {
    const int64_t blocks = (inner + 7) / 8;
    parallel_for(outer * blocks, double(n) * 4, threads, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; unit++) {
        const int64_t column = unit % blocks * 8, start = unit / blocks * n * inner + column;
        if (column + 8 <= inner)
          cumulate_columns(n, inner, x + start, out + start, step, Full());
        else
          cumulate_columns(n, inner, x + start, out + start, step, inner - column);
      }
    });
    return;
  }
  constexpr int together = chains_together;
  const int64_t chains = outer * inner, blocks = (chains + together - 1) / together;
  parallel_for(blocks, double(n) * together, threads, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * together; first < math::min(end * together, chains); first += together) {
      const int here = int(math::min<int64_t>(together, chains - first));
      int64_t start[together];
      for (int k = 0; k < here; k++) start[k] = (first + k) / inner * n * inner + (first + k) % inner;
      cumulate_chains(here, start, n, inner, x, out, step);
    }
  });
}

}  // namespace detail

// x and out are contiguous [outer, n, inner]; the chains run along n. op: 0 sum, 1 product, 2 log of the sum of exponentials.
template <class T>
void cumsum(int64_t op, int64_t outer, int64_t n, int64_t inner, const T* x, T* out, int64_t threads) {
  if (op == 0)
    detail::cumulate(outer, n, inner, x, out, int(threads), detail::CumulativeSum());
  else if (op == 1)
    detail::cumulate(outer, n, inner, x, out, int(threads), detail::CumulativeProduct());
  else
    detail::cumulate(outer, n, inner, x, out, int(threads), detail::CumulativeLogSumExp());
}

}  // namespace bi
