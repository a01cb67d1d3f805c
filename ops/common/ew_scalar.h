// The scalar meaning of every elementwise code, written once: ew_eval<code, T>(a, b, c).
//
// T is the class that the arithmetic is done in: double, float, int64_t or uint64_t. Truth values
// are 0 and 1 of T. Edge values follow PyTorch: NaN wins in min and max; round is half to even;
// relu(NaN) is NaN; integers divide by truncation, and x / 0 = x mod 0 = 0 (nothing traps); integer
// overflow wraps. ew_defined<code, T>() says which pairs exist.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "graph/op_def.h"

namespace ortrain::ops {

constexpr bool ew_bits(Ew c) {
  return c == Ew::kBitAnd || c == Ew::kBitOr || c == Ew::kBitXor || c == Ew::kBitNot ||
         c == Ew::kShiftLeft || c == Ew::kShiftRight;
}

template <Ew c, class T>
constexpr bool ew_defined() {
  if (c == Ew::kNone || c >= Ew::kCount) return false;
  if (std::floating_point<T>) return !ew_bits(c);
  switch (c) {
    case Ew::kIdentity:
    case Ew::kCast:
    case Ew::kAdd:
    case Ew::kSub:
    case Ew::kMul:
    case Ew::kDiv:
    case Ew::kPow:
    case Ew::kMin:
    case Ew::kMax:
    case Ew::kMod:
    case Ew::kFmod:
    case Ew::kNeg:
    case Ew::kAbs:
    case Ew::kSign:
    case Ew::kRelu:
    case Ew::kReluGrad:
    case Ew::kFloor:
    case Ew::kCeil:
    case Ew::kRound:
    case Ew::kTrunc:
    case Ew::kEqual:
    case Ew::kGreater:
    case Ew::kGreaterEqual:
    case Ew::kLess:
    case Ew::kLessEqual:
    case Ew::kNot:
    case Ew::kAnd:
    case Ew::kOr:
    case Ew::kXor:
    case Ew::kWhere:
    case Ew::kToBool:
    case Ew::kIsNan:
    case Ew::kIsInf: return true;
    default: return ew_bits(c);
  }
}

// Integer arithmetic without undefined behaviour: done in uint64_t, which wraps.
template <class T>
T int_power(T base, T exponent) {
  if (std::signed_integral<T> && exponent < 0) {
    if (base == 1) return 1;
    if (base == static_cast<T>(-1)) return exponent % 2 == 0 ? T(1) : static_cast<T>(-1);
    return 0;
  }
  uint64_t result = 1, b = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, b *= b)
    if (e & 1) result *= b;
  return static_cast<T>(result);
}

template <class T>
T int_divide(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::signed_integral<T>)
    if (b == -1) return static_cast<T>(0 - static_cast<uint64_t>(a));
  return a / b;
}

