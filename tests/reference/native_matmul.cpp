// docs/numerics.md section 3, "Native bfloat16": what option native_bfloat16 makes of the matmul family's sums.
#include "arithmetic.h"

namespace reference {

constexpr float kSmallestNormal = 0x1p-126f;

// Zero of its sign for a subnormal.
inline float without_subnormal(float x) { return std::fabs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x; }

// One step of the instruction, `a` and `b` being bfloat16. A result is tiny when it would be below the smallest normal number with 24 bits
// and no end of exponents, so before the bits that a subnormal lacks are rounded away.
inline float native_step(float a, float b, float c) {
  a = without_subnormal(a), b = without_subnormal(b), c = without_subnormal(c);
  const float result = std::fma(a, b, c);
  const double product = static_cast<double>(a) * b, limit = 0x1p-126 - 0x1p-151;
  const bool tiny = product < limit - c && product > -limit - c;
  return tiny ? std::copysign(0.0f, result) : result;
}

inline float native_sum(const float* a, const float* b, int64_t depth, int64_t a_stride, int64_t b_stride) {
  LaneSum<float> sum(kMatmulLanes);
  for (int64_t pair = 0; 2 * pair < depth; ++pair) {
    float& lane = sum.lane[pair % kMatmulLanes];
    const int64_t even = 2 * pair, odd = even + 1;
    lane = native_step(odd < depth ? a[odd * a_stride] : 0.0f, odd < depth ? b[odd * b_stride] : 0.0f, lane);
    lane = native_step(a[even * a_stride], b[even * b_stride], lane);
  }
  return sum.total();
}

}  // namespace reference

// As matmul of matmul.cpp.
extern "C" void native_matmul_float(const float* a, const float* b, const float* bias, float* out, int64_t batch, int64_t rows,
                                    int64_t columns, int64_t depth, double alpha, double beta) {
  const float alpha_t = static_cast<float>(alpha), beta_t = static_cast<float>(beta);
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < columns; ++n) {
        float result = reference::native_sum(a + (i * rows + m) * depth, b + i * depth * columns + n, depth, 1, columns);
        const int64_t at = (i * rows + m) * columns + n;
        if (bias != nullptr && beta_t != 0.0f) {
          const float scaled = alpha_t * result;
          const float scaled_bias = beta_t * bias[at];
          result = scaled + scaled_bias;
        } else if (alpha_t != 1.0f) {
          result = alpha_t * result;
        }
        out[at] = result;
      }
    }
  }
}
