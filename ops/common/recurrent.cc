// Recurrent operators: reading their attributes, inferring their shapes, and the border around
// their kernels (layout 1, 16-bit floats), which moves each array once.
#include "ops/common/recurrent.h"

#include <strings.h>

#include "graph/half.h"

namespace ortrain::ops {
namespace {

struct Named {
  const char* name;
  Activation act;  // with the defaults of its parameters
  bool has_alpha, has_beta;
};
// Defaults: those of the ONNX operator of that name; Affine and ScaledTanh, which are none, 1 and
// 0, 1 and 1.
constexpr Named kNamed[] = {
    {"Tanh", {Act::kTanh}, false, false},
    {"Sigmoid", {Act::kSigmoid}, false, false},
    {"Relu", {Act::kRelu}, false, false},
    {"Affine", {Act::kAffine, 1, 0}, true, true},
    {"LeakyRelu", {Act::kLeakyRelu, 0.01}, true, false},
    {"ThresholdedRelu", {Act::kThresholdedRelu, 1}, true, false},
    {"ScaledTanh", {Act::kScaledTanh, 1, 1}, true, true},
    {"HardSigmoid", {Act::kHardSigmoid, 0.2, 0.5}, true, true},
    {"Elu", {Act::kElu, 1}, true, false},
    {"Softsign", {Act::kSoftsign}, false, false},
    {"Softplus", {Act::kSoftplus}, false, false},
};

const Named& named(const std::string& name) {
  for (const Named& n : kNamed)
    if (strcasecmp(n.name, name.c_str()) == 0) return n;
  std::string known;
  for (const Named& n : kNamed) known += cat(known.empty() ? "" : ", ", n.name);
  fail(ErrorCode::kUnsupported, "activation '", name, "' is unknown; expected one of ", known);
}

bool both(const Attrs& attrs) { return direction(attrs) == "bidirectional"; }

// Axis i of the layout 1 array is axis perm[i] of the layout 0 array.
std::vector<int64_t> batch_first(Side side) {
  switch (side) {
    case Side::kSequence: return {1, 0, 2};
    case Side::kSteps: return {2, 0, 1, 3};
    case Side::kState: return {1, 0, 2};
    default: return {};
  }
}

Dims row_major(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t k = dims.size(); k-- > 1;) strides[k - 1] = strides[k] * dims[k];
  return strides;
}

// One array on its way in or out.
struct Move {
  size_t index = 0;
  DType outer = DType::kF32, inner = DType::kF32;
  Dims dims, strides;  // of the layout 0 array; strides in the outer one
  int64_t count = 0;
};

template <class From, class To>
void move_elements(const Move& m, const From* from, To* to, bool inward) {
  int64_t at[4] = {};
  const size_t rank = m.dims.size();
  for (int64_t i = 0; i < m.count; ++i) {
    int64_t outer = 0;
    for (size_t k = 0; k < rank; ++k) outer += at[k] * m.strides[k];
    to[inward ? i : outer] = store<To>(static_cast<Acc<To>>(load(from[inward ? outer : i])));
    for (size_t k = rank; k-- > 0;) {
      if (++at[k] < m.dims[k]) break;
      at[k] = 0;
    }
  }
}
constexpr int64_t kGrain = 32768;  // numbers per thread

void move_array(const Move& m, const void* from, void* to, bool inward, int threads) {
  if (is_half(m.outer) && m.inner == DType::kF32 && m.strides == row_major(m.dims))
    return parallel_for(threads, m.count, kGrain, [&](int64_t begin, int64_t end) {
      const auto half = [&](const void* p) { return static_cast<const uint16_t*>(p) + begin; };
      if (inward)
        half_to_float(m.outer, half(from), static_cast<float*>(to) + begin, end - begin);
      else
        float_to_half(m.outer, static_cast<const float*>(from) + begin,
                      const_cast<uint16_t*>(half(to)), end - begin);
    });
  dispatch_float(m.outer, [&]<class Outer>() {
    const auto with = [&]<class Inner>() {
      if (inward)
        move_elements(m, static_cast<const Outer*>(from), static_cast<Inner*>(to), true);
      else
        move_elements(m, static_cast<const Inner*>(from), static_cast<Outer*>(to), false);
    };
    if (m.inner == m.outer) return with.template operator()<Outer>();
    if (m.inner == DType::kF64) return with.template operator()<double>();
    with.template operator()<float>();
  });
}

}  // namespace

