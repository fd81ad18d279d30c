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

constexpr int64_t most_rows = 48;                                   // of a block
constexpr int64_t rows_to_pack_keys = 16, rows_to_pack_values = 8;  // fewer rows of a KV head read them in place
constexpr int64_t prefetch_distance = 32;                           // in keys
constexpr int64_t most_bytes_of_values = 262144;                    // to prefetch, half of a second-level cache

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
  Scratch<A> queries, keys, values, scores, mask;
  int64_t packed_keys = 0, packed_values = 0;  // keys of the current KV head that are already in the panels
};

// One query of one head. Rows of a KV head are ordered by query, then by head of the group, so that a block of rows shares K and V and,
// when causal, nearly the same keys.
template <class T>
struct Row {
  int64_t batch, head, query;
  int64_t keys;  // it sees no key from here on
  T* out;
  accumulator_t<T> maximum, denominator;
  Vec<accumulator_t<T>> finite;  // NaN in some lane once an undivided output was not finite
};

template <class T>
struct Attention {
  using A = accumulator_t<T>;
  static constexpr A minus_infinity = -std::numeric_limits<A>::infinity();

  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  const T *q, *k, *v;
  int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row;
  Mask mask_kind;
  const void* mask;
  int64_t mask_batch, mask_head, mask_query, mask_key;
  int64_t causal;  // 0, or the number of keys that the first query sees; each next query sees one more
  A scale;
  T* out;
  int64_t out_batch, out_head, out_row;
  A* lse;
  int64_t group, depth;  // heads of a KV head; head_dim rounded up to whole lanes
  bool packs_keys, packs_values;

  bool masked(const Row<T>& row, int64_t key) const;
  void widen_mask(const Row<T>& row, int64_t count, A* to) const;
  int64_t visible_keys(const Row<T>* rows, int64_t count, bool one_mask) const;
  void widen_row(const T* from, A* to) const;
  void pack_keys(const T* from, int64_t begin, int64_t end, A* to) const;
  void pack_values(const T* from, int64_t begin, int64_t end, A* to) const;
  void scores_from_panels(const A* q_block, const A* panels, const Row<T>* rows, int64_t count, int64_t used, A* scores,
                          int64_t stride) const;
  void scores_in_place(Workspace<A>& work, const A* q_block, const T* k_base, const T* v_base, int64_t count, int64_t used, A* scores,
                       int64_t stride) const;
  void recompute_row(const Row<T>& row, const A* probability, const T* v_base) const;
  void run_block(Workspace<A>& work, int64_t b, int64_t kv_head, int64_t first, int64_t last) const;
};

template <class T>
bool Attention<T>::masked(const Row<T>& row, int64_t key) const {
  const int64_t at = row.batch * mask_batch + row.head * mask_head + row.query * mask_query + key * mask_key;
  if (mask_kind == Mask::boolean) return !static_cast<const uint8_t*>(mask)[at];
  if (mask_kind == Mask::additive) return widen(static_cast<const T*>(mask)[at]) == minus_infinity;
  return false;
}

