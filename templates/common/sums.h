// Lane sums of 128 lanes: the sum behind every reduction, norm and softmax denominator.
//
// Numerics: term i goes to lane i mod 128, each lane adds its terms in ascending order, the lanes fold by halves, and a final
// +0 turns -0 into +0. Rows and columns below are two schedules of that one expression, so they give the same bits.
// docs/numerics.md section 2 is the definition.
#pragma once

#include "fold.h"
#include "vector.h"

namespace bi {

constexpr int64_t sum_lanes = 128;

// Tag in place of a lane count: all eight lanes of a vector are in use. One generic lambda then serves the body of a row
// (Full) and its last, partial vector (a count).
struct Full {};

template <class A, class T>
BI_INLINE Vec<A> load(const T* p, Full, A = 0) {
  return Vec<A>::load(p);
}
template <class A, class T>
BI_INLINE Vec<A> load(const T* p, int64_t count, A other = 0) {
  return Vec<A>::load(p, count, other);
}
template <class A, class T>
BI_INLINE void store(Vec<A> x, T* p, Full) {
  x.store(p);
}
template <class A, class T>
BI_INLINE void store(Vec<A> x, T* p, int64_t count) {
  x.store(p, count);
}
// The first `count` lanes of x, +0 in the rest. A partial vector's unused lanes hold arithmetic on padding, which may be NaN
// (inf - inf), and must not reach a lane of the sum.
template <class A>
BI_INLINE Vec<A> first_lanes(Vec<A> x, Full) {
  return x;
}
template <class A>
BI_INLINE Vec<A> first_lanes(Vec<A> x, int64_t count) {
  return x.first_lanes(count);
}

// In place of an accumulator that has no term yet: a first term is taken as it is, which saves short sums half of their additions. A lane
// of -0 that should be +0 is all that may come of it, and step 3 of the lane sum makes that invisible.
struct Nothing {};

template <class A>
BI_INLINE Vec<A> operator+(Nothing, Vec<A> x) {
  return x;
}
template <class A>
BI_INLINE Vec<A> fma(Vec<A> a, Vec<A> b, Nothing) {
  return a * b;
}

// Calls body(i, Full()) for each whole vector of 0..n and body(i, count) for the rest, if any.
template <class Body>
BI_INLINE void for_each_vector(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) body(i, Full());
  if (i < n) body(i, n - i);
}

// Uninitialised memory of the calling thread that grows and is reused; one buffer for each (type, slot).
template <class T, int slot = 0>
inline T* scratch(int64_t count) {
  struct Buffer {
    T* data = nullptr;
    int64_t capacity = 0;
    ~Buffer() { delete[] data; }
    void grow(int64_t count) {
      delete[] data;
      data = nullptr, capacity = 0;
      data = new T[size_t(count)];
      capacity = count;
    }
  };
  static thread_local Buffer buffer;
  if (count > buffer.capacity) buffer.grow(count);
  return buffer.data;
}

// Vectors whose lanes are accumulated at one time: eight registers, enough to hide the latency of an addition and few enough
// to leave room for the operands.
template <class A>
constexpr int accumulators = sizeof(A) == 4 ? 8 : 4;

// Adds terms 0..n to vectors first..last of the 16 vectors of lanes; term 0 belongs to lane 0. step(accumulator, i, count) returns the
// accumulator with the terms i..i+8 (the first `count` of them) taken in.
template <class A, int group = accumulators<A>, class Step>
BI_INLINE void accumulate_lanes(Vec<A>* lanes, int64_t n, const Step& step, int first = 0, int last = 16) {
  // A block is read once for each group of accumulators, so it has to fit the first-level cache.
  constexpr int64_t block = 32 * sum_lanes;
  const int64_t whole = n - n % sum_lanes;
  for (int64_t begin = 0; begin < whole; begin += block) {
    const int64_t end = math::min(begin + block, whole);
    for (int member = first; member < last; member += group) {
      Vec<A> accumulator[group];
      for (int j = 0; j < group; j++) accumulator[j] = lanes[member + j];
      for (int64_t i = begin + 8 * member; i < end; i += sum_lanes) {
#pragma GCC unroll 16
        for (int j = 0; j < group; j++) accumulator[j] = step(accumulator[j], i + 8 * j, Full());
      }
      for (int j = 0; j < group; j++) lanes[member + j] = accumulator[j];
    }
  }
  for_each_vector(n - whole, [&](int64_t i, auto count) __attribute__((always_inline)) {
    if (i / 8 >= first && i / 8 < last) lanes[i / 8] = step(lanes[i / 8], whole + i, count);
  });
}

