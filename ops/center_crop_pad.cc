// CenterCropPad: crops or zero-pads each axis around its middle to the given extents. It means one
// Pad whose negative entries crop. The target shape must be known before training.
#include "graph/error.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

// Target extents of all axes.
Shape target(InferCtx& c) {
  Shape out = c.shape(0);
  const std::vector<Dim> wanted = c.need_ints(1, "the target shape");
  std::vector<int64_t> axes = c.attrs().ints("axes");
  if (!c.attrs().has("axes"))
    for (int i = 0; i < out.rank(); ++i) axes.push_back(i);
  if (axes.size() != wanted.size())
    c.fail(cat("target has ", wanted.size(), " extents for ", axes.size(), " axes"));
  for (size_t i = 0; i < axes.size(); ++i) out[normalize_axis(axes[i], out.rank())] = wanted[i];
  return out;
}

std::vector<Expr> decompose(Decompose& d) {
  InferCtx c(d.b.graph(), d.n);
  const Dims from = d.x(0).shape().values(), to = target(c).values();
  std::vector<int64_t> pads(2 * from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t more = to[i] - from[i];
    pads[i] = more / 2;  // rounds towards zero both ways
    pads[i + from.size()] = more - pads[i];
  }
  return {d.b.op("Pad", {d.x(0), d.b.ints(pads)})};
}

}  // namespace

void register_center_crop_pad(OpTable& table) {
  table.add({
      .name = "CenterCropPad",
      .inputs = {"input_data", "shape"},
      .outputs = {"output_data"},
      .since = 18,
      .infer = [](InferCtx& c) { c.out(0, c.dtype(0), target(c)); },
      .decompose = decompose,
      .examples = {{.in = {f({5, 4}), ivals({2, 7})}},
                   {.in = {f({5, 4, 3}), ivals({4, 5})},
                    .attrs = {{"axes", std::vector<int64_t>{-1, 0}}}},
                   {.in = {f({3}), ivals({3})}}},
  });
}

}  // namespace ortrain::ops
