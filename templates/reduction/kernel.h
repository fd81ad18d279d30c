// sum, mean, prod, var and std over any set of dims.
//
// Numerics: S is the 128-lane sum over the reduced dims in row-major order. mean = S/n; var: m = S/n, then the lane sum of (x - m)^2 in
// fma chains over max(0, n - correction); std its square root; prod has * for +. var and std of float are computed in double. One rounding
// to T at the end. docs/numerics.md sections 2 and 4.
#pragma once

#include "../common/prologue.h"

namespace bi {

namespace reduction {

constexpr int max_dims = 64;

struct Dims {
  int count = 0;
  int64_t numel = 1;
  int64_t size[max_dims], stride[max_dims];

  // Drops dims of size 1 and merges neighbours that are one run in memory. Row-major order, which numbers the lanes, stays.
  Dims(int64_t dims, const int64_t* sizes, const int64_t* strides) {
    for (int64_t d = 0; d < dims; d++) {
      numel *= sizes[d];
      if (sizes[d] == 1) continue;
      if (count > 0 && stride[count - 1] == strides[d] * sizes[d]) {
        size[count - 1] *= sizes[d];
        stride[count - 1] = strides[d];
      } else {
        size[count] = sizes[d];
        stride[count++] = strides[d];
      }
    }
  }
  // Memory offset of the element with this row-major index.
  int64_t offset(int64_t index) const {
    if (count == 0) return 0;
    int64_t result = 0;
    for (int d = count - 1; d > 0; d--) {
      result += index % size[d] * stride[d];
      index /= size[d];
    }
    result += index * stride[0];
    return result;
  }
};

template <class A, class T>
inline void round(int64_t count, const A* values, T* out, int64_t out_stride) {
  if (out_stride == 1)
    for_each_vector(count, [=](int64_t i, auto lanes) { store(load<A>(values + i, lanes), out + i, lanes); });
  else
    for (int64_t i = 0; i < count; i++) narrow(values[i], out + i * out_stride);
}

// What a variance is computed in: squares of rounded differences would cost float a bit of its result.
template <class T>
struct VarianceAccumulator {
  using type = accumulator_t<T>;
};
template <>
struct VarianceAccumulator<float> {
  using type = double;
};

// What the sums become: sum and mean of the terms, var and std of their squared deviations.
template <class A>
struct Finish {
  A n, divisor;
  bool divides, takes_root;