// Folds `count` (a power of two) vectors of lanes by halves into one.
template <int count, class A>
BI_INLINE Vec<A> fold_vectors(Vec<A>* lanes) {
#pragma GCC unroll 4
  for (int half = count / 2; half >= 1; half /= 2)
#pragma GCC unroll 8
    for (int j = 0; j < half; j++) lanes[j] = lanes[j] + lanes[j + half];
  return lanes[0];
}

// eight_lanes for 8 * vectors / 2 < n <= 8 * vectors terms, without a loop. Lanes without a term are +0 and adding +0 to a lane changes
// nothing, so the vectors that no term reaches are left out.
template <class A, int vectors, class Step>
BI_INLINE Vec<A> few_eight_lanes(int64_t n, const Step& step) {
  Vec<A> lanes[vectors];
#pragma GCC unroll 16
  for (int j = 0; j < vectors; j++) {
    const int64_t left = n - 8 * j;
    if (j < vectors / 2 || left >= 8)
      lanes[j] = step(Nothing(), 8 * j, Full());
    else
      lanes[j] = left > 0 ? step(Nothing(), 8 * j, left) : Vec<A>::zero();
  }
  return fold_vectors<vectors>(lanes);
}

// The lane sum of n terms up to its last eight lanes; see accumulate_lanes for `step`.
template <class A, int group = accumulators<A>, class Step>
BI_INLINE Vec<A> eight_lanes(int64_t n, const Step& step) {
  Vec<A> lanes[16];
  if (n < sum_lanes) {
    // As in few_eight_lanes, for any number of vectors.
    int used = 0;
    for_each_vector(n, [&](int64_t i, auto count) __attribute__((always_inline)) {
      lanes[used++] = step(Nothing(), i, count);
    });
    if (used == 0) return Vec<A>::zero();
    int width = 1;
    while (width < used) width *= 2;
    for (int half = width / 2; half >= 1; half /= 2)
      for (int j = 0; j < half; j++)
        if (j + half < used) lanes[j] = lanes[j] + lanes[j + half];
    return lanes[0];
  }
  for (int j = 0; j < 16; j++) lanes[j] = Vec<A>::zero();
  accumulate_lanes<A, group>(lanes, n, step);
  return fold_vectors<16>(lanes);
}

// The lane sum of n terms.
template <class A, int group = accumulators<A>, class Step>
BI_INLINE A lane_sum(int64_t n, const Step& step) {
  const Vec<A> lanes = eight_lanes<A, group>(n, step);
  return fold_lanes<1>(&lanes);
}

// Rows whose sums are folded together, and how long they may be where they are read again after the sum: eight of them fit L1.
constexpr int64_t rows_together = 8, longest_together = 768;

// totals[r] = the lane sum of n terms of row r, for `rows` <= rows_together rows; step_of(r) is the step of that row.
// Short rows would spend most of their time on the fold and on finding out how long they are.
template <class A, int group = accumulators<A>, class StepOf>
BI_INLINE Vec<A> lane_sums(int64_t rows, int64_t n, const StepOf& step_of) {
  Vec<A> lanes[rows_together];
  if (n <= 8)
    for (int64_t r = 0; r < rows; r++) lanes[r] = few_eight_lanes<A, 1>(n, step_of(r));
  else if (n <= 16)
    for (int64_t r = 0; r < rows; r++) lanes[r] = few_eight_lanes<A, 2>(n, step_of(r));
  else if (n <= 32)
    for (int64_t r = 0; r < rows; r++) lanes[r] = few_eight_lanes<A, 4>(n, step_of(r));
  else if (n <= 64)
    for (int64_t r = 0; r < rows; r++) lanes[r] = few_eight_lanes<A, 8>(n, step_of(r));
  else if (n <= sum_lanes)
    for (int64_t r = 0; r < rows; r++) lanes[r] = few_eight_lanes<A, 16>(n, step_of(r));
  else
    for (int64_t r = 0; r < rows; r++) lanes[r] = eight_lanes<A, group>(n, step_of(r));
  for (int64_t r = rows; r < rows_together; r++) lanes[r] = Vec<A>::zero();
  return fold_eight(lanes);
}