CellSpec cell_spec(const Attrs& attrs, std::initializer_list<Act> defaults) {
  CellSpec spec;
  const size_t count = defaults.size(), directions = both(attrs) ? 2 : 1;
  const std::vector<std::string> names = attrs.strings("activations");
  const std::vector<double> alpha = attrs.floats("activation_alpha");
  const std::vector<double> beta = attrs.floats("activation_beta");
  if (!names.empty() && names.size() != count * directions)
    fail(ErrorCode::kUnsupported, "activations has ", names.size(), " names, expected ",
         count * directions);
  size_t a = 0, b = 0;
  for (size_t i = 0; i < count * directions; ++i) {
    Activation& act = spec.act[i / count][i % count];
    if (names.empty()) {
      act.f = defaults.begin()[i % count];
      continue;
    }
    const Named& n = named(names[i]);
    act = n.act;
    if (n.has_alpha && a < alpha.size()) act.alpha = alpha[a++];
    if (n.has_beta && b < beta.size()) act.beta = beta[b++];
  }
  if (attrs.has("clip")) spec.clip = attrs.f("clip", 0);
  // 0 or less: no clipping, as in ONNX Runtime.
  if (!(spec.clip > 0)) spec.clip = std::numeric_limits<double>::infinity();
  spec.couple = attrs.i("input_forget", 0) != 0;
  return spec;
}

void expect_shape(InferCtx& c, int i, const Shape& s, const char* name) {
  if (c.has(i) && prove_equal(c.shape(i), s) == Tri::kNo)
    c.fail(cat(name, " has shape ", c.shape(i).str(), ", expected ", s.str()));
}

Shape state_shape(const InferCtx& c, const Extents& e) {
  return c.attrs().i("layout", 0) ? Shape{e.batch, e.directions, e.hidden}
                                  : Shape{e.directions, e.batch, e.hidden};
}

DType saved_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

Extents infer_recurrent(InferCtx& c, int64_t gates) {
  if (c.rank(0) != 3 || c.rank(1) != 3 || c.rank(2) != 3) c.fail("X, W and R must have rank 3");
  if (!is_float(c.dtype(0))) c.fail(cat("X is ", name_of(c.dtype(0)), ", expected a float type"));
  const std::string way = direction(c.attrs());
  if (way != "forward" && way != "reverse" && way != "bidirectional")
    c.fail(cat("direction '", way, "', expected forward, reverse or bidirectional"));
  const int64_t layout = c.attrs().i("layout", 0);
  if (layout != 0 && layout != 1) c.fail(cat("layout is ", layout, ", expected 0 or 1"));
  const Extents e{both(c.attrs()) ? 2 : 1, c.shape(0)[layout ? 1 : 0], c.shape(0)[layout ? 0 : 1],
                  c.shape(2)[2]};
  expect_shape(c, 1, {e.directions, e.hidden * gates, c.shape(0)[2]}, "W");
  expect_shape(c, 2, {e.directions, e.hidden * gates, e.hidden}, "R");
  expect_shape(c, 3, {e.directions, e.hidden * (2 * gates)}, "B");
  expect_shape(c, 4, {e.batch}, "sequence_lens");
  expect_shape(c, 5, state_shape(c, e), "initial_h");
  for (int i : {1, 2, 3, 5})
    if (c.has(i) && c.dtype(i) != c.dtype(0))
      c.fail(cat("input ", i, " is ", name_of(c.dtype(i)), ", expected ", name_of(c.dtype(0))));
  if (c.has(4) && c.dtype(4) != DType::kI32 && c.dtype(4) != DType::kI64)
    c.fail(cat("sequence_lens is ", name_of(c.dtype(4)), ", expected i32"));
  c.out(0, c.dtype(0),
        layout ? Shape{e.batch, e.steps, e.directions, e.hidden}
               : Shape{e.steps, e.directions, e.batch, e.hidden});
  c.out(1, c.dtype(0), state_shape(c, e));
  return e;
}