  // Finishes `count` totals in place and rounds them to out.
  template <bool squares, class T>
  BI_INLINE void write(int64_t count, A* total, T* out, int64_t out_stride) const {
    const A denominator = divisor;
    if (divides)
      for (int64_t i = 0; i < count; i++) total[i] = total[i] / denominator;
    if (squares && takes_root)
      for (int64_t i = 0; i < count; i++) total[i] = math::sqrt(total[i]);
    round(count, total, out, out_stride);
  }
};

// Terms begin..end in row-major order, widened, into `buffer`.
template <class T, class A>
inline void gather(const Dims& dims, const T* x, int64_t begin, int64_t end, A* buffer) {
  if (dims.count == 0) {
    buffer[0] = widen(x[0]);
    return;
  }
  const int64_t inner = dims.size[dims.count - 1], stride = dims.stride[dims.count - 1];
  while (begin < end) {
    const int64_t run = math::min(inner - begin % inner, end - begin);
    const T* source = x + dims.offset(begin);
    if (stride == 1)
      for_each_vector(run, [&](int64_t i, auto count) { store(load<A>(source + i, count), buffer + i, count); });
    else
#pragma GCC unroll 4
      for (int64_t i = 0; i < run; i++) buffer[i] = widen(source[i * stride]);
    begin += run;
    buffer += run;
  }
}

constexpr int64_t gather_block = 16 * sum_lanes;

// Any strides: blocks of terms are gathered into a contiguous buffer and go on with the lanes where the last block stopped.
template <class T, class A, class Step>
inline void for_each_block(const Dims& dims, const T* x, A* buffer, const Step& step) {
  for (int64_t begin = 0; begin < dims.numel; begin += gather_block) {
    const int64_t end = math::min(begin + gather_block, dims.numel);
    gather(dims, x, begin, end, buffer);
    step(end - begin);
  }
}

template <class T, class A>
inline A gathered_sum(const Dims& dims, const T* x, A* buffer) {
  Vec<A> lanes[16];
  for (int j = 0; j < 16; j++) lanes[j] = Vec<A>::zero();
  for_each_block(dims, x, buffer, [&](int64_t n) {
    accumulate_lanes(lanes, n, [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
      return accumulator + load<A>(buffer + i, count);
    });
  });
  return fold_lanes<16>(lanes);
}

template <class T, class A>
inline A gathered_squares(const Dims& dims, const T* x, A center, A* buffer) {
  Vec<A> lanes[16];
  for (int j = 0; j < 16; j++) lanes[j] = Vec<A>::zero();
  const Vec<A> c = Vec<A>::fill(center);
  for_each_block(dims, x, buffer, [&](int64_t n) {
    accumulate_lanes(lanes, n, [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
      const Vec<A> deviation = first_lanes(load<A>(buffer + i, count) - c, count);
      return fma(deviation, deviation, accumulator);
    });
  });
  return fold_lanes<16>(lanes);
}

template <class T, class A>
inline A gathered_product(const Dims& dims, const T* x, A* buffer) {
  Vec<A> lanes[16];
  for (int j = 0; j < 16; j++) lanes[j] = Vec<A>::fill(A(1));
  for_each_block(dims, x, buffer, [&](int64_t n) {
    accumulate_lanes(lanes, n, [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
      return accumulator * load<A>(buffer + i, count, A(1));
    });
  });
  A lane[sum_lanes];
  for (int j = 0; j < 16; j++) lanes[j].store(lane + 8 * j);
  for (int64_t half = sum_lanes / 2; half >= 1; half /= 2)
    for (int64_t j = 0; j < half; j++) lane[j] = lane[j] * lane[j + half];
  return lane[0];
}

// Reduces up to column_block columns that lie next to each other in x.
template <bool squares, class T, class A>
inline void reduce_columns(const Finish<A>& finish, int64_t n, const int64_t* offset, const T* x, int64_t columns, T* out,
                           int64_t out_stride, int64_t threads) {
  A total[column_block];
  column_sums(
      n, columns, threads,
      [=](auto accumulator, int64_t i, int64_t c, auto count) __attribute__((always_inline)) {
        return accumulator + load<A>(x + offset[i] + c, count);
      },
      total);
  if constexpr (squares) {
    A mean[column_block];
    for (int64_t c = 0; c < columns; c++) mean[c] = total[c] / finish.n;
    column_sums(
        n, columns, threads,
        [=, &mean](auto accumulator, int64_t i, int64_t c, auto count) __attribute__((always_inline)) {
          const Vec<A> deviation = load<A>(x + offset[i] + c, count) - Vec<A>::load(mean + c);
          return fma(deviation, deviation, accumulator);
        },
        total);
  }
  finish.template write<squares>(columns, total, out, out_stride);
}

// Reduces `rows` <= rows_together contiguous rows. Rows that are read twice stay in L1 in between.
template <bool squares, class T, class A>
BI_INLINE void reduce_rows(const Finish<A>& finish, int64_t rows, int64_t n, const T* const* row, T* out) {
  A total[rows_together];
  if constexpr (squares) {
    if (n > longest_together) {
      for (int64_t r = 0; r < rows; r++) total[r] = sum_squares_row(n, row[r], sum_row<A>(n, row[r]) / finish.n);
      return finish.template write<squares>(rows, total, out, 1);
    }
  }
  lane_sums<A, sum_accumulators<A>>(rows, n, [&](int64_t r) { return sum_step<A>(row[r]); }).store(total);
  if constexpr (squares) {
    A mean[rows_together];
    for (int64_t r = 0; r < rows; r++) mean[r] = total[r] / finish.n;
    lane_sums<A>(rows, n, [&](int64_t r) { return sum_squares_step(row[r], mean[r]); }).store(total);
  }
  finish.template write<squares>(rows, total, out, 1);
}

// Sums, or with `squares` sums of squared deviations from the mean. The schedules: rows, columns, anything else. A is what is accumulated
// in.
template <bool squares, class T, class A>
void reduce(const Finish<A>& finish, const Dims& outer, const Dims& reduced, const T* x, T* out, int64_t threads) {
  const int64_t outputs = outer.numel, n = reduced.numel;
  if (outputs == 0) return;
  const double term_cost = squares ? 0.25 : 0.125, cost = double(n) * term_cost;

  if (reduced.count == 1 && reduced.stride[0] == 1) {
    // A plain sum waits for memory, and two threads that read every other piece of a row wait longer than one.
    if ((squares || threads >= 8) && threads_share_lanes(outputs, n, term_cost, threads)) {
      for (int64_t o = 0; o < outputs; o++) {
        const T* row = x + outer.offset(o);
        A total = shared_lane_sum<A>(n, term_cost, threads, sum_step<A>(row));
        if constexpr (squares) total = shared_lane_sum<A>(n, term_cost, threads, sum_squares_step(row, total / finish.n));
        finish.template write<squares>(1, &total, out + o, 1);
      }
      return;
    }
    parallel_for(outputs, cost, int(threads), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; o += rows_together) {
        const int64_t rows = math::min(rows_together, end - o);
        const T* row[rows_together];
        for (int64_t r = 0; r < rows; r++) row[r] = x + outer.offset(o + r);
        reduce_rows<squares>(finish, rows, n, row, out + o);
      }
    });
    return;
  }