// One row of the mask as numbers to add; a boolean mask becomes 0 and -inf.
template <class T>
void Attention<T>::widen_mask(const Row<T>& row, int64_t count, A* to) const {
  const int64_t at = row.batch * mask_batch + row.head * mask_head + row.query * mask_query;
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

// Keys after the last one that any row of the block sees need no work at all: right padding, and causal masks given as a tensor.
template <class T>
int64_t Attention<T>::visible_keys(const Row<T>* rows, int64_t count, bool one_mask) const {
  const int64_t most = rows[count - 1].keys;
  if (mask_kind == Mask::none) return most;
  int64_t visible = 0;
  for (int64_t r = 0; r < (one_mask ? 1 : count); r++) {
    int64_t end = one_mask ? most : rows[r].keys;
    while (end > visible && masked(rows[r], end - 1)) end--;
    if (end > visible) visible = end;
  }
  return visible;
}

// A row of q or k in the accumulation type. A head dim that is no multiple of 16 is padded with zeros, which changes no lane.
template <class T>
void Attention<T>::widen_row(const T* from, A* to) const {
  int64_t d = 0;
  for (; d + 8 <= head_dim; d += 8) Vec<A>::load(from + d).store(to + d);
  for (; d < depth; d++) to[d] = d < head_dim ? widen(from[d]) : A(0);
}

// Panels of 16 keys, transposed: panel[key / 16][d][key % 16]. `begin` and `end` are multiples of 16; keys past the last are zeros.
template <class T>
void Attention<T>::pack_keys(const T* from, int64_t begin, int64_t end, A* to) const {
  for (int64_t key = begin; key < end; key += panel_width) {
    A* panel = to + key * depth;
    for (int64_t d = 0; d < depth; d += 8) {
      for (int half = 0; half < panel_width; half += 8) {
        Vec<A> square[8];
        for (int j = 0; j < 8; j++) {
          const T* source = from + (key + half + j) * k_row + d;
          const int64_t left = key + half + j < keys ? head_dim - d : 0;
          square[j] = left >= 8 ? Vec<A>::load(source) : left > 0 ? Vec<A>::load(source, left) : Vec<A>::zero();
        }
        transpose_eight(square);
        for (int i = 0; i < 8; i++) square[i].store(panel + (d + i) * panel_width + half);
      }
    }
  }
}

// Panels of 16 columns, one key after the other: panel[column / 16][key][column % 16], zeros past value_dim.
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

template <class T>
void Attention<T>::scores_from_panels(const A* q_block, const A* panels, const Row<T>* rows, int64_t count, int64_t used, A* scores,
                                      int64_t stride) const {
  int64_t first = 0;
  for (int64_t key = 0; key < used; key += panel_width) {
    while (rows[first].keys <= key) first++;  // such rows see none of these keys, nor of later ones
    const int64_t tiles = (count - first + tile_rows<A> - 1) / tile_rows<A>;
    for (int64_t row = first, tile = 0; tile < tiles; tile++) {
      const int64_t size = (count - row) / (tiles - tile);
      panel_tile(size, depth, q_block + row * depth, depth, panels + key * depth, scale, scores + row * stride + key, stride);
      row += size;
    }
  }
}

// Few rows read every key and value once, so memory, not arithmetic, sets the pace.
template <class T>
BI_INLINE void prefetch_row(const T* row, int64_t size) {
  for (int64_t d = 0; d < size; d += int64_t(64 / sizeof(T))) __builtin_prefetch(row + d, 0, 2);
}

// Few rows read K as it lies, unless it must be padded, or more than two rows would widen it again each. Values that fit into the
// second-level cache are asked for along with the keys: the lanes of the weighted values jump from key to key, which no prefetcher
// follows.
template <class T>
void Attention<T>::scores_in_place(Workspace<A>& work, const A* q_block, const T* k_base, const T* v_base, int64_t count, int64_t used,
                                   A* scores, int64_t stride) const {
  const bool prefetches_values = !packs_values && used * value_dim * int64_t(sizeof(T)) <= most_bytes_of_values;
  const bool copies = depth != head_dim || (sizeof(T) < sizeof(A) && count > 2);
  A* widened = copies ? work.keys.reserve(keys_at_a_time * depth) : nullptr;
  for (int64_t key = 0; key < used; key += keys_at_a_time) {
    const T* from[keys_at_a_time];
    // Past the end the last key stands in; its scores there are never read.
    for (int j = 0; j < keys_at_a_time; j++) from[j] = k_base + (key + j < used ? key + j : used - 1) * k_row;
    for (int j = 0; j < keys_at_a_time && key + prefetch_distance + j < used; j++)
      prefetch_row(k_base + (key + prefetch_distance + j) * k_row, head_dim);
    for (int j = 0; j < keys_at_a_time && key + j < used && prefetches_values; j++) prefetch_row(v_base + (key + j) * v_row, value_dim);
    const auto sweep = [&](const auto* const* k) {
      int64_t row = 0;
      for (; row + 2 <= count; row += 2)
        score_tile<2>(depth, q_block + row * depth, depth, k, scale, scores + row * stride + key, stride);
      if (row < count) score_tile<1>(depth, q_block + row * depth, depth, k, scale, scores + row * stride + key, stride);
    };
    if (copies) {
      const A* k[keys_at_a_time];
      for (int j = 0; j < keys_at_a_time; j++) {
        widen_row(from[j], widened + j * depth);
        k[j] = widened + j * depth;
      }
      sweep(k);
    } else {
      sweep(from);
    }
  }
}

// The tiles multiply masked values by a probability of zero, which is right unless such a value is NaN or infinite. This is the
// definition itself for one row, used when the fast result is not finite.
template <class T>
void Attention<T>::recompute_row(const Row<T>& row, const A* probability, const T* v_base) const {
  for (int64_t column = 0; column < value_dim; column++) {
    A lane[lanes] = {};
    for (int64_t j = 0; j < row.keys; j++)
      if (!masked(row, j)) lane[j % lanes] = math::fma(probability[j], widen(v_base[j * v_row + column]), lane[j % lanes]);
    for (int half = lanes / 2; half >= 1; half /= 2)
      for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    narrow((lane[0] + A(0)) / row.denominator, row.out + column);
  }
}

// Rows [first, last) of one KV head: a tile of scores [rows, keys] in scratch memory, its softmax in place, then the weighted values.
template <class T>
void Attention<T>::run_block(Workspace<A>& work, int64_t b, int64_t kv_head, int64_t first, int64_t last) const {
  const int64_t count = last - first;
  if (count <= 0) return;
  const T* k_base = k + b * k_batch + kv_head * k_head;
  const T* v_base = v + b * v_batch + kv_head * v_head;
  const bool one_mask = mask_query == 0 && (mask_head == 0 || group == 1);  // all rows of the block have the same mask row

  Row<T> rows[most_rows];
  A* q_block = work.queries.reserve(count * depth);
  int64_t query = first / group, head = kv_head * group + first % group;
  for (int64_t r = 0; r < count; r++) {
    const int64_t limit = causal && query + causal < keys ? query + causal : keys;
    T* to = out + b * out_batch + head * out_head + query * out_row;
    rows[r] = {b, head, query, limit, to, A(0), A(0), Vec<A>::zero()};
    widen_row(q + b * q_batch + head * q_head + query * q_row, q_block + r * depth);
    if (++head == (kv_head + 1) * group) {
      head = kv_head * group;
      query++;
    }
  }
  const int64_t used = visible_keys(rows, count, one_mask);
  for (int64_t r = 0; r < count; r++)
    if (rows[r].keys > used) rows[r].keys = used;

  // An odd number of cache lines a row, so that the same key of several rows does not fall into one cache set.
  const int64_t stride = ((used + 15) / 16 | 1) * 16;
  A* scores = work.scores.reserve(count * stride);
  if (packs_keys) {
    const int64_t end = round_up(used, panel_width);
    A* panels = work.keys.reserve(round_up(keys, panel_width) * depth);
    if (work.packed_keys < end) {
      pack_keys(k_base, work.packed_keys, end, panels);
      work.packed_keys = end;
    }
    scores_from_panels(q_block, panels, rows, count, used, scores, stride);
  } else {
    scores_in_place(work, q_block, k_base, v_base, count, used, scores, stride);
  }

  A* mask_row = mask_kind == Mask::none ? nullptr : work.mask.reserve(round_up(used, 8));
  if (mask_row && one_mask) widen_mask(rows[0], used, mask_row);
  for (int64_t r = 0; r < count; r++) {
    if (mask_row && !one_mask) widen_mask(rows[r], rows[r].keys, mask_row);
    rows[r].maximum = mask_and_maximum(scores + r * stride, rows[r].keys, mask_row);
  }
  for (int64_t r = 0; r < count; r++) exponentials(scores + r * stride, rows[r].keys, rows[r].maximum);
  for (int64_t r = 0; r < count; r++) {
    Row<T>& row = rows[r];
    A* p = scores + r * stride;
    bool all_masked = row.maximum == minus_infinity;
    for (int64_t j = 0; j < row.keys && all_masked; j++) all_masked = masked(row, j);
    if (all_masked)
      for (int64_t j = 0; j < row.keys; j++) p[j] = 0;
    for (int64_t j = row.keys; j < used; j++) p[j] = 0;
    row.denominator = all_masked ? A(1) : denominator(p, row.keys);
    if (lse) {
      A* statistic = lse + (b * heads + row.head) * queries + row.query;
      *statistic = all_masked ? minus_infinity : row.maximum + math::log(row.denominator);
    }
  }

  A* panels = nullptr;
  if (packs_values) {
    panels = work.values.reserve(round_up(value_dim, panel_width) * keys);
    if (work.packed_values < used) {
      pack_values(v_base, work.packed_values, used, panels);
      work.packed_values = used;
    }
  }
  const int64_t widest = sizeof(A) == 4 ? 64 : 32;
  int64_t columns;
  for (int64_t column = 0; column < value_dim; column += columns) {
    const int64_t left = value_dim - column;
    columns = packs_values || count > 1 || left < 32 ? 16 : left < widest ? 32 : widest;
    const int64_t vectors = columns / 8, most = packs_values ? tile_rows<A> : strided_rows, tiles = (count + most - 1) / most;
    for (int64_t r = 0, tile = 0; tile < tiles; tile++) {
      const int64_t size = (count - r) / (tiles - tile);
      const int64_t terms = rows[r + size - 1].keys;
      const A* p = scores + r * stride;
      A sums[panel_width * 6];
      if (packs_values)
        panel_tile(size, terms, p, stride, panels + column * keys, A(1), sums, columns);
      else
        strided_tile(size, columns, terms, p, stride, v_base + column, v_row, sums, columns);
      for (int64_t i = 0; i < size; i++, r++) {
        const Vec<A> z = Vec<A>::fill(rows[r].denominator);
        for (int64_t c = 0; c < vectors; c++) {
          const Vec<A> sum = Vec<A>::load(sums + i * columns + 8 * c);
          rows[r].finite = fma(sum, Vec<A>::zero(), rows[r].finite);
          const Vec<A> result = sum / z;
          T* to = rows[r].out + column + 8 * c;
          if (left >= 8 * c + 8)
            result.store(to);
          else if (left > 8 * c)
            result.store(to, left - 8 * c);
        }
      }
    }
  }
  if (mask_kind == Mask::none && !causal) return;  // no key is masked: a NaN is the answer
  for (int64_t r = 0; r < count; r++) {
    const A finite = fold_lanes<1>(&rows[r].finite), z = rows[r].denominator;
    if (finite != finite && z == z) recompute_row(rows[r], scores + r * stride, v_base);
  }
}

}  // namespace attention_tiles