template <class T>
T int_remainder(T a, T b, bool sign_of_divisor) {
  if (b == 0) return 0;
  if constexpr (std::signed_integral<T>)
    if (b == -1) return 0;
  const T r = a % b;
  return sign_of_divisor && r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

inline constexpr double kSqrtHalf = 0.70710678118654752440;
inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;
inline constexpr double kGeluCubic = 0.044715;

template <Ew c, class T>
T ew_eval_float(T a, T b, [[maybe_unused]] T cc) {
  if constexpr (c == Ew::kPow) return std::pow(a, b);
  if constexpr (c == Ew::kMod) {
    const T r = std::fmod(a, b);
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
  }
  if constexpr (c == Ew::kFmod) return std::fmod(a, b);
  if constexpr (c == Ew::kSqrt) return std::sqrt(a);
  if constexpr (c == Ew::kRsqrt) return 1 / std::sqrt(a);
  if constexpr (c == Ew::kReciprocal) return 1 / a;
  if constexpr (c == Ew::kExp) return std::exp(a);
  if constexpr (c == Ew::kLog) return std::log(a);
  if constexpr (c == Ew::kExpm1) return std::expm1(a);
  if constexpr (c == Ew::kLog1p) return std::log1p(a);
  if constexpr (c == Ew::kSin) return std::sin(a);
  if constexpr (c == Ew::kCos) return std::cos(a);
  if constexpr (c == Ew::kTan) return std::tan(a);
  if constexpr (c == Ew::kAsin) return std::asin(a);
  if constexpr (c == Ew::kAcos) return std::acos(a);
  if constexpr (c == Ew::kAtan) return std::atan(a);
  if constexpr (c == Ew::kSinh) return std::sinh(a);
  if constexpr (c == Ew::kCosh) return std::cosh(a);
  if constexpr (c == Ew::kAsinh) return std::asinh(a);
  if constexpr (c == Ew::kAcosh) return std::acosh(a);
  if constexpr (c == Ew::kAtanh) return std::atanh(a);
  if constexpr (c == Ew::kTanh) return std::tanh(a);
  if constexpr (c == Ew::kSigmoid) return 1 / (1 + std::exp(-a));
  if constexpr (c == Ew::kErf) return std::erf(a);
  if constexpr (c == Ew::kSoftplus)
    return std::isnan(a) ? a : std::fmax(a, T(0)) + std::log1p(std::exp(-std::fabs(a)));
  if constexpr (c == Ew::kFloor) return std::floor(a);
  if constexpr (c == Ew::kCeil) return std::ceil(a);
  if constexpr (c == Ew::kRound) return std::nearbyint(a);
  if constexpr (c == Ew::kTrunc) return std::trunc(a);
  if constexpr (c == Ew::kIsNan) return std::isnan(a) ? 1 : 0;
  if constexpr (c == Ew::kIsInf) return std::isinf(a) ? 1 : 0;
  if constexpr (c == Ew::kLeakyRelu) return a >= 0 ? a : b * a;
  if constexpr (c == Ew::kGelu) return T(0.5) * a * (1 + std::erf(a * T(kSqrtHalf)));
  if constexpr (c == Ew::kGeluGrad)  // (dy, x)
    return a * (T(0.5) * (1 + std::erf(b * T(kSqrtHalf))) +
                b * T(kInvSqrt2Pi) * std::exp(T(-0.5) * b * b));
  if constexpr (c == Ew::kGeluTanh)
    return T(0.5) * a * (1 + std::tanh(T(kSqrt2OverPi) * (a + T(kGeluCubic) * a * a * a)));
  if constexpr (c == Ew::kGeluTanhGrad) {  // (dy, x)
    const T t = std::tanh(T(kSqrt2OverPi) * (b + T(kGeluCubic) * b * b * b));
    return a * (T(0.5) * (1 + t) +
                T(0.5) * b * (1 - t * t) * T(kSqrt2OverPi) * (1 + 3 * T(kGeluCubic) * b * b));
  }
  return 0;
}

template <Ew c, class T>
T ew_eval([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T cc) {
  constexpr bool integer = std::integral<T>;
  [[maybe_unused]] const auto u = [](T v) { return static_cast<uint64_t>(v); };
  if constexpr (c == Ew::kIdentity || c == Ew::kCast)
    return a;
  else if constexpr (c == Ew::kEqual)
    return a == b;
  else if constexpr (c == Ew::kGreater)
    return a > b;
  else if constexpr (c == Ew::kGreaterEqual)
    return a >= b;
  else if constexpr (c == Ew::kLess)
    return a < b;
  else if constexpr (c == Ew::kLessEqual)
    return a <= b;
  else if constexpr (c == Ew::kNot)
    return a == 0;
  else if constexpr (c == Ew::kToBool)
    return a != 0;
  else if constexpr (c == Ew::kAnd)
    return a != 0 && b != 0;
  else if constexpr (c == Ew::kOr)
    return a != 0 || b != 0;
  else if constexpr (c == Ew::kXor)
    return (a != 0) != (b != 0);
  else if constexpr (c == Ew::kWhere)
    return a != 0 ? b : cc;
  else if constexpr (c == Ew::kMin)
    return a != a ? a : (b != b || b < a) ? b : a;
  else if constexpr (c == Ew::kMax)
    return a != a ? a : (b != b || b > a) ? b : a;
  else if constexpr (c == Ew::kSign)
    return a > 0 ? T(1) : a < 0 ? static_cast<T>(-1) : a;
  else if constexpr (c == Ew::kRelu)
    return a > 0 || a != a ? a : T(0);
  else if constexpr (c == Ew::kReluGrad)
    return b <= 0 ? T(0) : a;  // (dy, x or y)
  else if constexpr (integer) {
    if constexpr (c == Ew::kAdd) return static_cast<T>(u(a) + u(b));
    if constexpr (c == Ew::kSub) return static_cast<T>(u(a) - u(b));
    if constexpr (c == Ew::kMul) return static_cast<T>(u(a) * u(b));
    if constexpr (c == Ew::kNeg) return static_cast<T>(0 - u(a));
    if constexpr (c == Ew::kAbs) return a < 0 ? static_cast<T>(0 - u(a)) : a;
    if constexpr (c == Ew::kDiv) return int_divide(a, b);
    if constexpr (c == Ew::kMod) return int_remainder(a, b, true);
    if constexpr (c == Ew::kFmod) return int_remainder(a, b, false);
    if constexpr (c == Ew::kPow) return int_power(a, b);
    if constexpr (c == Ew::kFloor || c == Ew::kCeil || c == Ew::kRound || c == Ew::kTrunc) return a;
    if constexpr (c == Ew::kBitAnd) return a & b;
    if constexpr (c == Ew::kBitOr) return a | b;
    if constexpr (c == Ew::kBitXor) return a ^ b;
    if constexpr (c == Ew::kBitNot) return ~a;
    if constexpr (c == Ew::kShiftLeft) return u(b) > 63 ? T(0) : static_cast<T>(u(a) << u(b));
    if constexpr (c == Ew::kShiftRight) return u(b) > 63 ? T(0) : static_cast<T>(u(a) >> u(b));
    return 0;
  } else {
    if constexpr (c == Ew::kAdd) return a + b;
    if constexpr (c == Ew::kSub) return a - b;
    if constexpr (c == Ew::kMul) return a * b;
    if constexpr (c == Ew::kDiv) return a / b;
    if constexpr (c == Ew::kNeg) return -a;
    if constexpr (c == Ew::kAbs) return std::fabs(a);
    return ew_eval_float<c, T>(a, b, cc);
  }
}

}  // namespace ortrain::ops