  int contiguous = -1;  // the outer dim along which outputs are columns next to each other in memory
  for (int d = 0; d < outer.count; d++)
    if (outer.stride[d] == 1 && outer.size[d] >= 8) contiguous = d;
  if (n > 0 && contiguous >= 0) {
    int64_t* offset = scratch<int64_t>(n);
    for (int64_t i = 0; i < n; i++) offset[i] = reduced.offset(i);
    int64_t out_stride = 1;
    for (int d = contiguous + 1; d < outer.count; d++) out_stride *= outer.size[d];
    const int64_t columns = outer.size[contiguous], others = outputs / columns;
    // Columns that are few for all threads are shared in runs of two cache lines of floats at least, unless the threads share their lanes.
    const bool together = others < threads && threads_share_columns(n, columns);
    const int64_t share = together ? column_block : (outputs / threads + 31) / 32 * 32;
    const int64_t block = math::min(column_block, math::max<int64_t>(share, 32)), blocks = (columns + block - 1) / block;
    const auto reduce_blocks = [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; unit++) {
        // `other` numbers the outputs of all outer dims but the contiguous one.
        const int64_t other = unit / blocks, first = unit % blocks * block;
        const int64_t index = other / out_stride * out_stride * columns + other % out_stride, target = index + first * out_stride;
        reduce_columns<squares>(finish, n, offset, x + outer.offset(index) + first, math::min(block, columns - first), out + target,
                                out_stride, together ? threads : 1);
      }
    };
    if (together)
      reduce_blocks(0, others * blocks);
    else
      parallel_for(others * blocks, 2 * cost * double(math::min(columns, block)), int(threads), reduce_blocks);
    return;
  }

  parallel_for(outputs, 8 * cost, int(threads), [&](int64_t begin, int64_t end) {
    A* buffer = scratch<A>(gather_block);
    for (int64_t o = begin; o < end; o++) {
      const T* source = x + outer.offset(o);
      A total = gathered_sum(reduced, source, buffer);
      if constexpr (squares) total = gathered_squares(reduced, source, total / finish.n, buffer);
      finish.template write<squares>(1, &total, out + o, 1);
    }
  });
}

// Rows up to this length are computed once and read from the cache; of longer ones blocks are computed again for every sweep.
constexpr int64_t longest_computed = 8192, shared_block = 65536;

// The sum of a computed row that is too long to be kept: the prologue fills block after block, and the lanes go on where the last one
// stopped. All threads fill a block and then share its lanes when `shared` is set; pieces of their own lanes would be too short to compute.
template <class A, class T, class StepOf>
inline A sum_computed(const Rows<T>& source, int64_t row, double cost, bool shared, int64_t threads, const StepOf& step_of) {
  Vec<A> lanes[16];
  for (int j = 0; j < 16; j++) lanes[j] = Vec<A>::zero();
  const int64_t block = shared ? shared_block : gather_block;
  T* terms = scratch<T, 2>(block);
  for (int64_t begin = 0; begin < source.n; begin += block) {
    const int64_t count = math::min(block, source.n - begin);
    if (shared) {
      parallel_for(threads, double(count) / double(threads), int(threads), [&](int64_t first, int64_t last) {
        // Whole lines of floats, so that no two threads write to one.
        const int64_t piece = (count / threads + 15) / 16 * 16, from = math::min(first * piece, count);
        const int64_t to = last == threads ? count : math::min(last * piece, count);
        source.fill(row, begin + from, to - from, terms + from);
      });
      for_each_share_of_lanes(count, cost, threads, [&](auto group, int first, int last) {
        accumulate_lanes<A, math::min(decltype(group)::value, accumulators<A>)>(lanes, count, step_of(terms), first, last);
      });
    } else {
      source.fill(row, begin, count, terms);
      accumulate_lanes(lanes, count, step_of(terms));
    }
  }
  return fold_lanes<16>(lanes);
}