// q [batch, heads, queries, head_dim], k [batch, kv_heads, keys, head_dim], v [batch, kv_heads, keys, value_dim], out [batch, heads,
// queries, value_dim]: strides in elements, last dim contiguous. Head h reads KV head h / (heads / kv_heads). `mask` is broadcast where
// its stride is 0. `causal`: 0, or query i sees keys j < i + causal, on top of the mask. `lse` [batch, heads, queries] contiguous, or null.
//
// Threads share (batch, KV head, block of rows). A decode step with fewer of these than threads leaves threads idle; sharing the lanes
// of one row among threads would keep the bits.
template <class T>
void attention(int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t head_dim, int64_t value_dim,
               const T* q, int64_t q_batch, int64_t q_head, int64_t q_row, const T* k, int64_t k_batch, int64_t k_head, int64_t k_row,
               const T* v, int64_t v_batch, int64_t v_head, int64_t v_row, int64_t mask_kind, const void* mask, int64_t mask_batch,
               int64_t mask_head, int64_t mask_query, int64_t mask_key, int64_t causal, double scale, T* out, int64_t out_batch,
               int64_t out_head, int64_t out_row, accumulator_t<T>* lse, int64_t threads) {
  using namespace attention_tiles;
  using A = accumulator_t<T>;
  if (batch <= 0 || heads <= 0 || queries <= 0) return;
  Attention<T> call;
  call.batch = batch, call.heads = heads, call.kv_heads = kv_heads;
  call.queries = queries, call.keys = keys, call.head_dim = head_dim, call.value_dim = value_dim;
  call.q = q, call.q_batch = q_batch, call.q_head = q_head, call.q_row = q_row;
  call.k = k, call.k_batch = k_batch, call.k_head = k_head, call.k_row = k_row;
  call.v = v, call.v_batch = v_batch, call.v_head = v_head, call.v_row = v_row;
  call.mask_kind = Mask(mask_kind), call.mask = mask, call.causal = causal, call.scale = A(scale);
  call.mask_batch = mask_batch, call.mask_head = mask_head, call.mask_query = mask_query, call.mask_key = mask_key;
  call.out = out, call.out_batch = out_batch, call.out_head = out_head, call.out_row = out_row, call.lse = lse;
  call.group = heads / kv_heads, call.depth = round_up(head_dim, lanes);
  const int64_t rows = queries * call.group;
  call.packs_keys = rows >= rows_to_pack_keys;
  call.packs_values = rows >= rows_to_pack_values || value_dim % panel_width != 0;

  // The scores of a block stay within the second-level cache, and within a bound that does not grow with the number of queries.
  int64_t block_rows = keys > 0 ? 32768 / keys : most_rows;
  block_rows = block_rows < 6 ? 6 : block_rows > most_rows ? most_rows : block_rows;
  int64_t blocks = (rows + block_rows - 1) / block_rows;
  while (batch * kv_heads * blocks < threads && rows >= 12 * blocks) blocks *= 2;  // too few for the threads: smaller ones
  const int64_t rows_a_block = round_up((rows + blocks - 1) / blocks, tile_rows<A>);
  blocks = (rows + rows_a_block - 1) / rows_a_block;
  const double row_cost = double(keys) * (double(head_dim + value_dim) / 8 + 4);
  // Later rows see more keys. Threads that share a head take early and late blocks in turn, so that they have the same work.
  const bool alternates = causal && batch * kv_heads % threads != 0;
  const auto body = [&](int64_t begin, int64_t end) {
    static thread_local Workspace<A> work;
    int64_t packed_head = -1;
    for (int64_t unit = begin; unit < end; unit++) {
      const int64_t head = unit / blocks, turn = unit % blocks;
      const int64_t block = !alternates ? turn : turn % 2 ? blocks - 1 - turn / 2 : turn / 2;
      if (head != packed_head) work.packed_keys = work.packed_values = 0;
      packed_head = head;
      const int64_t first = block * rows_a_block, last = first + rows_a_block < rows ? first + rows_a_block : rows;
      call.run_block(work, head / kv_heads, head % kv_heads, first, last);
    }
  };
  parallel_for(batch * kv_heads * blocks, row_cost * double(rows) / double(blocks), int(threads), body);
}

}  // namespace bi
