// ai.onnx.ml.Scaler: y = (x - offset) * scale along the last axis, as f32; attributes of one
// element serve every column. In front of models exported from scikit-learn.
//
// Gradient by decomposition. Refuses (kShape) offsets or scales of another length.
#include "graph/error.h"
#include "ops/common/elementwise.h"

namespace ortrain::ops {

namespace {

std::vector<double> column_values(const Attrs& a, const char* name, double fallback) {
  std::vector<double> v = a.floats(name);
  if (v.empty()) v.push_back(fallback);
  return v;
}

void infer_scaler(InferCtx& c) {
  if (c.rank(0) < 1) c.fail("needs at least one axis");
  const Dim columns = c.shape(0)[c.rank(0) - 1];
  for (const char* name : {"offset", "scale"}) {
    const size_t n = column_values(c.attrs(), name, 0).size();
    if (n != 1 && prove_equal(columns, Dim(static_cast<int64_t>(n))) == Tri::kNo)
      c.fail(cat(name, " has ", n, " elements, the last axis of ", c.shape(0).str(), " has ",
                 columns.str()));
  }
  c.out(0, c.dtype(0) == DType::kF64 ? DType::kF64 : DType::kF32, c.shape(0));
}

std::vector<Expr> scaler_parts(Decompose& d) {
  const std::vector<double> offset = column_values(d.attrs(), "offset", 0),
                            scale = column_values(d.attrs(), "scale", 1);
  const DType t = d.x(0).dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const auto row = [&](const std::vector<double>& v) {
    HostTensor row(t, {static_cast<int64_t>(v.size())});
    for (size_t i = 0; i < v.size(); ++i) row.set_double(static_cast<int64_t>(i), v[i]);
    return d.b.constant(std::move(row));
  };
  const Expr x = d.b.cast(d.x(0), t), o = row(offset), s = row(scale);
  return {(x - o) * s};
}

}  // namespace

void register_ml_scaler(OpTable& table) {
  table.add(
      {.name = "ai.onnx.ml.Scaler",
       .inputs = {"X"},
       .outputs = {"Y"},
       .infer = infer_scaler,
       .decompose = scaler_parts,
       .examples = {
           {.in = {f({4, 3})},
            .attrs = {{"offset", std::vector<double>{0.5, -1, 2}},
                      {"scale", std::vector<double>{2, 0.25, -1}}}},
           {.in = {f({2, 5})},
            .attrs = {{"offset", std::vector<double>{0.5}}, {"scale", std::vector<double>{2}}}},
           {.in = {ints({4, 3}, -5, 5)}, .attrs = {{"scale", std::vector<double>{2, 0.25, -1}}}}}});
}

}  // namespace ortrain::ops
