// softmax and log_softmax of rows.
//
// Numerics: m = exact maximum, e = exp(x - m), s = the 128-lane sum of e; softmax e/s, log_softmax (x - m) - log(s), rounded to T
// once. A NaN makes its row NaN, a row of only -inf too. docs/numerics.md sections 2, 5 and 6.
#pragma once

#include "../common/epilogue.h"
#include "../common/exponential.h"
#include "../common/prologue.h"

namespace bi {

namespace detail {

// The maximum of a row without NaN. A NaN may be dropped here: its own exponential brings it back into the denominator, which makes
// the whole row NaN.
template <class A, class T>
BI_INLINE A row_maximum(int64_t n, const T* x) {
  constexpr A lowest = -std::numeric_limits<A>::infinity();
  constexpr int vectors = accumulators<A>;
  Vec<A> largest[vectors];
  for (int j = 0; j < vectors; j++) largest[j] = Vec<A>::fill(lowest);
  int64_t i = 0;
  for (; i + 8 * vectors <= n; i += 8 * vectors) {
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++) largest[j] = larger(Vec<A>::load(x + i + 8 * j), largest[j]);
  }
  for_each_vector(n - i, [&](int64_t k, auto count) __attribute__((always_inline)) {
    largest[0] = larger(load<A>(x + i + k, count, lowest), largest[0]);
  });
  for (int half = vectors / 2; half >= 1; half /= 2)
    for (int j = 0; j < half; j++) largest[j] = larger(largest[j], largest[j + half]);
  return max_lanes(largest[0]);
}

// Beyond this length of a row the fold of its sum takes less time than a second look at its exponentials.
constexpr int64_t longest_softmax_together = 256;

// `count` <= rows_together short rows; their maxima and sums are found together.
template <class T>
inline void softmax_of_short_rows(bool log, int64_t count, int64_t n, const T* x, int64_t x_row, T* out) {
  using A = accumulator_t<T>;
  const int64_t padded = (n + 7) / 8 * 8;
  A* exponentials = scratch<A>(rows_together * padded);
  Vec<A> largest[rows_together];
  for (int64_t r = 0; r < rows_together; r++) largest[r] = Vec<A>::zero();
  for (int64_t r = 0; r < count; r++) {
    constexpr A lowest = -std::numeric_limits<A>::infinity();
    largest[r] = Vec<A>::fill(lowest);
    for_each_vector(n, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
      largest[r] = larger(load<A>(x + r * x_row + i, lanes, lowest), largest[r]);
    });
  }
  A maximum[rows_together], sum[rows_together];
  join_eight<Larger>(largest).store(maximum);
  for (int64_t r = 0; r < count; r++) {
    const Vec<A> m = Vec<A>::fill(maximum[r]);
    for_each_vector(n, [=](int64_t i, auto lanes) __attribute__((always_inline)) {
      first_lanes(exp_nonpositive(load<A>(x + r * x_row + i, lanes) - m), lanes).store(exponentials + r * padded + i);
    });
  }
  // Zeros behind the last term change no sum.
  lane_sums<A, sum_accumulators<A>>(count, padded, [=](int64_t r) { return sum_step<A>(exponentials + r * padded); }).store(sum);
  for (int64_t r = 0; r < count; r++) {
    if (log) {
      const Vec<A> m = Vec<A>::fill(maximum[r]), log_sum = Vec<A>::fill(math::log(sum[r]));
      for_each_vector(n, [=](int64_t i, auto lanes) __attribute__((always_inline)) {
        store((load<A>(x + r * x_row + i, lanes) - m) - log_sum, out + r * n + i, lanes);
      });
    } else {
      const Vec<A> denominator = Vec<A>::fill(sum[r]);
      for_each_vector(n, [=](int64_t i, auto lanes) __attribute__((always_inline)) {
        store(Vec<A>::load(exponentials + r * padded + i) / denominator, out + r * n + i, lanes);
      });
    }
  }
}

