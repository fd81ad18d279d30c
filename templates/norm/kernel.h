// layer_norm, rms_norm, mean_square_norm and group_norm.
//
// Numerics: m = S/n (0 for rms_norm), d = x - m, q = the 128-lane sum of d*d in fma chains, rstd = 1 / sqrt(q/n + eps), y = d * rstd;
// with weight and bias fma(y, w, b), else y * w, y + b or y, rounded to T once. mean_square_norm: rms_norm, but each square is rounded
// before it is added. docs/numerics.md sections 2 and 7.
#pragma once

#include "../common/epilogue.h"
#include "../common/prologue.h"

namespace bi {

namespace detail {

template <class A>
struct Moments {
  A mean, rstd;
};

constexpr double term_cost = 0.25;  // of one element in one of the sums, in element operations

// Steps of the sum of squares: of deviations, each with one rounding of product and addition, or of the terms, rounded as ops of their own.
struct ContractedSquares {
  template <class A, class T>
  static BI_INLINE auto step(const T* x, A mean) {
    return sum_squares_step(x, mean);
  }
};
struct RoundedSquares {
  template <class A, class T>
  static BI_INLINE auto step(const T* x, A) {
    return [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
      const Vec<A> term = load<A>(x + i, count);
      return accumulator + term * term;
    };
  }
};

// rms_norm is layer_norm with a mean of +0: x - 0 is x.
template <class Squares, class A, class T>
BI_INLINE Moments<A> row_moments(bool centered, int64_t n, A eps, const T* x) {
  const A mean = centered ? sum_row<A>(n, x) / A(n) : A(0);
  const A squares = lane_sum<A>(n, Squares::step(x, mean));
  return {mean, A(1) / math::sqrt(squares / A(n) + eps)};
}

// row_moments of `count` <= rows_together rows.
template <class Squares, class A, class T>
BI_INLINE void moments_of_rows(bool centered, int64_t count, int64_t n, A eps, const T* x, int64_t x_row, A* mean, A* rstd) {
  if (n > longest_together) {
    for (int64_t r = 0; r < count; r++) {
      const Moments<A> moments = row_moments<Squares>(centered, n, eps, x + r * x_row);
      mean[r] = moments.mean, rstd[r] = moments.rstd;
    }
    return;
  }
  const Vec<A> terms = Vec<A>::fill(A(n));
  Vec<A> means = Vec<A>::zero();
  if (centered)
    means = lane_sums<A, sum_accumulators<A>>(count, n, [=](int64_t r) { return sum_step<A>(x + r * x_row); }) / terms;
  means.store(mean);
  const Vec<A> squares = lane_sums<A>(count, n, [=](int64_t r) { return Squares::step(x + r * x_row, mean[r]); });
  (Vec<A>::fill(A(1)) / square_root(squares / terms + Vec<A>::fill(eps))).store(rstd);
}

template <bool has_weight, bool has_bias, class A, class T>
BI_INLINE void normalize_row(int64_t n, Moments<A> moments, const T* x, const T* weight, const T* bias, T* out) {
  const Vec<A> mean = Vec<A>::fill(moments.mean), rstd = Vec<A>::fill(moments.rstd);
  for_each_vector(n, [=](int64_t i, auto count) __attribute__((always_inline)) {
    Vec<A> y = (load<A>(x + i, count) - mean) * rstd;
    if constexpr (has_weight && has_bias)
      y = fma(y, load<A>(weight + i, count), load<A>(bias + i, count));
    else if constexpr (has_weight)
      y = y * load<A>(weight + i, count);
    else if constexpr (has_bias)
      y = y + load<A>(bias + i, count);
    store(y, out + i, count);
  });
}

// weight and bias, one element for each of x or null.
template <class A, class T>
inline void normalize_row(int64_t n, Moments<A> moments, const T* x, const T* weight, const T* bias, T* out) {
  if (weight && bias)
    normalize_row<true, true>(n, moments, x, weight, bias, out);
  else if (weight)
    normalize_row<true, false>(n, moments, x, weight, bias, out);
  else if (bias)
    normalize_row<false, true>(n, moments, x, weight, bias, out);
  else
    normalize_row<false, false>(n, moments, x, weight, bias, out);
}

// One channel of group_norm: the same weight and bias for every element.
template <class A, class T>
inline void normalize_channel(int64_t n, Moments<A> moments, const T* x, const T* weight, const T* bias, T* out) {
  const Vec<A> mean = Vec<A>::fill(moments.mean), rstd = Vec<A>::fill(moments.rstd);
  const Vec<A> w = weight ? Vec<A>::fill(widen(*weight)) : Vec<A>::zero(), b = bias ? Vec<A>::fill(widen(*bias)) : Vec<A>::zero();
  const bool has_weight = weight != nullptr, has_bias = bias != nullptr;
  for_each_vector(n, [=](int64_t i, auto count) __attribute__((always_inline)) {
    Vec<A> y = (load<A>(x + i, count) - mean) * rstd;
    if (has_weight && has_bias)
      y = fma(y, w, b);
    else if (has_weight)
      y = y * w;
    else if (has_bias)
      y = y + b;
    store(y, out + i, count);
  });
}

// Moments of a row that all threads work on.
template <class Squares, class A, class T>
inline Moments<A> moments_of_long_row(bool centered, int64_t n, A eps, const T* x, int64_t threads) {
  const A mean = centered ? shared_lane_sum<A>(n, term_cost, threads, sum_step<A>(x)) / A(n) : A(0);
  const A squares = shared_lane_sum<A>(n, term_cost, threads, Squares::step(x, mean));
  return {mean, A(1) / math::sqrt(squares / A(n) + eps)};
}

// The rows of `source`, normalised, to `results`; see norm for the rest.
template <class Squares, class T>
inline void normalize_rows(bool centered, int64_t rows, int64_t n, double eps, const Rows<T>& source, const T* weight, const T* bias,
                           const Results<T>& results, accumulator_t<T>* mean_out, accumulator_t<T>* rstd_out, int64_t threads) {
  using A = accumulator_t<T>;
  const bool normalizes = results.out || results.epilogue;
  if (threads_share_lanes(rows, n, term_cost, threads)) {
    for (int64_t r = 0; r < rows; r++) {
      const T* row = source.read_long(r, threads);
      const Moments<A> moments = moments_of_long_row<Squares>(centered, n, A(eps), row, threads);
      if (mean_out) mean_out[r] = moments.mean;
      if (rstd_out) rstd_out[r] = moments.rstd;
      if (!normalizes) continue;
      parallel_for(n, term_cost, int(threads), [&](int64_t begin, int64_t end) {
        T* part = results.part(r, begin, end - begin);
        normalize_row(end - begin, moments, row + begin, weight ? weight + begin : nullptr, bias ? bias + begin : nullptr, part);
        results.consume_part(r, begin, end - begin, part);
      });
    }
    return;
  }
  parallel_for(rows, double(n) * 0.5, int(threads), [&](int64_t begin, int64_t end) {
    const int64_t group = n > longest_together ? 1 : rows_together;
    for (int64_t first = begin; first < end; first += group) {
      const int64_t count = math::min(group, end - first);
      const T* row = source.read(first, count);
      const int64_t spacing = source.spacing();
      A mean[rows_together], rstd[rows_together];
      moments_of_rows<Squares>(centered, count, n, A(eps), row, spacing, mean, rstd);
      for (int64_t r = 0; r < count; r++) {
        if (mean_out) mean_out[first + r] = mean[r];
        if (rstd_out) rstd_out[first + r] = rstd[r];
      }
      if (!normalizes) continue;
      T* normalized = results.rows(first, count);
      for (int64_t r = 0; r < count; r++)
        normalize_row(n, Moments<A>{mean[r], rstd[r]}, row + r * spacing, weight, bias, normalized + r * n);
      results.consume_rows(first, count, normalized);
    }
  });
}

}  // namespace detail

// x is rows x n with element stride 1 and x_row elements between rows, or comes from the prologue when it is not null; out is contiguous.
// kind: 0 layer_norm, 1 rms_norm. weight, bias (n each), out (then only an epilogue reads the rows, if there is one), mean_out and rstd_out
// (rows each) may be null.
template <class T>
void norm(int64_t kind, int64_t rows, int64_t n, double eps, const T* x, int64_t x_row, const T* weight, const T* bias, T* out,
          accumulator_t<T>* mean_out, accumulator_t<T>* rstd_out, PrologueFunction prologue, void* prologue_context,
          RowEpilogueFunction epilogue, void* epilogue_context, int64_t threads) {
  detail::normalize_rows<detail::ContractedSquares>(kind == 0, rows, n, eps, Rows<T>{x, x_row, n, prologue, prologue_context}, weight, bias,
                                                    Results<T>{out, n, epilogue, epilogue_context}, mean_out, rstd_out, threads);
}

// As norm, without bias and statistics.
template <class T>
void mean_square_norm(int64_t rows, int64_t n, double eps, const T* x, int64_t x_row, const T* weight, T* out, PrologueFunction prologue,
                      void* prologue_context, RowEpilogueFunction epilogue, void* epilogue_context, int64_t threads) {
  const T* const no_bias = nullptr;
  accumulator_t<T>* const unwanted = nullptr;
  detail::normalize_rows<detail::RoundedSquares>(false, rows, n, eps, Rows<T>{x, x_row, n, prologue, prologue_context}, weight, no_bias,
                                                 Results<T>{out, n, epilogue, epilogue_context}, unwanted, unwanted, threads);
}

// x and out are contiguous [batch, channels, spatial], or x comes from the prologue, a group being a row, when it is not null; weight and
// bias (channels each), out, mean_out and rstd_out (batch * groups each) may be null.
template <class T>
void group_norm(int64_t batch, int64_t channels, int64_t spatial, int64_t groups, double eps, const T* x, const T* weight, const T* bias,
                T* out, accumulator_t<T>* mean_out, accumulator_t<T>* rstd_out, PrologueFunction prologue, void* prologue_context,
                int64_t threads) {
  using A = accumulator_t<T>;
  if (groups == 0) return;
  const int64_t group_channels = channels / groups, n = group_channels * spatial;
  const Rows<T> source{x, n, n, prologue, prologue_context};
  parallel_for(batch * groups, double(n) * 0.5, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++) {
      const T* group = source.read(g, 1);
      const detail::Moments<A> moments = detail::row_moments<detail::ContractedSquares>(true, n, A(eps), group);
      if (mean_out) mean_out[g] = moments.mean;
      if (rstd_out) rstd_out[g] = moments.rstd;
      if (!out) continue;
      const int64_t first = g % groups * group_channels;
      const T* group_weight = weight ? weight + first : nullptr;
      const T* group_bias = bias ? bias + first : nullptr;
      if (spatial == 1) {
        detail::normalize_row(n, moments, group, group_weight, group_bias, out + g * n);
        continue;
      }
      for (int64_t c = 0; c < group_channels; c++)
        detail::normalize_channel(spatial, moments, group + c * spatial, group_weight ? group_weight + c : nullptr,
                                  group_bias ? group_bias + c : nullptr, out + g * n + c * spatial);
    }
  });
}

}  // namespace bi