// Steps of the two sums that most ops need: x, and the squares of x - center.
template <class A, class T>
BI_INLINE auto sum_step(const T* x) {
  return [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) { return accumulator + load<A>(x + i, count); };
}
template <class A, class T>
BI_INLINE auto sum_squares_step(const T* x, A center) {
  const Vec<A> c = Vec<A>::fill(center);
  return [=](auto accumulator, int64_t i, auto count) __attribute__((always_inline)) {
    const Vec<A> deviation = first_lanes(load<A>(x + i, count) - c, count);
    return fma(deviation, deviation, accumulator);
  };
}

// An addition takes its operand from memory, so with sum_step all registers can accumulate, and the row is read in one sweep.
template <class A>
constexpr int sum_accumulators = sizeof(A) == 4 ? 16 : accumulators<A>;

template <class A, class T>
BI_INLINE A sum_row(int64_t n, const T* x) {
  return lane_sum<A, sum_accumulators<A>>(n, sum_step<A>(x));
}
template <class A, class T>
BI_INLINE A sum_squares_row(int64_t n, const T* x, A center) {
  return lane_sum<A>(n, sum_squares_step(x, center));
}

// Whether threads share the lanes of a sum instead of the rows: there are more threads than rows and the rows are long. `cost` is that of
// one term in element operations.
inline bool threads_share_lanes(int64_t rows, int64_t n, double cost, int64_t threads) {
  return threads >= 2 && 2 * rows <= threads && double(n) * cost >= 65536;
}

// A number of vectors, as a type.
template <int count>
struct Vectors {
  static constexpr int value = count;
};

// Calls body(Vectors<group>(), first, last) on two threads or on eight for vectors first..last of the lanes, `group` of which may be
// accumulated at one time; eight threads take a cache line of floats each.
template <class Body>
BI_INLINE void for_each_share_of_lanes(int64_t n, double cost, int64_t threads, const Body& body) {
  const int parts = threads < 8 ? 2 : 8;
  parallel_for(parts, double(n) * cost / parts, int(threads), [&](int64_t begin, int64_t end) {
    for (int part = int(begin); part < int(end); part++)
      if (parts == 2)
        body(Vectors<8>(), 8 * part, 8 * part + 8);
      else
        body(Vectors<2>(), 2 * part, 2 * part + 2);
  });
}

// The lane sum of n terms, its lanes shared between threads.
template <class A, class Step>
BI_INLINE A shared_lane_sum(int64_t n, double cost, int64_t threads, const Step& step) {
  Vec<A> lanes[16];
  for (int j = 0; j < 16; j++) lanes[j] = Vec<A>::zero();
  for_each_share_of_lanes(n, cost, threads, [&](auto group, int first, int last) {
    accumulate_lanes<A, math::min(decltype(group)::value, accumulators<A>)>(lanes, n, step, first, last);
  });
  return fold_lanes<16>(lanes);
}

constexpr int64_t column_block = 512;

