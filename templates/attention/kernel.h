// Scaled dot product attention, forward.
//
// Numerics (docs/numerics.md section 8): score = fl(dot * scale), dot over 16 lanes of fma chains; exact maximum of the unmasked scores,
// then exp(score - maximum); denominator over 128 lanes of keys; weighted values over 16 lanes of keys; one division, one rounding.
// Masked keys are skipped: NaN or infinity there reaches nothing. No value depends on the other queries, the batch or the threads.
#pragma once

#include <cstdlib>
#include <new>

#include "../common/vector.h"
#include "tiles.h"

namespace bi {

// What `mask` points to: uint8 with true = attend, or elements of T that are added to the scores.
enum class Mask : int64_t { none = 0, boolean = 1, additive = 2 };

namespace attention_tiles {

// Thread-local memory that grows and is reused by later calls.
template <class A>
class Scratch {
 public:
  A* reserve(int64_t count) {
    if (count > capacity_) {
      std::free(data_);
      capacity_ = 0;
      data_ = static_cast<A*>(std::aligned_alloc(64, size_t(round_up(count, 16)) * sizeof(A)));
      if (!data_) throw std::bad_alloc();
      capacity_ = round_up(count, 16);
    }
    return data_;
  }
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

 private:
  A* data_ = nullptr;
  int64_t capacity_ = 0;
};

template <class A>
struct Workspace {
  Scratch<A> queries, keys, scores, mask, values, statistics;
};

// Everything the call fixes. A row is one query of one head; rows of a KV head are ordered by query, then by head of the group, so
// that a block of rows shares K and V and, when causal, nearly the same keys.
template <class T>
struct Attention {
  using A = accumulator_t<T>;
  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  const T *q, *k, *v;
  int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row;
  Mask mask_kind;
  const void* mask;
  int64_t mask_batch, mask_head, mask_query, mask_key;
  bool causal;
  A scale;
  T* out;
  int64_t out_batch, out_head, out_row;
  A* lse;

  int64_t group, rows, block_rows, blocks;  // rows and blocks of one (batch, KV head)
  bool packs_values;

  struct Row {
    int64_t batch, head, query;
  };
  Row row_at(int64_t b, int64_t kv_head, int64_t row) const { return {b, kv_head * group + row % group, row / group}; }

  int64_t causal_keys(int64_t query) const { return causal && query + 1 < keys ? query + 1 : keys; }

  bool masked(const Row& row, int64_t key) const {
    const int64_t at = row.batch * mask_batch + row.head * mask_head + row.query * mask_query + key * mask_key;
    if (mask_kind == Mask::boolean) return !static_cast<const uint8_t*>(mask)[at];
    if (mask_kind == Mask::additive) return widen(static_cast<const T*>(mask)[at]) == -std::numeric_limits<A>::infinity();
    return false;
  }

  // One row of the mask as numbers to add; a boolean mask becomes 0 and -inf.
  void widen_mask(const Row& row, int64_t count, A* to) const {
    const int64_t at = row.batch * mask_batch + row.head * mask_head + row.query * mask_query;
    constexpr A minus_infinity = -std::numeric_limits<A>::infinity();
    if (mask_kind == Mask::boolean) {
      const uint8_t* from = static_cast<const uint8_t*>(mask) + at;
      if (mask_key == 1) {
        for (int64_t j = 0; j < count; j++) to[j] = from[j] ? A(0) : minus_infinity;
      } else {
        for (int64_t j = 0; j < count; j++) to[j] = from[j * mask_key] ? A(0) : minus_infinity;
      }
    } else {
      const T* from = static_cast<const T*>(mask) + at;
      for (int64_t j = 0; j < count; j++) to[j] = widen(from[j * mask_key]);
    }
  }

