// What the sections of docs/numerics.md share: lane sums (section 2), exp (section 5), an exact maximum.
// Everything here is one scalar operation after the other, in the order the page states it.
// Build with -ffp-contract=off -fsigned-zeros: a fused step is written std::fma, and nothing else is fused.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559, "IEEE 754 is assumed");

namespace reference {

constexpr int64_t kMatmulLanes = 16;
constexpr int64_t kSumLanes = 128;

// Section 2, a lane sum in the making: terms are added with their index, `total` folds. An index may be left out, as
// section 8 does with masked keys.
template <typename T>
struct LaneSum {
  std::vector<T> lane;

  explicit LaneSum(int64_t lanes) : lane(lanes, T(0)) {}

  void add(int64_t i, T term) {
    T& accumulator = lane[i % static_cast<int64_t>(lane.size())];
    accumulator = accumulator + term;
  }

  void add_product(int64_t i, T a, T b) {
    T& accumulator = lane[i % static_cast<int64_t>(lane.size())];
    accumulator = std::fma(a, b, accumulator);
  }

  T total() const {
    std::vector<T> folded = lane;
    for (int64_t half = static_cast<int64_t>(lane.size()) / 2; half >= 1; half /= 2) {
      for (int64_t j = 0; j < half; ++j) {
        folded[j] = folded[j] + folded[j + half];
      }
    }
    return folded[0] + T(0);
  }
};

// The lane sum of x[0..n).
template <typename T>
T sum(const T* x, int64_t n) {
  LaneSum<T> result(kSumLanes);
  for (int64_t i = 0; i < n; ++i) {
    result.add(i, x[i]);
  }
  return result.total();
}

// The lane sum of the products x[i] * x[i].
template <typename T>
T sum_of_squares(const T* x, int64_t n) {
  LaneSum<T> result(kSumLanes);
  for (int64_t i = 0; i < n; ++i) {
    result.add_product(i, x[i], x[i]);
  }
  return result.total();
}

// The larger of the two; NaN if either is NaN.
template <typename T>
T maximum(T a, T b) {
  if (std::isnan(a)) return a;
  if (std::isnan(b)) return b;
  return a > b ? a : b;
}

// Section 5, exp32.
inline float exponential(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.33654f) return 0.0f;
  if (x > 88.37626f) return std::numeric_limits<float>::infinity();
  const float k = std::rint(x * 1.44269504088896341f);
  float r = std::fma(k, -0.693359375f, x);
  r = std::fma(k, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  const float r_squared = r * r;
  const float r_plus_one = r + 1.0f;
  p = std::fma(p, r_squared, r_plus_one);
  if (k == 128.0f) return (p * 0x1p127f) * 2.0f;
  return std::ldexp(p, static_cast<int>(k));
}

// Section 5, exp64.
inline double exponential(double x) {
  if (std::isnan(x)) return x;
  if (x < -708.39) return 0.0;
  if (x > 709.78) return std::numeric_limits<double>::infinity();
  const double k = std::rint(x * 1.4426950408889634);
  double r = std::fma(k, -0x1.62e42fefa39efp-1, x);
  r = std::fma(k, -0x1.abc9e3b39803fp-56, r);
  double factorial = 1.0;
  double c[14];  // 1/j!; every factorial up to 13! is exact in float64, so the division is the one rounding
  for (int j = 0; j <= 13; ++j) {
    if (j > 0) factorial = factorial * j;
    c[j] = 1.0 / factorial;
  }
  double p = c[13];
  for (int j = 12; j >= 0; --j) {
    p = std::fma(p, r, c[j]);
  }
  if (k == 1024.0) return (p * 0x1p1023) * 2.0;
  return std::ldexp(p, static_cast<int>(k));
}

}  // namespace reference

// Each entry point exists for both accumulation types: NAME_float and NAME_double.
#define FOR_EACH_ACCUMULATION_TYPE(ENTRY) \
  ENTRY(float)                            \
  ENTRY(double)