template <class A, class T>
inline void softmax_of_row(bool log, int64_t n, const T* row, A* exponentials, T* result) {
  const Vec<A> maximum = Vec<A>::fill(row_maximum<A>(n, row));
  if (log) {
    const A s = lane_sum<A>(n, [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
      return accumulator + first_lanes(exp_nonpositive(load<A>(row + i, count) - maximum), count);
    });
    const Vec<A> log_sum = Vec<A>::fill(math::log(s));
    for_each_vector(n, [=](int64_t i, auto count) __attribute__((always_inline)) {
      store((load<A>(row + i, count) - maximum) - log_sum, result + i, count);
    });
  } else {
    const A s = lane_sum<A>(n, [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
      const Vec<A> e = first_lanes(exp_nonpositive(load<A>(row + i, count) - maximum), count);
      e.store(exponentials + i);
      return accumulator + e;
    });
    const Vec<A> denominator = Vec<A>::fill(s);
    for_each_vector(n, [=](int64_t i, auto count) __attribute__((always_inline)) {
      store(Vec<A>::load(exponentials + i) / denominator, result + i, count);
    });
  }
}

// A row that all threads work on. Exponentials are taken twice: threads that divide what others stored would wait for their caches.
template <class T>
inline void softmax_of_long_row(bool log, int64_t n, const T* x, const Results<T>& results, int64_t row, int64_t threads) {
  using A = accumulator_t<T>;
  constexpr int64_t block = 4096;  // in which the row is shared where the order is free
  const int64_t blocks = (n + block - 1) / block;
  A* maxima = scratch<A>(blocks);
  parallel_for(blocks, double(block) * 0.125, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b++) maxima[b] = row_maximum<A>(math::min(block, n - b * block), x + b * block);
  });
  const Vec<A> maximum = Vec<A>::fill(row_maximum<A>(blocks, maxima));
  const A s = shared_lane_sum<A>(n, 1, threads, [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
    return accumulator + first_lanes(exp_nonpositive(load<A>(x + i, count) - maximum), count);
  });
  const Vec<A> denominator = Vec<A>::fill(log ? math::log(s) : s);
  parallel_for(blocks, double(block), int(threads), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * block, count = math::min(end * block, n) - first;
    T* out = results.part(row, first, count);
    for_each_vector(count, [=](int64_t i, auto lanes) __attribute__((always_inline)) {
      const Vec<A> distance = load<A>(x + first + i, lanes) - maximum;
      store(log ? distance - denominator : exp_nonpositive(distance) / denominator, out + i, lanes);
    });
    results.consume_part(row, first, count, out);
  });
}

}  // namespace detail

// x is rows x n with element stride 1 and x_row elements between rows, or comes from the prologue when it is not null; out is contiguous,
// and may be null where there is an epilogue. log: 0 softmax, 1 log_softmax.
template <class T>
void softmax(int64_t log, int64_t rows, int64_t n, const T* x, int64_t x_row, T* out, PrologueFunction prologue, void* prologue_context,
             RowEpilogueFunction epilogue, void* epilogue_context, int64_t threads) {
  using A = accumulator_t<T>;
  const Rows<T> source{x, x_row, n, prologue, prologue_context};
  const Results<T> results{out, n, epilogue, epilogue_context};
  if (threads_share_lanes(rows, n, 1, threads)) {
    for (int64_t r = 0; r < rows; r++) detail::softmax_of_long_row(log != 0, n, source.read_long(r, threads), results, r, threads);
    return;
  }
  parallel_for(rows, double(n), int(threads), [&](int64_t begin, int64_t end) {
    const bool together = n <= detail::longest_softmax_together;
    A* exponentials = log || together ? nullptr : scratch<A>(n + 7);
    for (int64_t r = begin; r < end; r += together ? rows_together : 1) {
      const int64_t count = together ? math::min(rows_together, end - r) : 1;
      const T* row = source.read(r, count);
      T* result = results.rows(r, count);
      if (together)
        detail::softmax_of_short_rows(log != 0, count, n, row, source.spacing(), result);
      else
        detail::softmax_of_row(log != 0, n, row, exponentials, result);
      results.consume_rows(r, count, result);
    }
  });
}

}  // namespace bi
