// Examples of operator records as one-node graphs with contents, for the generic operator tests.
//
// Promises the same numbers for an example in every float type. Refuses nothing: inference throws
// its Error through make_case.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/error.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {

struct Random {
  uint64_t state;
  double next() {  // [0, 1), SplitMix64
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
};

// One node with its example inputs; float inputs in `dtype`.
struct Case {
  Graph g;
  NodeId n = kNone;
  std::vector<ValueId> floats;  // float inputs that vary
  std::map<ValueId, HostTensor> values;
};

inline HostTensor contents(const ExampleInput& e, DType dtype, Random& random) {
  using Kind = ExampleInput::Kind;
  const bool is_f = e.kind == Kind::kFloat || e.kind == Kind::kFloats;
  HostTensor t(e.dtype != DType::kUndefined ? e.dtype
               : e.kind == Kind::kBool      ? DType::kBool
               : is_f                       ? dtype
                                            : DType::kI64,
               e.dims);
  for (int64_t i = 0; i < t.count(); ++i) {
    double v = e.values.empty() ? e.low + (e.high - e.low) * random.next()
                                : e.values[static_cast<size_t>(i)];
    if (e.values.empty() && e.kind == Kind::kInts) v = std::floor(v);
    if (e.values.empty() && e.kind == Kind::kBool) v = random.next() < 0.5;
    if (is_f) v = static_cast<double>(static_cast<float>(v));  // the same numbers in f32 and f64
    t.set_double(i, v);
  }
  return t;
}

// The same numbers in another type (integers: rounded to zero).
inline HostTensor converted(const HostTensor& t, DType dtype) {
  HostTensor out(dtype, t.dims());
  for (int64_t i = 0; i < t.count(); ++i)
    out.set_double(i, is_integer(dtype) ? std::trunc(t.as_double(i)) : t.as_double(i));
  return out;
}

// Input `odd.input`, if any, is given in another type, or went through it and came back.
struct Odd {
  int input = -1;
  DType dtype = DType::kUndefined;
  bool back = false;
};

inline Case make_case(const OpDef& op, const Example& example, DType dtype, const Odd& odd = {}) {
  Case c{Graph(all_ops()), kNone, {}, {}};
  Random random{0x5eed0 + std::hash<std::string>{}(op.name)};
  std::vector<ValueId> in;
  for (size_t i = 0; i < example.in.size(); ++i) {
    const ExampleInput& e = example.in[i];
    if (e.kind == ExampleInput::Kind::kAbsent) {
      in.push_back(kNone);
      continue;
    }
    HostTensor t = contents(e, dtype, random);
    if (static_cast<int>(i) == odd.input) {
      HostTensor other = converted(t, odd.dtype);
      t = odd.back ? converted(other, t.dtype()) : std::move(other);
    }
    if (e.constant) {
      in.push_back(c.g.add_const(std::move(t)));
      continue;
    }
    const ValueId v = c.g.add_input(cat("x", i), t.dtype(), Shape(t.dims()));
    if (is_float(t.dtype())) c.floats.push_back(v);
    in.push_back(v);
    c.values[v] = std::move(t);
  }
  while (!in.empty() && in.back() == kNone) in.pop_back();
  c.n = c.g.add_node(op, in, example.attrs, example.outputs, "example");
  c.g.infer(c.n);
  const std::vector<ValueId> outs = c.g.node(c.n).outputs;
  for (size_t i = 0; i < outs.size(); ++i) c.g.add_output(outs[i], cat("y", i));
  return c;
}

inline std::string label(const OpDef& op, size_t example, const std::string& what) {
  return cat(op.name, " example ", example, ": ", what);
}

// max |a - b| <= tolerance * max(1, max |b|); NaN and infinities must agree.
inline void expect_close(const HostTensor& a, const HostTensor& b, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(a.dims(), b.dims()) << what;
  double scale = 1, worst = 0;
  for (int64_t i = 0; i < b.count(); ++i)
    if (std::isfinite(b.as_double(i))) scale = std::max(scale, std::abs(b.as_double(i)));
  for (int64_t i = 0; i < a.count(); ++i) {
    const double x = a.as_double(i), y = b.as_double(i);
    if (std::isnan(y) || std::isinf(y)) {
      EXPECT_TRUE(std::isnan(y) ? std::isnan(x) : x == y)
          << what << " element " << i << ": " << x << " vs " << y;
      continue;
    }
    const double d = std::abs(x - y);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  EXPECT_LE(worst, tolerance * scale) << what;
}

inline std::vector<const HostTensor*> node_inputs(const Case& c) {
  std::vector<const HostTensor*> in;
  for (ValueId v : c.g.node(c.n).inputs)
    in.push_back(v == kNone ? nullptr : c.values.contains(v) ? &c.values.at(v) : c.g.tensor(v));
  return in;
}

}  // namespace ortrain::test
