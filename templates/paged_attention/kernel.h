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
// A request with more work than this, in element operations, is shared by all threads; smaller ones (a decode step) are dealt out whole,
// one KV head at a time, since a parallel region for each of them would cost more than it saves.
constexpr double work_to_share = 4e6;

constexpr int64_t keys_ahead = 8;  // that a copy asks for

// Thread-local memory that later calls use again.
template <class T>
struct Workspace {
  std::vector<T> copy;
  std::vector<uint8_t> mask;
  static Workspace& of_this_thread() {
    static thread_local Workspace workspace;
    return workspace;
  }
};

// Strides and sizes as in the comment of paged_attention.
template <class T>
struct PagedAttention {
  int64_t heads, kv_heads, head_dim, block_size;
  const T* q;
  int64_t q_row, q_head;
  const T* cache;
  const int64_t* table;
  int64_t table_row;
  const int64_t *starts, *lengths;
  int64_t window;
  double scale;
  T* out;

  int64_t width() const { return 2 * head_dim; }
  int64_t queries(int64_t request) const { return starts[request + 1] - starts[request]; }

  // Element operations of one KV head.
  double work(int64_t request) const {
    return double(queries(request)) * double(heads / kv_heads) * double(lengths[request]) * (double(width()) / 8 + 4);
  }

  // The keys and values of `count` KV heads: where they lie in the cache if the request's blocks follow each other, else a copy of
  // these heads. `row` becomes the number of elements from one key to the next.
  const T* gather(int64_t request, int64_t first_head, int64_t count, std::vector<T>& copy, int64_t threads, int64_t& row) const {
    const int64_t* blocks = table + request * table_row;
    const int64_t keys = lengths[request], used = (keys + block_size - 1) / block_size;
    const int64_t key_elements = kv_heads * width(), block_elements = block_size * key_elements;
    const T* from = cache + first_head * width();
    row = key_elements;
    bool adjacent = true;
    for (int64_t i = 1; i < used && adjacent; i++) adjacent = blocks[i] == blocks[i - 1] + 1;
    if (adjacent) return from + blocks[0] * block_elements;
    row = count * width();
    copy.resize(size_t(keys * row));
    parallel_for(used, double(block_size * row) / 4, int(threads), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const T* block = from + blocks[i] * block_elements;
        const int64_t first = i * block_size, count = keys - first < block_size ? keys - first : block_size;
        for (int64_t j = 0; j < count; j++) {
          if (j + keys_ahead < count) attention_tiles::prefetch_row(block + (j + keys_ahead) * key_elements, row);
          std::memcpy(copy.data() + (first + j) * row, block + j * key_elements, size_t(row) * sizeof(T));
        }
      }
    });
    return copy.data();
  }

  // `count` KV heads of one request.
  void run(int64_t request, int64_t first_head, int64_t count, int64_t threads) const {
    Workspace<T>& workspace = Workspace<T>::of_this_thread();
    const int64_t first = starts[request], all = queries(request), group = heads / kv_heads;
    int64_t row;
    const T* kv = gather(request, first_head, count, workspace.copy, threads, row);
    const T* q_heads = q + first_head * group * q_head;
    T* out_heads = out + first_head * group * head_dim;
    const int64_t step = window > 0 ? queries_at_a_time : all;
    for (int64_t begin = 0; begin < all; begin += step) {
      const int64_t rows = begin + step < all ? step : all - begin;
      const int64_t position = lengths[request] - all + begin;  // of the first query
      // Keys before the window of the first query are left out; the lanes of the others rotate, which changes nothing.
      const int64_t skipped = window > 0 && position + 1 > window ? position + 1 - window : 0;
      const int64_t seen = position + rows - skipped;
      std::vector<uint8_t>& mask = workspace.mask;
      if (window > 0) {
        mask.assign(size_t(rows * seen), 1);
        for (int64_t i = 0; i < rows; i++)
          for (int64_t j = 0; j < position + i + 1 - window - skipped; j++) mask[size_t(i * seen + j)] = 0;
      }
      const T* keys_begin = kv + skipped * row;
      attention<T>(1, count * group, count, rows, seen, head_dim, head_dim, q_heads + (first + begin) * q_row, 0, q_head, q_row,
                   keys_begin, 0, width(), row, keys_begin + head_dim, 0, width(), row,
                   int64_t(window > 0 ? Mask::boolean : Mask::none), mask.data(), 0, 0, seen, 1, position + 1 - skipped, scale,
                   out_heads + (first + begin) * heads * head_dim, 0, head_dim, heads * head_dim, nullptr, threads);
    }
  }
};

}  // namespace paged

// q [tokens, heads, head_dim], the queries of a request together, each request's last; cache [blocks, block_size, kv_heads, 2 * head_dim],
// a key followed by its value; table [requests, table_row]: the blocks of each request in order; starts [requests + 1]: its first query;
// lengths [requests]: its keys, those of its queries included; out [tokens, heads, head_dim] contiguous. Query i of n sees the keys
// j <= length - n + i, of these the last `window` if that is not 0.
template <class T>
void paged_attention(int64_t requests, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, const T* q, int64_t q_row,
                     int64_t q_head, const T* cache, const int64_t* table, int64_t table_row, const int64_t* starts,
                     const int64_t* lengths, int64_t window, double scale, T* out, int64_t threads) {
  const paged::PagedAttention<T> call{heads, kv_heads, head_dim, block_size, q,       q_row, q_head, cache,
                                      table, table_row, starts,  lengths,    window, scale, out};
  std::vector<int64_t> small;
  std::vector<double> work_before{0};  // of the small requests
  for (int64_t request = 0; request < requests; request++) {
    if (call.queries(request) <= 0) continue;
    const double work = call.work(request) * double(kv_heads);
    if (work > paged::work_to_share) {
      call.run(request, 0, kv_heads, threads);
    } else {
      small.push_back(request);
      work_before.push_back(work_before.back() + work);
    }
  }
  // Equal work for each thread, whose ends fall between two KV heads.
  const double all = work_before.back();
  parallel_for(threads, all / double(threads), int(threads), [&](int64_t first_part, int64_t last_part) {
    const double begin = all * double(first_part) / double(threads), end = all * double(last_part) / double(threads);
    for (size_t i = 0; i < small.size(); i++) {
      const double a_head = (work_before[i + 1] - work_before[i]) / double(kv_heads);
      for (int64_t head = 0; head < kv_heads; head++) {
        const double middle = work_before[i] + a_head * (double(head) + 0.5);
        if (middle >= begin && (middle < end || last_part == threads)) call.run(small[i], head, 1, 1);
      }
    }
  });
}

}  // namespace bi
