// BitCast: the bits of x read as another type of the same width. Storage types keep one element per
// byte, so 4- and 2-bit ones change between each other only. No gradient: bits are no numbers.
#include <cstring>

#include "graph/error.h"
#include "runtime/kernel.h"

namespace ortrain::ops {

namespace {

int bits_of(DType d) { return is_storage(d) ? file_bits(d) : static_cast<int>(8 * size_of(d)); }

void infer_bit_cast(InferCtx& c) {
  const std::string name = c.attrs().s("to", "");
  const auto to = dtype_from_name(name);
  if (!to) fail(ErrorCode::kUnsupported, "BitCast to the type '", name, "'");
  if (bits_of(*to) != bits_of(c.dtype(0)))
    c.fail(cat("'to' is ", name, " of ", bits_of(*to), " bits, the input ", name_of(c.dtype(0)),
               " of ", bits_of(c.dtype(0))));
  c.out(0, *to, c.shape(0));
}

Kernel prepare(const KernelQuery& q) {
  const DType to = q.out[0].dtype;
  const auto n = static_cast<size_t>(q.in[0].count());
  if (to == DType::kBool || is_storage_int(to) || to == DType::kF4E2M1) {  // one valid form of each
    return {0, [=](const KernelArgs& a) {
              for (size_t i = 0; i < n; ++i) {
                const uint8_t bits = a.x<uint8_t>(0)[i];
                a.y<uint8_t>(0)[i] = to == DType::kBool     ? bits != 0
                                     : to == DType::kF4E2M1 ? bits & 15
                                                            : double_to_storage(to, bits);
              }
            }};
  }
  return {0, [size = n * size_of(to)](const KernelArgs& a) {
            if (size && a.in[0] != a.out[0]) std::memcpy(a.out[0], a.in[0], size);
          }};
}

Attrs to(const char* dtype) { return {{"to", std::string(dtype)}}; }

}  // namespace

void register_bit_cast(OpTable& table) {
  table.add({
      .name = "BitCast",
      .inputs = {"input"},
      .outputs = {"output"},
      .since = 26,
      .infer = infer_bit_cast,
      .grad = {no_grad("input")},
      .storage = true,
      .inplace = {{0, 0}},
      .kernels = {{"cpu", "ref", nullptr, prepare}},
      .examples = {{.in = {ints({2, 3}, -99, 99)}, .attrs = to("f64")},
                   {.in = {typed(DType::kF32, f({4}))}, .attrs = to("i32")},
                   {.in = {bools({5})}, .attrs = to("u8")},
                   {.in = {typed(DType::kU8, ints({5}, 0, 3))}, .attrs = to("bool")},
                   {.in = {typed(DType::kI4, ints({5}, -8, 8))}, .attrs = to("u4")},
                   {.in = {typed(DType::kU4, ints({5}, 0, 16))}, .attrs = to("i4")},
                   {.in = {typed(DType::kI4, ints({5}, -8, 8))}, .attrs = to("f4e2m1")},
                   {.in = {typed(DType::kF16, f({0, 2}))}, .attrs = to("u16")}},
      .note = "the gradient is zero: bits are no numbers",
  });
}

}  // namespace ortrain::ops
