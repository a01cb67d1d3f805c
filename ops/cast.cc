// Cast: converts elements to the type in attribute `to` ("f32", "bool", ...); CastLike takes the
// type of its second input.
//
// Floats to integers truncate and saturate, NaN gives 0 (ONNX leaves it open); integers wrap; to
// bool: not zero; f16 and bf16 round to nearest even. Storage types (graph/dtype.h) take `saturate`
// and, f8e8m0, `round_mode` (up, down, nearest), as ONNX's tables say. Gradient: float to float is
// cast back, anything else, storage types too, stops with 0. Contents of integer tensors that carry
// shapes pass through.
#include <type_traits>

#include "graph/error.h"
#include "ops/common/elementwise.h"
#include "ops/common/storage.h"

namespace ortrain::ops {

namespace {

void infer_to(InferCtx& c, DType to) {
  const auto contents = c.ints(0);
  c.out(0, to, c.shape(0));
  if (contents && (is_integer(to) || (to == DType::kBool && c.dtype(0) == DType::kBool)))
    c.out_ints(0, *contents);
}

StoreRule rule_of(const Attrs& a) {
  const std::string mode = a.s("round_mode", "up");
  if (mode != "up" && mode != "down" && mode != "nearest")
    fail(ErrorCode::kUnsupported, "round_mode '", mode, "', expected up, down or nearest");
  return {.saturate = a.i("saturate", 1) != 0,
          .round = mode == "up"     ? E8M0Round::kUp
                   : mode == "down" ? E8M0Round::kDown
                                    : E8M0Round::kNearest};
}

void infer_cast(InferCtx& c) {
  const std::string name = c.attrs().s("to", "");
  const auto to = dtype_from_name(name);
  if (!to) fail(ErrorCode::kUnsupported, "Cast to the type '", name, "'");
  rule_of(c.attrs());
  infer_to(c, *to);
}

// --- to and from storage types
bool stores(const KernelQuery& q) {
  return is_storage(q.in[0].dtype) || is_storage(q.out[0].dtype);
}

// Integers to small integers: the low bits, of 64-bit ones too.
Kernel wrap_cast(const KernelQuery& q) {
  return dispatch(q.in[0].dtype, [&]<class T>() -> Kernel {
    return {
        0, [to = q.out[0].dtype, n = q.in[0].count(), threads = q.threads](const KernelArgs& args) {
          parallel_for(threads, n, 4096, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
              if constexpr (std::is_integral_v<T>)
                args.y<uint8_t>(0)[i] = double_to_storage(
                    to, static_cast<double>(static_cast<int64_t>(args.x<T>(0)[i]) & 15));
          });
        }};
  });
}

Kernel storage_cast(const KernelQuery& q) {
  if (is_integer(q.in[0].dtype) && is_storage_int(q.out[0].dtype)) return wrap_cast(q);
  return {0, [from = q.in[0].dtype, to = q.out[0].dtype, n = q.in[0].count(), threads = q.threads,
              rule = rule_of(q.attrs)](const KernelArgs& args) {
            for_runs(threads, n, [&](int64_t at, int64_t count, double* run) {
              load_run(from, args.in[0], at, count, run);
              store_run(to, run, count, args.out[0], at, rule);
            });
          }};
}

// The elementwise kernels for everything else.
std::vector<KernelEntry> cast_kernels() {
  static const std::vector<KernelEntry> plain = ew_kernels();
  return {{"cpu", "simd",
           [](const KernelQuery& q) {
             return stores(q) ? std::string("converts compute types only") : plain[0].reject(q);
           },
           [](const KernelQuery& q) { return plain[0].prepare(q); }},
          {"cpu", "ref", nullptr,
           [](const KernelQuery& q) { return stores(q) ? storage_cast(q) : plain[1].prepare(q); }}};
}

Expr cast_back(Grad& g) {
  const DType from = g.x(0).dtype();
  if (!is_float(from) || !is_float(g.dy().dtype())) return {};
  return g.b.cast(g.dy(), from);
}

Attrs to(const char* dtype) { return {{"to", std::string(dtype)}}; }

OpDef cast_op() {
  return {
      .name = "Cast",
      .inputs = {"x"},
      .outputs = {"y"},
      .since = 6,
      .infer = infer_cast,
      .grad = {grad("x", cast_back)},
      .ew = Ew::kCast,
      .storage = true,
      .pad = Pad::kZeroToZero,
      .kernels = cast_kernels(),
      .examples = {{.in = {f({2, 3})}, .attrs = to("f64")},
                   {.in = {f({2, 3})},
                    .attrs = to("f32"),
                    .check_grad = false,
                    .note = "rounding to f32 hides central differences"},
                   {.in = {f({3, 70})}, .attrs = to("i64")},
                   {.in = {floats({5}, {0, 1, -2.75, 3.5, 100})}, .attrs = to("i32")},
                   {.in = {f({2, 3})}, .attrs = to("bool")},
                   {.in = {ints({2, 3}, -9, 9)}, .attrs = to("f32")},
                   {.in = {ints({2, 3}, -900, 900)}, .attrs = to("u8")},
                   {.in = {bools({2, 33})}, .attrs = to("f32")},
                   {.in = {f({2, 3})},
                    .attrs = to("f16"),
                    .check_grad = false,
                    .note = "rounding to f16 hides central differences"},
                   {.in = {f({2, 3})},
                    .attrs = to("bf16"),
                    .check_grad = false,
                    .note = "rounding to bf16 hides central differences"},
                   {.in = {f({0, 3})}, .attrs = to("i64")},
                   {.in = {f({2, 700}, -500, 500)}, .attrs = to("f8e4m3fn")},
                   {.in = {f({3, 3}, -500, 500)},
                    .attrs = {{"to", std::string("f8e4m3fnuz")}, {"saturate", int64_t{0}}}},
                   {.in = {f({3, 3}, -9e4, 9e4)}, .attrs = to("f8e5m2")},
                   {.in = {f({3, 3})}, .attrs = to("f8e5m2fnuz")},
                   {.in = {f({3, 3}, 0, 8)},
                    .attrs = {{"to", std::string("f8e8m0")},
                              {"round_mode", std::string("nearest")}}},
                   {.in = {f({3, 3}, -7, 7)}, .attrs = to("f4e2m1")},
                   {.in = {ints({3, 5}, -300, 300)}, .attrs = to("i4")},
                   {.in = {typed(DType::kU2, ints({3, 5}, 0, 4))}, .attrs = to("i64")},
                   {.in = {typed(DType::kF8E5M2, f({3, 5}))}, .attrs = to("f32")},
                   {.in = {typed(DType::kI4, ints({0}, 0, 4))}, .attrs = to("f32")}},
  };
}

OpDef cast_like_op() {
  return {
      .name = "CastLike",
      .inputs = {"x", "like"},
      .outputs = {"y"},
      .since = 15,
      .infer =
          [](InferCtx& c) {
            rule_of(c.attrs());
            infer_to(c, c.dtype(1));
          },
      .grad = {grad("x", cast_back), no_grad("like")},
      .ew = Ew::kCast,
      .storage = true,
      .kernels = cast_kernels(),
      .examples = {{.in = {f({2, 3}), f({1})}},
                   {.in = {f({2, 3}), ints({2}, 0, 2)}},
                   {.in = {f({2, 3}), typed(DType::kF8E4M3FN, f({1}))}}},
  };
}

}  // namespace

void register_cast(OpTable& table) {
  table.add(cast_op());
  table.add(cast_like_op());
}

}  // namespace ortrain::ops
