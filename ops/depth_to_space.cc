// DepthToSpace and SpaceToDepth: blocks of channels to blocks of pixels and back (NCHW); each is
// one strided copy and the other's gradient. Modes DCR (default) and CRD (PyTorch's pixel_shuffle);
// SpaceToDepth takes the mode as a private attribute so that it can invert both.
#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

struct Spec {
  int64_t block;
  bool crd;
};

Spec spec(const Attrs& attrs) {
  const Spec s{attrs.i("blocksize", 0), attrs.s("mode", "DCR") == "CRD"};
  if (s.block <= 0) fail(ErrorCode::kModel, "blocksize must be positive");
  if (attrs.s("mode", "DCR") != "DCR" && !s.crd)
    fail(ErrorCode::kUnsupported, "mode '", attrs.s("mode", ""), "'");
  return s;
}

Dim divide(InferCtx& c, Dim d, int64_t by) {
  if (d.is_const() && d.value() % by != 0)
    c.fail(cat("an extent of ", c.shape(0).str(), " is no multiple of ", by));
  return floordiv(d, by);
}

void infer_to_space(InferCtx& c) {
  const auto [b, crd] = spec(c.attrs());
  const Shape in = c.shape(0);
  if (in.rank() != 4) c.fail(cat("needs [N,C,H,W], got ", in.str()));
  c.out(0, c.dtype(0), {in[0], divide(c, in[1], b * b), in[2] * Dim(b), in[3] * Dim(b)});
}

void infer_to_depth(InferCtx& c) {
  const auto [b, crd] = spec(c.attrs());
  const Shape in = c.shape(0);
  if (in.rank() != 4) c.fail(cat("needs [N,C,H,W], got ", in.str()));
  c.out(0, c.dtype(0), {in[0], in[1] * Dim(b * b), divide(c, in[2], b), divide(c, in[3], b)});
}

StridedCopy make_to_space(const KernelQuery& q) {
  const auto [b, crd] = spec(q.attrs);
  const Dims& d = q.in[0].dims;
  const int64_t c = d[1] / (b * b);
  const size_t size = size_of(q.in[0].dtype);
  return crd ? permuted({d[0], c, b, b, d[2], d[3]}, {0, 1, 4, 2, 5, 3}, size)
             : permuted({d[0], b, b, c, d[2], d[3]}, {0, 3, 4, 1, 5, 2}, size);
}

StridedCopy make_to_depth(const KernelQuery& q) {
  const auto [b, crd] = spec(q.attrs);
  const Dims& d = q.in[0].dims;
  const Dims in = {d[0], d[1], d[2] / b, b, d[3] / b, b};
  const size_t size = size_of(q.in[0].dtype);
  return crd ? permuted(in, {0, 1, 3, 5, 2, 4}, size) : permuted(in, {0, 3, 5, 1, 2, 4}, size);
}

Expr inverse(Grad& g, const char* op) {
  return g.b.op(op, {g.dy()},
                {{"blocksize", g.attrs().i("blocksize", 0)}, {"mode", g.attrs().s("mode", "DCR")}});
}

}  // namespace

void register_depth_to_space(OpTable& table) {
  table.add({
      .name = "DepthToSpace",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer_to_space,
      .grad = {grad("input", [](Grad& g) { return inverse(g, "SpaceToDepth"); })},
      .kernels = copy_kernels<make_to_space>(),
      .examples = {{.in = {f({2, 8, 3, 2})}, .attrs = {{"blocksize", 2}}},
                   {.in = {f({1, 9, 2, 5})}, .attrs = {{"blocksize", 3}, {"mode", "CRD"}}},
                   {.in = {f({1, 8, 2, 3})}, .attrs = {{"blocksize", 2}, {"mode", "CRD"}}},
                   {.in = {f({1, 2, 2, 3})}, .attrs = {{"blocksize", 1}}},
                   {.in = {f({0, 4, 2, 3})}, .attrs = {{"blocksize", 2}}}},
  });
  table.add({
      .name = "SpaceToDepth",
      .inputs = {"input"},
      .outputs = {"output"},
      .infer = infer_to_depth,
      .grad = {grad("input", [](Grad& g) { return inverse(g, "DepthToSpace"); })},
      .kernels = copy_kernels<make_to_depth>(),
      .examples = {{.in = {f({2, 2, 6, 4})}, .attrs = {{"blocksize", 2}}},
                   {.in = {f({1, 2, 6, 3})}, .attrs = {{"blocksize", 3}, {"mode", "CRD"}}},
                   {.in = {f({1, 1, 0, 2})}, .attrs = {{"blocksize", 2}}}},
  });
}

}  // namespace ortrain::ops