  void run_block(Workspace<A>& work, int64_t b, int64_t kv_head, int64_t first, int64_t last, int64_t& packed) const;
  void compute_scores(Workspace<A>& work, const T* k_base, int64_t first, int64_t count, int64_t used, A* scores, int64_t stride) const;
  void pack_values(const T* from, int64_t begin, int64_t end, A* to) const;
  template <class V>
  void weigh_values(int64_t rows, int64_t used, int64_t columns, const A* probability, int64_t stride, const V* v, int64_t row,
                    Vec<A>* sums) const;
  void recompute_row(const Row& row, int64_t used, const A* probability, A denominator, const T* v_base) const;
};

template <class T>
void Attention<T>::compute_scores(Workspace<A>& work, const T* k_base, int64_t first, int64_t count, int64_t used, A* scores,
                                  int64_t stride) const {
  const int64_t depth = round_up(head_dim, lanes);
  const A* q_block = work.queries.reserve(count * depth);
  // Few rows read K as it lies; otherwise 16-bit elements are widened once for all rows. A head dim that is no multiple of 16 is
  // padded with zeros, which changes no lane.
  const bool copies = depth != head_dim || (sizeof(T) < sizeof(A) && count > 2);
  A* widened = copies ? work.keys.reserve(keys_at_a_time * depth) : nullptr;
  for (int64_t key = 0; key < used; key += keys_at_a_time) {
    const T* from[keys_at_a_time];
    // Past the end the last key stands in; its scores there are never read.
    for (int j = 0; j < keys_at_a_time; j++) from[j] = k_base + (key + j < used ? key + j : used - 1) * k_row;
    int64_t row = 0;
    if (causal && key > first / group) row = key * group - first;  // rows before see none of these keys
    const auto sweep = [&](const auto* const* k) {
      for (; row + 2 <= count; row += 2)
        score_tile<2>(depth, q_block + row * depth, depth, k, scale, scores + row * stride + key, stride);
      if (row < count) score_tile<1>(depth, q_block + row * depth, depth, k, scale, scores + row * stride + key, stride);
    };
    if (copies) {
      const A* k[keys_at_a_time];
      for (int j = 0; j < keys_at_a_time; j++) {
        A* to = widened + j * depth;
        k[j] = to;
        int64_t d = 0;
        for (; d + 8 <= head_dim; d += 8) Vec<A>::load(from[j] + d).store(to + d);
        for (; d < depth; d++) to[d] = d < head_dim ? widen(from[j][d]) : A(0);
      }
      sweep(k);
    } else {
      sweep(from);
    }
  }
}

// Columns in panels of 16, keys one after the other in each: panel[column / 16][key][column % 16], zeros past value_dim.
template <class T>
void Attention<T>::pack_values(const T* from, int64_t begin, int64_t end, A* to) const {
  for (int64_t column = 0; column < value_dim; column += panel_width) {
    A* panel = to + column * keys;
    const int64_t width = value_dim - column;
    for (int64_t key = begin; key < end; key++) {
      const T* source = from + key * v_row + column;
      if (width >= panel_width) {
        Vec<A>::load(source).store(panel + key * panel_width);
        Vec<A>::load(source + 8).store(panel + key * panel_width + 8);
      } else {
        for (int i = 0; i < panel_width; i++) panel[key * panel_width + i] = i < width ? widen(source[i]) : A(0);
      }
    }
  }
}

// Picks the register tile. `columns` is 16, or for one or two rows read in place, 32 or 64: few rows need more columns to have enough
// independent chains.
template <class T>
template <class V>
void Attention<T>::weigh_values(int64_t tile_rows, int64_t used, int64_t columns, const A* probability, int64_t stride, const V* from,
                                int64_t row, Vec<A>* sums) const {
  switch (tile_rows) {
    case 1:
      if (columns == 64) return value_tile<1, 8>(used, probability, stride, from, row, sums);
      if (columns == 32) return value_tile<1, 4>(used, probability, stride, from, row, sums);
      return value_tile<1, 2>(used, probability, stride, from, row, sums);
    case 2:
      if (columns == 32) return value_tile<2, 4>(used, probability, stride, from, row, sums);
      return value_tile<2, 2>(used, probability, stride, from, row, sums);
    case 3: return value_tile<3, 2>(used, probability, stride, from, row, sums);
    case 4: return value_tile<4, 2>(used, probability, stride, from, row, sums);
    case 5: return value_tile<5, 2>(used, probability, stride, from, row, sums);
    default: return value_tile<6, 2>(used, probability, stride, from, row, sums);
  }
}

// The tiles multiply masked values by a probability of zero, which is right unless such a value is NaN or infinite. This is the
// definition itself for one row, used when the fast result is not finite.
template <class T>
void Attention<T>::recompute_row(const Row& row, int64_t used, const A* probability, A denominator, const T* v_base) const {
  T* to = out + row.batch * out_batch + row.head * out_head + row.query * out_row;
  for (int64_t column = 0; column < value_dim; column++) {
    A lane[lanes] = {};
    for (int64_t j = 0; j < used; j++)
      if (!masked(row, j)) lane[j % lanes] = std::fma(probability[j], widen(v_base[j * v_row + column]), lane[j % lanes]);
    for (int half = lanes / 2; half >= 1; half /= 2)
      for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    narrow((lane[0] + A(0)) / denominator, to + column);
  }
}

// Rows [first, last) of one KV head. `packed` counts the keys of this head whose values are already in the panels.
template <class T>
void Attention<T>::run_block(Workspace<A>& work, int64_t b, int64_t kv_head, int64_t first, int64_t last, int64_t& packed) const {
  constexpr A minus_infinity = -std::numeric_limits<A>::infinity();
  const int64_t count = last - first;
  const T* k_base = k + b * k_batch + kv_head * k_head;
  const T* v_base = v + b * v_batch + kv_head * v_head;
  const bool one_mask = mask_query == 0 && (mask_head == 0 || group == 1);  // all rows of the block have the same mask row

  // Keys after the last one that any row of the block sees are not computed.
  int64_t used = causal_keys((last - 1) / group);
  if (mask_kind != Mask::none) {
    int64_t seen = 0;
    for (int64_t r = 0; r < (one_mask ? 1 : count); r++) {
      const Row row = row_at(b, kv_head, first + r);
      int64_t end = one_mask ? used : causal_keys(row.query);
      while (end > seen && masked(row, end - 1)) end--;
      if (end > seen) seen = end;
    }
    used = seen;
  }

  const int64_t depth = round_up(head_dim, lanes);
  A* q_block = work.queries.reserve(count * depth);
  for (int64_t r = 0; r < count; r++) {
    const Row row = row_at(b, kv_head, first + r);
    const T* from = q + b * q_batch + row.head * q_head + row.query * q_row;
    A* to = q_block + r * depth;
    int64_t d = 0;
    for (; d + 8 <= head_dim; d += 8) Vec<A>::load(from + d).store(to + d);
    for (; d < depth; d++) to[d] = d < head_dim ? widen(from[d]) : A(0);
  }

  // An odd number of cache lines a row, so that the same key of several rows does not fall into one cache set.
  const int64_t stride = ((used + 15) / 16 | 1) * 16;
  A* scores = work.scores.reserve(count * stride);
  compute_scores(work, k_base, first, count, used, scores, stride);

  A* denominator = work.statistics.reserve(count * 2);
  A* finite = denominator + count;  // becomes NaN when an undivided output of the row is not finite
  A* mask_row = mask_kind == Mask::none ? nullptr : work.mask.reserve(used);
  if (mask_row && one_mask) widen_mask(row_at(b, kv_head, first), used, mask_row);
  for (int64_t r = 0; r < count; r++) {
    const Row row = row_at(b, kv_head, first + r);
    A* p = scores + r * stride;
    int64_t own = causal_keys(row.query);
    if (own > used) own = used;
    if (mask_row && !one_mask) widen_mask(row, own, mask_row);
    A maximum_score, z;
    softmax_row(p, own, mask_row, &maximum_score, &z);
    A statistic = maximum_score + std::log(z);
    if (maximum_score == minus_infinity) {
      bool all_masked = true;
      for (int64_t j = 0; j < own && all_masked; j++) all_masked = masked(row, j);
      if (all_masked) {
        for (int64_t j = 0; j < own; j++) p[j] = 0;
        z = 1;
        statistic = minus_infinity;
      }
    }
    for (int64_t j = own; j < stride; j++) p[j] = 0;
    denominator[r] = z;
    finite[r] = 0;
    if (lse) lse[(b * heads + row.head) * queries + row.query] = statistic;
  }

  A* panels = nullptr;
  if (packs_values) {
    panels = work.values.reserve(round_up(value_dim, panel_width) * keys);
    if (packed < used) pack_values(v_base, packed, used, panels);
    if (packed < used) packed = used;
  }
  int64_t columns;
  for (int64_t column = 0; column < value_dim; column += columns) {
    const int64_t left = value_dim - column;
    columns = packs_values || left < 32 || count > 2 ? 16 : left < 64 || count > 1 ? 32 : 64;
    const int64_t tiles = (count + 5) / 6;
    for (int64_t tile = 0; tile < tiles; tile++) {
      const int64_t begin = count * tile / tiles, end = count * (tile + 1) / tiles;
      int64_t own = causal_keys((first + end - 1) / group);
      if (own > used) own = used;
      Vec<A> sums[12];
      const A* p = scores + begin * stride;
      if (packs_values)
        weigh_values(end - begin, own, columns, p, stride, panels + column * keys, int64_t(panel_width), sums);
      else
        weigh_values(end - begin, own, columns, p, stride, v_base + column, v_row, sums);
      const int64_t vectors = columns / 8;
      for (int64_t r = begin; r < end; r++) {
        const Row row = row_at(b, kv_head, first + r);
        T* to = out + b * out_batch + row.head * out_head + row.query * out_row + column;
        const Vec<A> z = Vec<A>::fill(denominator[r]);
        Vec<A> probe = Vec<A>::zero();
        for (int64_t c = 0; c < vectors; c++) {
          const Vec<A> sum = sums[(r - begin) * vectors + c];
          probe = fma(sum, Vec<A>::zero(), probe);
          const Vec<A> result = sum / z;
          if (left >= 8 * c + 8)
            result.store(to + 8 * c);
          else if (left > 8 * c)
            result.store(to + 8 * c, left - 8 * c);
        }
        finite[r] += probe.fold_half(4).fold_half(2).fold_half(1).first();
      }
    }
  }
  if (mask_kind == Mask::none && !causal) return;  // no key is masked: NaN is the answer
  for (int64_t r = 0; r < count; r++) {
    if (finite[r] == finite[r] || denominator[r] != denominator[r]) continue;
    const Row row = row_at(b, kv_head, first + r);
    const int64_t own = causal_keys(row.query);
    recompute_row(row, own < used ? own : used, scores + r * stride, denominator[r], v_base);
  }
}

}  // namespace attention_tiles

// q [batch, heads, queries, head_dim], k [batch, kv_heads, keys, head_dim], v [batch, kv_heads, keys, value_dim], out [batch, heads,
// queries, value_dim]: strides in elements, last dim contiguous. Head h reads KV head h / (heads / kv_heads). `mask` is broadcast where
// its stride is 0. `causal`: query i sees keys j <= i, on top of the mask. `lse` [batch, heads, queries] contiguous, or null.
template <class T>
void attention(int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t head_dim, int64_t value_dim,
               const T* q, int64_t q_batch, int64_t q_head, int64_t q_row, const T* k, int64_t k_batch, int64_t k_head, int64_t k_row,
               const T* v, int64_t v_batch, int64_t v_head, int64_t v_row, int64_t mask_kind, const void* mask, int64_t mask_batch,
               int64_t mask_head, int64_t mask_query, int64_t mask_key, int64_t causal, double scale, T* out, int64_t out_batch,
               int64_t out_head, int64_t out_row, accumulator_t<T>* lse, int64_t threads) {
  using A = accumulator_t<T>;
  if (batch <= 0 || heads <= 0 || queries <= 0) return;
  attention_tiles::Attention<T> call{batch,     heads,      kv_heads,  queries,          keys,     head_dim,  value_dim,
                                     q,         k,          v,         q_batch,          q_head,   q_row,     k_batch,
                                     k_head,    k_row,      v_batch,   v_head,           v_row,    Mask(mask_kind), mask,
                                     mask_batch, mask_head, mask_query, mask_key,        causal != 0, A(scale), out,
                                     out_batch, out_head,   out_row,   lse,              0, 0, 0, 0, false};
  call.group = heads / kv_heads;
  call.rows = queries * call.group;
  // Scores of a block stay within the second-level cache, and within a bound that does not grow with the number of queries.
  int64_t block_rows = keys > 0 ? 32768 / keys : 48;
  block_rows = block_rows < 6 ? 6 : block_rows > 48 ? 48 : block_rows;
  call.blocks = (call.rows + block_rows - 1) / block_rows;
  // Too few blocks for the threads: smaller ones.
  while (batch * kv_heads * call.blocks < threads && call.rows >= 12 * call.blocks) call.blocks *= 2;
  // Packing V costs about one row's work.
  call.packs_values = call.rows >= 12 || value_dim % 16 != 0;
  const double block_cost = double(call.rows) / double(call.blocks) * double(keys) * (double(head_dim + value_dim) / 8 + 4);
  const auto body = [&](int64_t begin, int64_t end) {
    static thread_local attention_tiles::Workspace<A> work;
    int64_t packed = 0, head_of_packed = -1;
    for (int64_t unit = begin; unit < end; unit++) {
      const int64_t head = unit / call.blocks, block = unit % call.blocks;
      if (head != head_of_packed) packed = 0;
      head_of_packed = head;
      const int64_t first = call.rows * block / call.blocks, last = call.rows * (block + 1) / call.blocks;
      call.run_block(work, head / kv_heads, head % kv_heads, first, last, packed);
    }
  };
  parallel_for(batch * kv_heads * call.blocks, block_cost, int(threads), body);
}

}  // namespace bi
