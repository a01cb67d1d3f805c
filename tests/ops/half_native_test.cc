// Kernels that multiply 16-bit floats as they are (ORTRAIN_HALF=native), on any CPU for whose
// instructions the library has them, against the reference kernel in double precision on the same
// (rounded) inputs.
//
// Every example of the products' records, odd and larger sizes besides. The bound is what rounding
// allows: u |y| for the one rounding of a result (u = 2^-8 for bf16, 2^-11 for f16, to nearest),
// and 2u times the norm of a value's terms where a kernel rounds an operand of its own (attention's
// probabilities). A kernel that summed in 16 bits would be outside of it from some hundred terms
// on.
#include <gtest/gtest.h>

#include <cstdlib>

#include "graph/half.h"
#include "ops/common/half_units.h"
#include "ops/common/onednn.h"
#include "tests/ops/example_case.h"

namespace ortrain::test {
namespace {

// Before anything asks which way products go.
const bool kForced = setenv("ORTRAIN_HALF", "native", 1) == 0;

KernelQuery query_of(const Case& c) {
  KernelQuery q;
  const Node& node = c.g.node(c.n);
  q.op = node.op->name;
  q.attrs = node.attrs;
  q.threads = 2;
  for (ValueId v : node.inputs) {
    q.in.push_back(v == kNone ? TensorDesc{}
                              : TensorDesc{c.g.value(v).dtype, c.g.value(v).shape.values()});
    q.constants.push_back(nullptr);
  }
  for (ValueId v : node.outputs)
    q.out.push_back(v == kNone ? TensorDesc{}
                               : TensorDesc{c.g.value(v).dtype, c.g.value(v).shape.values()});
  return q;
}

std::vector<HostTensor> run(const Kernel& k, const KernelQuery& q,
                            const std::vector<HostTensor>& inputs) {
  std::vector<HostTensor> outs;
  for (const TensorDesc& t : q.out)
    outs.emplace_back(t.present() ? t.dtype : DType::kF32, t.present() ? t.dims : Dims{0});
  std::vector<const void*> in;
  std::vector<void*> out;
  for (size_t i = 0; i < q.in.size(); ++i)
    in.push_back(q.in[i].present() ? static_cast<const void*>(inputs[i].raw()) : nullptr);
  for (size_t i = 0; i < outs.size(); ++i)
    out.push_back(q.out[i].present() ? outs[i].mutable_raw() : nullptr);
  in.resize(16, nullptr);
  out.resize(8, nullptr);
  std::vector<std::byte> memory(k.workspace + 64, std::byte{0xff});  // scratch begins as NaN
  void* scratch = memory.data();
  size_t room = memory.size();
  std::align(64, k.workspace, scratch, room);
  Fault fault;
  k.run({in.data(), out.data(), scratch, &fault});
  return outs;
}

struct Allowed {
  double own = 1;    // roundings of the result, in units of its size
  double terms = 0;  // roundings inside, in units of the result's root mean square
};

// Runs kernel `name` in `dtype` against the last kernel of the record in f64.
void check(const OpDef& op, Example e, const std::string& what, DType dtype, const char* name,
           const Allowed& allowed, bool must_take) {
  SCOPED_TRACE(what);
  if (op.name == "ortrain.AttentionGrad") e.in[5].dtype = DType::kF32;  // statistics
  const bool lstm = op.name == "ortrain.LSTMGrad";
  if (lstm || op.name == "ortrain.GRUGrad" || op.name == "ortrain.RNNGrad")  // what is saved
    e.in[lstm ? 8 : 7].dtype = e.in[lstm ? 9 : 7].dtype = DType::kF32;
  const Case narrow = make_case(op, e, dtype), wide = make_case(op, e, DType::kF64);
  const KernelQuery q = query_of(narrow), exact = query_of(wide);
  const KernelEntry* kernel = nullptr;
  for (const KernelEntry& k : op.kernels)
    if (std::string(k.name) == name) kernel = &k;
  ASSERT_TRUE(kernel);
  if (const std::string why = kernel->reject ? kernel->reject(q) : ""; !why.empty()) {
    EXPECT_FALSE(must_take) << why;
    return;
  }
  std::vector<HostTensor> inputs, doubles;
  for (size_t i = 0; i < q.in.size(); ++i) {
    const HostTensor* t = node_inputs(narrow)[i];
    inputs.push_back(t ? t->cast(t->dtype()) : HostTensor(DType::kF32, {0}));
    doubles.push_back(!t                     ? HostTensor(DType::kF32, {0})
                      : is_float(t->dtype()) ? t->cast(DType::kF64)
                                             : t->cast(t->dtype()));
  }
  const std::vector<HostTensor> got = run(kernel->prepare(q), q, inputs);
  const std::vector<HostTensor> want = run(op.kernels.back().prepare(exact), exact, doubles);
  const double u = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!exact.out[i].present()) continue;
    double squares = 0;
    for (int64_t j = 0; j < want[i].count(); ++j)
      if (std::isfinite(want[i].as_double(j)))
        squares += want[i].as_double(j) * want[i].as_double(j);
    const double rms =
        std::sqrt(squares / std::max<double>(1, static_cast<double>(want[i].count())));
    for (int64_t j = 0; j < want[i].count(); ++j) {
      const double x = got[i].as_double(j), y = want[i].as_double(j);
      if (!std::isfinite(y)) {
        EXPECT_TRUE(std::isnan(y) ? std::isnan(x) : x == y) << i << " at " << j;
        continue;
      }
      // 1e-5 rms: sums in f32.
      const double bound =
          u * (1.001 * allowed.own * std::abs(y) + allowed.terms * rms) + 1e-5 * rms + 1e-7;
      ASSERT_LE(std::abs(x - y), bound) << "output " << i << " at " << j << ": " << x << ", " << y;
    }
  }
}

