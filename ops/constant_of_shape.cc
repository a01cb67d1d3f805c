// ConstantOfShape (one value in a given shape) and EyeLike (ones on the k-th diagonal). The shape
// must be known before training; integer results are carried through inference. Attributes: value
// (number) and dtype (short name) as the importer gives them. No gradient.
#include <cstring>

#include "graph/error.h"
#include "ops/common/infer_shapes.h"
#include "ops/common/movement.h"

namespace ortrain::ops {
namespace {

HostTensor value_of(const Attrs& attrs) {
  const DType dtype = type_attribute(attrs, "dtype", DType::kF32);
  const AttrValue* v = attrs.find("value");
  if (v && std::holds_alternative<int64_t>(*v) && !is_float(dtype))
    return HostTensor::scalar(std::get<int64_t>(*v)).cast(dtype);
  return HostTensor::scalar_of(dtype, attrs.f("value", 0));
}

void infer_constant(InferCtx& c) {
  const Shape out(c.need_ints(0, "the shape"));
  for (Dim d : out)
    if (d.is_const() && d.value() < 0) c.fail(cat("negative extent ", d.value()));
  const HostTensor value = value_of(c.attrs());
  c.out(0, value.dtype(), out);
  if (!is_float(value.dtype()) && out.is_const() && out.count().value() <= 4096)
    c.out_ints(0, std::vector<Dim>(static_cast<size_t>(out.count().value()), value.as_int(0)));
}

Kernel constant_kernel(const KernelQuery& q) {
  const HostTensor value = value_of(q.attrs);
  uint64_t bits = 0;
  std::memcpy(&bits, value.raw(), value.bytes());
  return {0, [bits, n = q.out[0].count(), size = value.bytes(),
              threads = q.threads](const KernelArgs& a) {
            by_size(size, [&]<class T>() {
              parallel_for(threads, n, 32768, [&](int64_t begin, int64_t end) {
                T v;
                std::memcpy(&v, &bits, sizeof(T));
                std::fill(a.y<T>(0) + begin, a.y<T>(0) + end, v);
              });
            });
          }};
}

void infer_eye(InferCtx& c) {
  if (c.rank(0) != 2) c.fail(cat("needs a matrix, got ", c.shape(0).str()));
  c.out(0, type_attribute(c.attrs(), "dtype", c.dtype(0)), c.shape(0));
}

Kernel eye_kernel(const KernelQuery& q) {
  return {0, [desc = q.out[0], k = q.attrs.i("k", 0)](const KernelArgs& a) {
            if (desc.count() == 0) return;
            std::memset(a.out[0], 0, desc.bytes());
            const HostTensor one = HostTensor::scalar_of(desc.dtype, 1);
            for (int64_t i = 0; i < desc.dims[0]; ++i)
              if (i + k >= 0 && i + k < desc.dims[1])
                std::memcpy(
                    a.y<std::byte>(0) + static_cast<size_t>(i * desc.dims[1] + i + k) * one.bytes(),
                    one.raw(), one.bytes());
          }};
}

}  // namespace

void register_constant_of_shape(OpTable& table) {
  table.add({
      .name = "ConstantOfShape",
      .inputs = {"input"},
      .outputs = {"output"},
      .since = 9,
      .infer = infer_constant,
      .grad = {no_grad("input")},
      .adapt =
          [](RawNode& raw) {  // said, so that computing in f64 widens it like any type
            if (!raw.attrs.has("dtype")) raw.attrs.set("dtype", std::string("f32"));
          },
      .kernels = {{"cpu", "ref", nullptr, constant_kernel}},
      .examples = {{.in = {ivals({2, 3})}},
                   {.in = {ivals({4})}, .attrs = {{"value", -7}, {"dtype", "i64"}}},
                   {.in = {ivals({2, 2})}, .attrs = {{"value", 1}, {"dtype", "bool"}}},
                   {.in = {ivals({2, 1})}, .attrs = {{"value", 0.5}, {"dtype", "f64"}}},
                   {.in = {ivals({3, 0})}},
                   {.in = {iconst({0}, {})}, .attrs = {{"value", 3}, {"dtype", "i32"}}}},
  });
  table.add({
      .name = "EyeLike",
      .inputs = {"input"},
      .outputs = {"output"},
      .since = 9,
      .infer = infer_eye,
      .grad = {no_grad("input")},
      .kernels = {{"cpu", "ref", nullptr, eye_kernel}},
      .examples = {{.in = {f({3, 3})}},
                   {.in = {f({2, 4})}, .attrs = {{"k", 1}, {"dtype", "i64"}}},
                   {.in = {f({4, 2})}, .attrs = {{"k", -2}}},
                   {.in = {f({0, 3})}}},
  });
}

}  // namespace ortrain::ops