// As reduce, of rows that the prologue computes.
template <bool squares, class T, class A>
void reduce_computed(const Finish<A>& finish, int64_t outputs, const Rows<T>& source, T* out, int64_t threads) {
  const int64_t n = source.n;
  const double term_cost = squares ? 1 : 0.5;
  // Two threads take as long as one for it.
  const bool shared = threads >= 4 && threads_share_lanes(outputs, n, term_cost, threads);
  const auto reduce_range = [&](int64_t begin, int64_t end) {
    if (n <= longest_computed) {
      const int64_t group = n > longest_together ? 1 : rows_together;
      for (int64_t o = begin; o < end; o += group) {
        const int64_t rows = math::min(group, end - o);
        const T* first = source.read(o, rows);
        const T* row[rows_together];
        for (int64_t r = 0; r < rows; r++) row[r] = first + r * n;
        reduce_rows<squares>(finish, rows, n, row, out + o);
      }
      return;
    }
    for (int64_t o = begin; o < end; o++) {
      A total = sum_computed<A>(source, o, term_cost, shared, threads, [](const T* x) { return sum_step<A>(x); });
      if constexpr (squares) {
        const A mean = total / finish.n;
        total = sum_computed<A>(source, o, term_cost, shared, threads, [=](const T* x) { return sum_squares_step(x, mean); });
      }
      finish.template write<squares>(1, &total, out + o, 1);
    }
  };
  if (shared)
    reduce_range(0, outputs);
  else
    parallel_for(outputs, double(n) * term_cost, int(threads), reduce_range);
}

}  // namespace reduction

// Of all reductions: x viewed as outer dims by reduced dims, strides in elements (0 allowed), or computed by the prologue, as a row for each
// output, when it is not null; out is contiguous over the outer dims in their order. Each is a kernel of its own, so that a model compiles
// those it calls.

// sum, or mean where `mean` is not 0.
template <class T>
void reduce_sum(int64_t mean, int64_t outer_dims, const int64_t* outer_size, const int64_t* outer_stride, int64_t reduced_dims,
                const int64_t* reduced_size, const int64_t* reduced_stride, const T* x, T* out, PrologueFunction prologue,
                void* prologue_context, int64_t threads) {
  using namespace reduction;
  using A = accumulator_t<T>;
  const Dims outer(outer_dims, outer_size, outer_stride), reduced(reduced_dims, reduced_size, reduced_stride);
  const Finish<A> finish{A(reduced.numel), A(reduced.numel), mean != 0, false};
  if (prologue)
    reduce_computed<false>(finish, outer.numel, Rows<T>{x, 0, reduced.numel, prologue, prologue_context}, out, threads);
  else
    reduce<false, T>(finish, outer, reduced, x, out, threads);
}

// var, or std where `root` is not 0.
template <class T>
void reduce_var(int64_t root, double correction, int64_t outer_dims, const int64_t* outer_size, const int64_t* outer_stride,
                int64_t reduced_dims, const int64_t* reduced_size, const int64_t* reduced_stride, const T* x, T* out,
                PrologueFunction prologue, void* prologue_context, int64_t threads) {
  using namespace reduction;
  using A = typename VarianceAccumulator<T>::type;
  const Dims outer(outer_dims, outer_size, outer_stride), reduced(reduced_dims, reduced_size, reduced_stride);
  const A n = A(reduced.numel), divisor = math::max(n - A(correction), A(0));
  const Finish<A> finish{n, divisor, true, root != 0};
  if (prologue)
    reduce_computed<true>(finish, outer.numel, Rows<T>{x, 0, reduced.numel, prologue, prologue_context}, out, threads);
  else
    reduce<true, T>(finish, outer, reduced, x, out, threads);
}

// prod, whatever the strides: no model spends time here.
template <class T>
void reduce_prod(int64_t outer_dims, const int64_t* outer_size, const int64_t* outer_stride, int64_t reduced_dims,
                 const int64_t* reduced_size, const int64_t* reduced_stride, const T* x, T* out, int64_t threads) {
  using namespace reduction;
  using A = accumulator_t<T>;
  const Dims outer(outer_dims, outer_size, outer_stride), reduced(reduced_dims, reduced_size, reduced_stride);
  parallel_for(outer.numel, double(reduced.numel), int(threads), [&](int64_t begin, int64_t end) {
    A* buffer = scratch<A>(gather_block);
    for (int64_t o = begin; o < end; o++) narrow(gathered_product(reduced, x + outer.offset(o), buffer), out + o);
  });
}

}  // namespace bi