void check_op(const std::string& op_name, const char* kernel, const Allowed& allowed,
              const std::vector<Example>& more,
              std::vector<DType> dtypes = {DType::kBF16, DType::kF16}) {
  ASSERT_TRUE(kForced);
  const OpDef& op = *all_ops().find(op_name);
  std::erase_if(dtypes, [](DType dtype) { return !ops::native_half(dtype); });
  if (dtypes.empty()) GTEST_SKIP() << "the library multiplies no 16-bit floats on this CPU";
  for (const DType dtype : dtypes) {
    for (size_t i = 0; i < op.examples.size(); ++i)
      check(op, op.examples[i], label(op, i, std::string(name_of(dtype))), dtype, kernel, allowed,
            false);
    for (size_t i = 0; i < more.size(); ++i)
      check(op, more[i], label(op, 1000 + i, std::string(name_of(dtype))), dtype, kernel, allowed,
            true);
  }
}

using L = std::vector<int64_t>;
const Attrs kNhwc = {{"channels_last", int64_t{1}}, {"pads", L{1, 1, 1, 1}}};
Attrs with(Attrs a, const char* name, L value) {
  a.set(name, value);
  return a;
}

const Attrs kTransB = {{"trans_b", int64_t{1}}};

TEST(HalfNative, Linear) {
  check_op("ortrain.Linear", "half", {},
           {{.in = {f({133, 517}, -1, 1), f({67, 517}, -1, 1), f({67})}, .attrs = kTransB}});
  check_op("Gemm", "half", {}, {{.in = {f({133, 517}, -1, 1), f({517, 67}, -1, 1), f({67})}}});
}
TEST(HalfNative, LinearGradInput) {
  check_op("ortrain.LinearGradInput", "half", {},
           {{.in = {f({133, 517}, -1, 1), f({67, 517}, -1, 1)}}});
}
TEST(HalfNative, LinearGradWeight) {
  const std::vector<ExampleInput> in{f({3, 1033, 65}, -1, 1), f({3, 1033, 131}, -1, 1)};
  check_op("ortrain.LinearGradWeight", "half", {},
           {{.in = in, .outputs = 2}, {.in = in, .attrs = kTransB, .outputs = 2}, {.in = in}});
}
TEST(HalfNative, LinearRows) {
  for (const char* op :
       {"ortrain.LinearRows", "ortrain.LinearRowsGradInput", "ortrain.LinearRowsGradWeight"})
    check_op(op, "half", {}, {});
}
TEST(HalfNative, MatMul) {
  const ExampleInput a = f({3, 5, 37, 67}, -1, 1);
  check_op("MatMul", "half", {},
           {{.in = {a, f({3, 5, 67, 41}, -1, 1)}},
            {.in = {a, f({5, 41, 67}, -1, 1)}, .attrs = kTransB},
            {.in = {a, f({3, 5, 37, 29}, -1, 1)}, .attrs = {{"trans_a", int64_t{1}}}}});
}
TEST(HalfNative, Conv) {
  check_op("Conv", "onednn", {},
           {{.in = {f({2, 13, 11, 67}, -1, 1), f({45, 67, 3, 3}, -1, 1), f({45})}, .attrs = kNhwc},
            {.in = {f({2, 17, 9, 9}, -1, 1), f({19, 17, 3, 3}, -1, 1), f({19})},
             .attrs = {{"strides", L{2, 2}}}},
            {.in = {f({3, 7, 7, 512}, -1, 1), f({33, 512, 1, 1}, -1, 1)},
             .attrs = {{"channels_last", int64_t{1}}}}});
}
TEST(HalfNative, ConvGradInput) {
  check_op("ortrain.ConvGradInput", "onednn", {},
           {{.in = {f({2, 13, 11, 45}, -1, 1), f({45, 67, 3, 3}, -1, 1)},
             .attrs = with(kNhwc, "in_shape", {2, 13, 11, 67})}});
}
TEST(HalfNative, ConvGradWeight) {
  check_op("ortrain.ConvGradWeight", "onednn", {},
           {{.in = {f({2, 13, 11, 67}, -1, 1), f({2, 13, 11, 45}, -1, 1)},
             .attrs = with(kNhwc, "w_shape", {45, 67, 3, 3}),
             .outputs = 2},
            {.in = {f({16, 33, 33, 8}, -1, 1), f({16, 33, 33, 16}, -1, 1)},
             .attrs = with(kNhwc, "w_shape", {16, 8, 3, 3}),
             .outputs = 2}});
}

