// docs/numerics.md section 8: attention.
#include "arithmetic.h"

namespace reference {

// One query row against every key: query [head_dim], key [keys, head_dim], value [keys, value_dim], float_mask and
// bool_mask [keys] (either may be null), out [value_dim]. A causal row sees the keys 0..query_at. Returns lse.
template <typename T>
T attention_row(const T* query, const T* key, const T* value, const T* float_mask, const uint8_t* bool_mask, T* out,
                int64_t query_at, bool is_causal, int64_t keys, int64_t head_dim, int64_t value_dim, T scale) {
  const T minus_infinity = -std::numeric_limits<T>::infinity();
  std::vector<bool> masked(keys, false);
  bool all_masked = true;
  for (int64_t j = 0; j < keys; ++j) {
    if (bool_mask != nullptr && bool_mask[j] == 0) masked[j] = true;
    if (float_mask != nullptr && float_mask[j] == minus_infinity) masked[j] = true;
    if (is_causal && j > query_at) masked[j] = true;
    if (!masked[j]) all_masked = false;
  }
  if (all_masked) {
    for (int64_t d = 0; d < value_dim; ++d) out[d] = T(0);
    return minus_infinity;
  }

  std::vector<T> s(keys);
  T m = minus_infinity;
  for (int64_t j = 0; j < keys; ++j) {
    if (masked[j]) continue;
    LaneSum<T> dot(kMatmulLanes);
    for (int64_t d = 0; d < head_dim; ++d) {
      dot.add_product(d, query[d], key[j * head_dim + d]);
    }
    s[j] = dot.total() * scale;
    if (float_mask != nullptr) s[j] = s[j] + float_mask[j];
    m = maximum(m, s[j]);
  }

  std::vector<T> e(keys);
  LaneSum<T> z_lanes(kSumLanes);
  for (int64_t j = 0; j < keys; ++j) {
    if (masked[j]) continue;
    e[j] = exponential(s[j] - m);
    z_lanes.add(j, e[j]);
  }
  const T z = z_lanes.total();

  for (int64_t d = 0; d < value_dim; ++d) {
    LaneSum<T> o(kMatmulLanes);
    for (int64_t j = 0; j < keys; ++j) {
      if (masked[j]) continue;
      o.add_product(j, e[j], value[j * value_dim + d]);
    }
    out[d] = o.total() / z;
  }
  return m + std::log(z);
}

// query [batch, heads, queries, head_dim], key [batch, kv_heads, keys, head_dim],
// value [batch, kv_heads, keys, value_dim], masks [batch, heads, queries, keys],
// out [batch, heads, queries, value_dim], lse [batch, heads, queries].
template <typename T>
void attention(const T* query, const T* key, const T* value, const T* float_mask, const uint8_t* bool_mask, T* out,
               T* lse, int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t head_dim,
               int64_t value_dim, int64_t is_causal, double scale) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = b * kv_heads + h / (heads / kv_heads);
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = (b * heads + h) * queries + i;
        lse[row] = attention_row<T>(query + row * head_dim, key + kv * keys * head_dim, value + kv * keys * value_dim,
                                    float_mask == nullptr ? nullptr : float_mask + row * keys,
                                    bool_mask == nullptr ? nullptr : bool_mask + row * keys, out + row * value_dim, i,
                                    is_causal != 0, keys, head_dim, value_dim, static_cast<T>(scale));
      }
    }
  }
}

}  // namespace reference

#define ENTRY(T)                                                                                                  \
  extern "C" void attention_##T(const T* query, const T* key, const T* value, const T* float_mask,                \
                                const uint8_t* bool_mask, T* out, T* lse, int64_t batch, int64_t heads,           \
                                int64_t kv_heads, int64_t queries, int64_t keys, int64_t head_dim,                \
                                int64_t value_dim, int64_t is_causal, double scale) {                             \
    reference::attention<T>(query, key, value, float_mask, bool_mask, out, lse, batch, heads, kv_heads, queries,  \
                            keys, head_dim, value_dim, is_causal, scale);                                         \
  }
FOR_EACH_ACCUMULATION_TYPE(ENTRY)
