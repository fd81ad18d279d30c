// The sum over samples of gradients [samples, n].
//
// Numerics: neighbours are added, then neighbouring pairs, and so on: the sum of 2^k samples that start at a multiple of 2^k is the sum of
// its halves. What is left when samples is no power of two is added from the last and smallest part on. Every addition is rounded to T.
// docs/numerics.md section 13.
#pragma once

#include <type_traits>

#include "../common/sums.h"

namespace bi {

namespace detail {

template <class T, class A>
BI_INLINE Vec<A> rounded(Vec<A> x) {
  if constexpr (std::is_same_v<T, A>) {
    return x;
  } else {
    T elements[8];
    store(x, elements, Full());
    return load<A>(elements, Full());
  }
}

}  // namespace detail

// x is contiguous [samples, n], samples >= 1; out [n].
template <class T>
void sample_sum(int64_t samples, int64_t n, const T* x, T* out, int64_t threads) {
  using A = accumulator_t<T>;
  const int64_t vectors = (n + 7) / 8;
  parallel_for(vectors, double(samples), int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; v++) {
      const int64_t first = 8 * v;
      for_each_vector(math::min<int64_t>(8, n - first), [&](int64_t j, auto count) {
        // whole[k] is the sum of 2^k samples wherever bit k of the number of samples so far is set.
        Vec<A> whole[64];
        for (int64_t i = 0; i < samples; i++) {
          Vec<A> sum = load<A>(x + i * n + first + j, count);
          int k = 0;
          for (int64_t before = i; before & 1; before >>= 1) sum = detail::rounded<T, A>(whole[k++] + sum);
          whole[k] = sum;
        }
        int k = 0;
        while (!(samples >> k & 1)) k++;
        Vec<A> sum = whole[k];
        for (k++; samples >> k; k++)
          if (samples >> k & 1) sum = detail::rounded<T, A>(whole[k] + sum);
        store(sum, out + first + j, count);
      });
    }
  });
}

}  // namespace bi