const Attrs kCausal = {{"scale", 0.3}, {"causal", int64_t{1}}};

// Probabilities are rounded before they meet the values: at most u times the sum of |p v|, which
// these values of one sign hardly let cancel.
TEST(HalfNative, Attention) {
  const auto x = [](int64_t rows, int64_t width) { return f({2, 3, rows, width}, 0.2, 1); };
  check_op("ortrain.Attention", "half", {1, 2},
           {{.in = {x(150, 20), x(150, 20), x(150, 33)}, .attrs = kCausal, .outputs = 1},
            {.in = {x(261, 16), x(77, 16), x(77, 17), bools({2, 1, 1, 77})}},
            {.in = {x(1, 64), x(300, 64), x(300, 64)}}});
}
TEST(HalfNative, AttentionGrad) {
  const auto x = [](int64_t rows, int64_t width) { return f({2, 3, rows, width}, -.5, .5); };
  const auto stats = [](int64_t rows) { return f({2, 3, rows, 2}, 1, 2); };
  check_op(
      "ortrain.AttentionGrad", "half", {1, 6},
      {{.in = {x(150, 20), x(150, 20), x(150, 33), absent(), x(150, 33), stats(150), x(150, 33)},
        .attrs = kCausal,
        .outputs = 3},
       {.in = {x(261, 16), x(77, 16), x(77, 17), bools({2, 1, 1, 77}), x(261, 17), stats(261),
               x(261, 17)},
        .outputs = 3}});
}

// The f32 kernel on 16-bit operands: rounded once. Key heads that serve groups, tokens before
// heads, masks of every type.
TEST(HalfNative, AttentionInF32) {
  const auto x = [](int64_t heads, int64_t rows, int64_t width) {
    return f({2, heads, rows, width}, -1, 1);
  };
  const auto y = [](int64_t rows) { return f({2, 4, rows, 33}, -1, 1); };
  const auto bits = [](int64_t keys) { return bools({2, 1, 1, keys}); };
  const ExampleInput qkv = f({2, 70, 3, 4, 17}, -1, 1), one = f({2, 70, 4, 17}, -1, 1);
  Attrs tokens = kCausal;
  tokens.set("token_major", int64_t{1});
  std::vector<Example> forward, backward;
  for (const ExampleInput& mask : {absent(), bits(77), f({1, 4, 1, 77}), f({37, 77})}) {
    forward.push_back({.in = {x(4, 37, 20), x(2, 77, 20), x(2, 77, 33), mask}, .outputs = 2});
    backward.push_back({.in = {x(4, 37, 20), x(2, 77, 20), x(2, 77, 33), mask, y(37),
                               f({2, 4, 37, 2}, 1, 2), y(37)},
                        .outputs = 3});
  }
  forward.push_back({.in = {qkv}, .attrs = tokens, .outputs = 2});
  backward.push_back({.in = {qkv, absent(), absent(), absent(), one, f({2, 4, 70, 2}, 1, 2), one},
                      .attrs = tokens});
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const auto& [name, examples] :
         {std::pair("ortrain.Attention", forward), std::pair("ortrain.AttentionGrad", backward)}) {
      const OpDef& op = *all_ops().find(name);
      for (size_t i = 0; i < examples.size(); ++i)
        check(op, examples[i], label(op, i, std::string(name_of(dtype))), dtype, "simd", {}, true);
    }
}