double recurrent_flops(const Graph& g, const Node& n) {
  const Shape &x = g.value(n.inputs[0]).shape, &r = g.value(n.inputs[2]).shape;
  if (!x.is_const() || !r.is_const()) return 0;
  const Dims a = x.values(), b = r.values();
  const double once =
      2.0 * static_cast<double>(a[0] * a[1] * b[0] * b[1]) * static_cast<double>(a[2] + b[2]);
  return n.op->name.ends_with("Grad") ? 2 * once : once;
}

Kernel at_border(const KernelQuery& q, const Sides& sides, Kernel (*inner)(const KernelQuery&),
                 bool keep_half) {
  const bool swap = q.attrs.i("layout", 0) != 0;
  KernelQuery plain = q;
  plain.attrs.set("layout", int64_t{0});
  std::fill(plain.constants.begin(), plain.constants.end(), nullptr);
  const auto moves = [&](std::vector<TensorDesc>& all, const auto& side) {
    std::vector<Move> out;
    for (size_t i = 0; i < all.size() && i < side.size(); ++i) {
      if (!all[i].present() || side[i] == Side::kInternal) continue;
      const std::vector<int64_t> perm = swap ? batch_first(side[i]) : std::vector<int64_t>{};
      const bool keep =
          keep_half && i < 3 && (side[i] == Side::kSequence || side[i] == Side::kWeight);
      const DType inside = keep ? all[i].dtype : saved_dtype(all[i].dtype);
      Move m{i, all[i].dtype, inside, all[i].dims, row_major(all[i].dims), all[i].count()};
      if (perm.empty() && m.outer == m.inner) continue;
      const Dims outer_dims = m.dims, outer_strides = m.strides;
      for (size_t k = 0; k < perm.size(); ++k) {
        m.dims[static_cast<size_t>(perm[k])] = outer_dims[k];
        m.strides[static_cast<size_t>(perm[k])] = outer_strides[k];
      }
      all[i].dims = m.dims;
      all[i].dtype = m.inner;
      out.push_back(std::move(m));
    }
    return out;
  };
  std::vector<Move> into = moves(plain.in, sides.in), back = moves(plain.out, sides.out);
  Kernel kernel = inner(plain);
  if (into.empty() && back.empty()) return kernel;
  Cut cut;
  cut.take<std::byte>(static_cast<int64_t>(kernel.workspace));
  for (const std::vector<Move>* list : {&into, &back})
    for (const Move& m : *list)
      cut.take<std::byte>(m.count * static_cast<int64_t>(size_of(m.inner)));
  return {cut.used,
          [into = std::move(into), back = std::move(back), kernel = std::move(kernel),
           inputs = q.in.size(), outputs = q.out.size(), threads = q.threads](const KernelArgs& a) {
            const void* in[14] = {};
            void* out[7] = {};
            std::copy_n(a.in, std::min<size_t>(inputs, 14), in);
            std::copy_n(a.out, std::min<size_t>(outputs, 7), out);
            Cut cut{static_cast<std::byte*>(a.workspace)};
            void* workspace = cut.take<std::byte>(static_cast<int64_t>(kernel.workspace));
            const auto room = [&](const Move& m) {
              return cut.take<std::byte>(m.count * static_cast<int64_t>(size_of(m.inner)));
            };
            for (const Move& m : into) {
              void* to = room(m);
              move_array(m, a.in[m.index], to, true, threads);
              in[m.index] = to;
            }
            for (const Move& m : back) {
              void* to = room(m);
              if (a.out[m.index]) out[m.index] = to;
            }
            kernel.run({in, out, workspace, a.fault});
            for (const Move& m : back)
              if (a.out[m.index]) move_array(m, out[m.index], a.out[m.index], false, threads);
          }};
}

}  // namespace ortrain::ops
