// Causal attention of several requests over a paged KV cache, forward.
//
// Numerics (docs/numerics.md section 8): each request by itself is `attention` of its last queries over all of its keys in order. Blocks,
// their order in memory and the other requests have no part in it.
#pragma once

#include <cstring>
#include <vector>

#include "../attention/kernel.h"

namespace bi {

namespace paged {

// The queries of one call when a window needs a mask, which then stays small.
constexpr int64_t queries_at_a_time = 256;

// The keys and values [keys, kv_heads, width] of a request: where they lie in the cache if its blocks follow each other, else a copy.
template <class T>
const T* gather(const T* cache, const int64_t* blocks, int64_t keys, int64_t block_elements, int64_t block_size,
                std::vector<T>& copy, int64_t threads) {
  const int64_t count = (keys + block_size - 1) / block_size;
  bool adjacent = true;
  for (int64_t i = 1; i < count && adjacent; i++) adjacent = blocks[i] == blocks[i - 1] + 1;
  if (adjacent) return cache + blocks[0] * block_elements;
  copy.resize(size_t(count * block_elements));
  parallel_for(count, double(block_elements) / 4, int(threads), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      std::memcpy(copy.data() + i * block_elements, cache + blocks[i] * block_elements, size_t(block_elements) * sizeof(T));
  });
  return copy.data();
}

}  // namespace paged

// q [tokens, heads, head_dim], the queries of a request together, each request's last; cache [blocks, block_size, kv_heads, 2 * head_dim],
// a key followed by its value; table [requests, table_row]: the blocks of each request in order; starts [requests + 1]: its first query;
// lengths [requests]: its keys, those of its queries included; out [tokens, heads, head_dim] contiguous. Query i of n sees the keys
// j <= length - n + i, of these the last `window` if that is not 0.
template <class T>
void paged_attention(int64_t requests, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, const T* q, int64_t q_row,
                     int64_t q_head, const T* cache, const int64_t* table, int64_t table_row, const int64_t* starts,
                     const int64_t* lengths, int64_t window, double scale, T* out, int64_t threads) {
  const int64_t width = 2 * head_dim, key_row = kv_heads * width;
  std::vector<T> copy;
  std::vector<uint8_t> mask;
  for (int64_t r = 0; r < requests; r++) {
    const int64_t first = starts[r], queries = starts[r + 1] - first, keys = lengths[r];
    if (queries <= 0) continue;
    const T* kv = paged::gather(cache, table + r * table_row, keys, block_size * key_row, block_size, copy, threads);
    const int64_t step = window > 0 ? paged::queries_at_a_time : queries;
    for (int64_t begin = 0; begin < queries; begin += step) {
      const int64_t count = begin + step < queries ? step : queries - begin;
      const int64_t position = keys - queries + begin;  // of the first query
      // Keys before the window of the first query are left out; the lanes of the others rotate, which changes nothing.
      const int64_t skipped = window > 0 && position + 1 > window ? position + 1 - window : 0;
      const int64_t seen = position + count - skipped;
      if (window > 0) {
        mask.assign(size_t(count * seen), 1);
        for (int64_t i = 0; i < count; i++)
          for (int64_t j = 0; j < position + i + 1 - window - skipped; j++) mask[size_t(i * seen + j)] = 0;
      }
      const T* keys_begin = kv + skipped * key_row;
      attention<T>(1, heads, kv_heads, count, seen, head_dim, head_dim, q + (first + begin) * q_row, 0, q_head, q_row, keys_begin, 0,
                   width, key_row, keys_begin + head_dim, 0, width, key_row,
                   int64_t(window > 0 ? Mask::boolean : Mask::none), mask.data(), 0, 0, seen, 1,
                   position + 1 - skipped, scale, out + (first + begin) * heads * head_dim, 0, head_dim, heads * head_dim, nullptr,
                   threads);
    }
  }
}

}  // namespace bi