// Recurrent layers round h, and backward the gates' gradients, before each product of theirs. Such
// an error is u of a term at a time; later steps, whose weights may exceed 1, and both products of
// a value add to it: hence 4 and 6.
const char* const kWays[] = {"forward", "reverse", "bidirectional"};
struct Recurrent {
  const char* name;
  int64_t gates, saved;
  Attrs attrs;
};
const Recurrent kLayers[] = {{"LSTM", 4, 4, {}},
                             {"GRU", 3, 4, {{"linear_before_reset", int64_t{0}}}},
                             {"GRU", 3, 4, {{"linear_before_reset", int64_t{1}}}},
                             {"RNN", 1, 1, {}}};
// f16 where the library sums its products in f32.
std::vector<DType> recurrent_types() {
  const auto f16 = [] {
    onednn::inner_product(onednn::dense({3, 4}, DType::kF16), onednn::any({5, 4}, DType::kF16),
                          onednn::Md(), onednn::dense({3, 5}), onednn::Make::kProbe);
  };
  if (onednn::why_not(f16).empty()) return {DType::kBF16, DType::kF16};
  return {DType::kBF16};
}
// Layers of odd and even sizes, of few samples (the library's products) and of many (OwnRows).
struct Size {
  int64_t steps, batch, input, hidden;
};
const Size kSizes[] = {{5, 3, 7, 13}, {4, 9, 33, 27}, {4, 19, 18, 50}};

int64_t directions(const std::string& way) { return way == "bidirectional" ? 2 : 1; }
// What a layer and its gradient begin with: X, W, R, B, lengths and the states before.
Example layer(const Recurrent& l, const std::string& way, const Size& n) {
  const int64_t d = directions(way), wide = l.gates * n.hidden;
  const double r = 1 / std::sqrt(static_cast<double>(n.hidden));
  const ExampleInput state = f({d, n.batch, n.hidden}, -1, 1);
  std::vector<int64_t> lens(static_cast<size_t>(n.batch), n.steps);
  lens[1] = 1, lens[2] = 3;
  Example e{.in = {f({n.steps, n.batch, n.input}, -1, 1), f({d, wide, n.input}, -r, r),
                   f({d, wide, n.hidden}, -r, r), f({d, 2 * wide}, -r, r), iconst({n.batch}, lens),
                   state},
            .attrs = l.attrs};
  if (l.gates == 4) e.in.push_back(state);
  e.attrs.set("direction", way);
  return e;
}

TEST(HalfNative, Recurrent) {
  for (const Recurrent& l : kLayers) {
    std::vector<Example> more;
    for (const char* way : kWays)
      for (const Size& n : kSizes) {
        more.push_back(layer(l, way, n));
        more.back().outputs = l.gates == 4 ? 3 : 2;
      }
    check_op(l.name, "half", {1, 4}, more, recurrent_types());
  }
}
TEST(HalfNative, RecurrentGrad) {
  for (const Recurrent& l : kLayers) {
    std::vector<Example> more;
    for (const char* way : kWays)
      for (const Size& n : kSizes) {
        const int64_t d = directions(way);
        const ExampleInput y = f({n.steps, d, n.batch, n.hidden}, -1, 1);
        const ExampleInput state = f({d, n.batch, n.hidden}, -1, 1);
        Example e = layer(l, way, n);
        e.outputs = l.gates == 4 ? 6 : 5;
        e.in.push_back(y);
        e.in.push_back(f({d, n.steps, n.batch, l.saved * n.hidden}, 0.1, 0.9));
        if (l.gates == 4) e.in.push_back(f({d, n.steps, n.batch, n.hidden}, -1, 1));
        e.in.push_back(y);      // dY
        e.in.push_back(state);  // dY_h
        if (l.gates == 4) e.in.push_back(state);
        more.push_back(std::move(e));
      }
    check_op(cat("ortrain.", l.name, "Grad"), "half", {1, 6}, more, recurrent_types());
  }
}

}  // namespace
}  // namespace ortrain::test
