// The few functions of <cmath> and <algorithm> that the kernels use: those headers take longer to compile than some of the kernels.
//
// Numerics: each is the function of the C library, or the one instruction that is correctly rounded (fma, sqrt).
#pragma once

#include <cstdint>

namespace bi::math {

template <class N>
constexpr N min(N a, N b) {
  return b < a ? b : a;
}
template <class N>
constexpr N max(N a, N b) {
  return a < b ? b : a;
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float nearbyint(float x) { return __builtin_nearbyintf(x); }
inline double nearbyint(double x) { return __builtin_nearbyint(x); }
inline float log(float x) { return __builtin_logf(x); }
inline double log(double x) { return __builtin_log(x); }

}  // namespace bi::math