// Lane sums of up to column_block neighbouring columns at once, the fold by halves walked depth first: the sum of the lanes congruent to
// `lane` modulo `stride` is the sum of the two residues modulo 2 * stride. Every level needs one row of accumulators, so that all of
// them stay in the first-level cache however many terms there are, and rows are read in runs long enough for the prefetcher.
//
// step(accumulator, i, c, count) returns the accumulator of columns c..c+8 (`count` of them) with their term i taken in. `result` and
// `spare` (7 * column_block) are padded to whole vectors.
template <class A, class Step>
BI_NOINLINE void fold_columns(int64_t n, int64_t columns, int64_t lane, int64_t stride, const Step& step, A* result, A* spare) {
  if (n <= sum_lanes && lane + 3 * stride < n && lane + 4 * stride >= n) {  // four lanes of one term each
    for_each_vector(columns, [&](int64_t c, auto count) __attribute__((always_inline)) {
      const Vec<A> even = step(Nothing(), lane, c, count) + step(Nothing(), lane + 2 * stride, c, count);
      const Vec<A> odd = step(Nothing(), lane + stride, c, count) + step(Nothing(), lane + 3 * stride, c, count);
      (even + odd).store(result + c);
    });
    return;
  }
  if (stride >= sum_lanes || lane + stride >= n) {  // one lane
    int64_t i = lane;
    for_each_vector(columns, [&](int64_t c, auto count) __attribute__((always_inline)) {
      step(Nothing(), i, c, count).store(result + c);
    });
    for (i += sum_lanes; i + 3 * sum_lanes < n; i += 4 * sum_lanes)
      for_each_vector(columns, [&](int64_t c, auto count) __attribute__((always_inline)) {
        Vec<A> accumulator = Vec<A>::load(result + c);
#pragma GCC unroll 4
        for (int64_t k = 0; k < 4; k++) accumulator = step(accumulator, i + k * sum_lanes, c, count);
        accumulator.store(result + c);
      });
    for (; i < n; i += sum_lanes)
      for_each_vector(columns, [&](int64_t c, auto count) __attribute__((always_inline)) {
        step(Vec<A>::load(result + c), i, c, count).store(result + c);
      });
    return;
  }
  fold_columns(n, columns, lane, 2 * stride, step, result, spare);
  fold_columns(n, columns, lane + stride, 2 * stride, step, spare, spare + column_block);
  for (int64_t c = 0; c < columns; c += 8) (Vec<A>::load(result + c) + Vec<A>::load(spare + c)).store(result + c);
}

// fold_columns for columns so few that all their lanes fit a cache together: terms are read in the order in which they lie in memory, by
// several threads in runs of neighbouring terms, a run for each thread's lanes, as long as runs of floats take up 8 KB.
constexpr int64_t few_columns = 64;
template <class A, class Step>
BI_NOINLINE void stream_columns(int64_t n, int64_t columns, int64_t threads, const Step& step, A* result) {
  const int64_t padded = (columns + 7) / 8 * 8, parts = math::min(threads, math::max<int64_t>(columns / 16, 1));
  A* lanes = scratch<A, 1>(sum_lanes * padded);
  parallel_for(parts, double(n) * double(columns) * 0.25 / double(parts), int(threads), [=](int64_t first_part, int64_t last_part) {
    const int64_t first = sum_lanes * first_part / parts, last = sum_lanes * last_part / parts;
    for (int64_t i = first * padded; i < last * padded; i++) lanes[i] = 0;
    for (int64_t begin = 0; begin < n; begin += sum_lanes)
      for (int64_t i = begin + first; i < math::min(begin + last, n); i++) {
        A* lane = lanes + (i - begin) * padded;
        for_each_vector(columns, [&](int64_t c, auto count) __attribute__((always_inline)) {
          step(Vec<A>::load(lane + c), i, c, count).store(lane + c);
        });
      }
  });
  for (int64_t half = sum_lanes / 2 * padded; half >= padded; half /= 2)
    for (int64_t i = 0; i < half; i += 8) (Vec<A>::load(lanes + i) + Vec<A>::load(lanes + half + i)).store(lanes + i);
  for (int64_t c = 0; c < padded; c++) result[c] = lanes[c];
}

// Whether column_sums of one block can be computed by several threads.
inline bool threads_share_columns(int64_t n, int64_t columns) { return columns <= few_columns && n >= 4 * sum_lanes; }

// result[c] = the lane sum of n >= 1 terms of column c; see fold_columns for `step`. `result` holds column_block elements.
template <class A, class Step>
inline void column_sums(int64_t n, int64_t columns, int64_t threads, const Step& step, A* result) {
  if (threads_share_columns(n, columns)) {
    stream_columns(n, columns, threads, step, result);
  } else {
    A spare[7 * column_block];
    fold_columns(n, columns, int64_t(0), int64_t(1), step, result, spare);
  }
  for (int64_t c = 0; c < columns; c++) result[c] = result[c] + A(0);
}

}  // namespace bi
