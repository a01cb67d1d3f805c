// com.microsoft.MatMulNBits: A times a weight [N, K] kept as 2-, 4- or 8-bit codes with one scale
// per block of `block_size` along K (onnxruntime's contrib operator; what its int4 exports use).
//
// The weight is frozen; the gradient flows to A (and to a float bias). ortrain.DequantizeNBits
// gives the weight as floats: once before training while it stays below the folding limit (2^22
// elements), else in every step. Codes lie in B [N, blocks, bytes], the first in the low bits;
// zero points are packed the same way per row, or floats; without them 2^(bits-1).
#include <algorithm>

#include "graph/error.h"
#include "ops/common/ref.h"
#include "ops/common/storage.h"

namespace ortrain::ops {
namespace {

struct Spec {
  int64_t n, k, bits, block, blocks;
  int64_t blob() const { return block * bits / 8; }               // bytes of one block
  int64_t zero_bytes() const { return (blocks * bits + 7) / 8; }  // of one row of zero points
};

Spec spec_of(const Attrs& a) {
  Spec s{a.i("N", 0), a.i("K", 0), a.i("bits", 4), a.i("block_size", 0), 0};
  if (s.n < 1 || s.k < 1 || s.n > int64_t{1} << 40 || s.k > int64_t{1} << 40)
    fail(ErrorCode::kShape, "N is ", s.n, ", K ", s.k);
  if (s.bits != 2 && s.bits != 4 && s.bits != 8)
    fail(ErrorCode::kUnsupported, "bits is ", s.bits, ", expected 2, 4 or 8");
  if (s.block < 16 || s.block > int64_t{1} << 40 || (s.block & (s.block - 1)))
    fail(ErrorCode::kShape, "block_size is ", s.block, ", expected a power of two from 16");
  s.blocks = (s.k + s.block - 1) / s.block;
  return s;
}

void expect_count(InferCtx& c, int i, const char* what, int64_t count) {
  if (c.shape(i).is_const() && c.shape(i).count() != Dim(count))
    c.fail(cat(what, " has shape ", c.shape(i).str(), ", expected ", count, " elements"));
}

// B, scales, zero_points?, g_idx? from input `first` on.
void check_weight(InferCtx& c, int first) {
  const Spec s = spec_of(c.attrs());
  if (c.dtype(first) != DType::kU8) c.fail(cat("B is ", name_of(c.dtype(first)), ", expected u8"));
  expect_count(c, first, "B", element_count(Dims{s.n, s.blocks, s.blob()}));
  if (!is_float(c.dtype(first + 1))) c.fail(cat("scales are ", name_of(c.dtype(first + 1))));
  expect_count(c, first + 1, "scales", s.n * s.blocks);
  if (c.has(first + 2)) {
    const bool packed = c.dtype(first + 2) == DType::kU8;
    if (!packed && !is_float(c.dtype(first + 2)))
      c.fail(cat("zero_points are ", name_of(c.dtype(first + 2))));
    expect_count(c, first + 2, "zero_points", packed ? s.n * s.zero_bytes() : s.n * s.blocks);
  }
  if (c.has(first + 3)) {
    if (c.dtype(first + 3) != DType::kI32) c.fail("g_idx must be i32");
    expect_count(c, first + 3, "g_idx", s.k);
  }
}

void infer_product(InferCtx& c) {
  const Spec s = spec_of(c.attrs());
  check_weight(c, 1);
  if (!is_float(c.dtype(0)) || c.rank(0) < 1 ||
      prove_equal(c.shape(0)[c.rank(0) - 1], Dim(s.k)) == Tri::kNo)
    c.fail(cat("A has shape ", c.shape(0).str(), ", K is ", s.k));
  if (c.has(5)) expect_count(c, 5, "bias", s.n);
  Shape y;
  for (int d = 0; d + 1 < c.rank(0); ++d) y.push_back(c.shape(0)[d]);
  y.push_back(Dim(s.n));
  c.out(0, c.dtype(0), y);
}

void infer_weight(InferCtx& c) {
  const Spec s = spec_of(c.attrs());
  check_weight(c, 0);
  c.out(0, c.dtype(1), Shape{Dim(s.n), Dim(s.k)});
}

double code_at(const uint8_t* bytes, int64_t i, int64_t bits) {
  const int64_t per_byte = 8 / bits;
  return bytes[i / per_byte] >> (i % per_byte * bits) & ((1 << bits) - 1);
}

// Codes [begin, end) of a row, all in one block.
template <class T>
void dequantize_run(const uint8_t* codes, int64_t bits, int64_t begin, int64_t end, double zero,
                    double scale, T* w) {
  if (bits == 4 && begin % 2 == 0) {  // a table of the 16 values, two to a byte
    std::array<T, 16> value;
    for (size_t c = 0; c < value.size(); ++c)
      value[c] = store<T>((static_cast<double>(c) - zero) * scale);
    int64_t k = begin;
    for (; k + 1 < end; k += 2) {
      const uint8_t two = codes[k / 2];
      w[k] = value[two & 15], w[k + 1] = value[two >> 4];
    }
    if (k < end) w[k] = value[codes[k / 2] & 15];
    return;
  }
  for (int64_t k = begin; k < end; ++k) w[k] = store<T>((code_at(codes, k, bits) - zero) * scale);
}

Kernel dequantize(const KernelQuery& q) {
  const Spec s = spec_of(q.attrs);
  const bool packed = q.has_in(2) && q.in[2].dtype == DType::kU8, indexed = q.has_in(3);
  const DType zero_type = q.has_in(2) ? q.in[2].dtype : DType::kUndefined;
  return dispatch_float(q.in[1].dtype, [&]<class T>() -> Kernel {
    return {0, [=, threads = q.threads](const KernelArgs& a) {
              parallel_for(threads, s.n, 1 + 4096 / s.k, [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const uint8_t* codes = a.x<uint8_t>(0) + row * s.blocks * s.blob();
                  T* w = a.y<T>(0) + row * s.k;
                  for (int64_t k = 0; k < s.k;) {
                    int64_t block = k / s.block, stop = std::min(s.k, (block + 1) * s.block);
                    if (indexed) {
                      block = a.x<int32_t>(3)[k], stop = k + 1;
                      if (block < 0 || block >= s.blocks) {
                        a.fault->report(k, block, 0, s.blocks);
                        block = 0;
                      }
                    }
                    double zero = static_cast<double>(1 << (s.bits - 1));
                    if (packed)
                      zero = code_at(a.x<uint8_t>(2) + row * s.zero_bytes(), block, s.bits);
                    else if (zero_type != DType::kUndefined)
                      load_run(zero_type, a.in[2], row * s.blocks + block, 1, &zero);
                    dequantize_run(codes, s.bits, k, stop, zero,
                                   load(a.x<T>(1)[row * s.blocks + block]), w);
                    k = stop;
                  }
                }
              });
            }};
  });
}

// The weight [N, K] in the type of A, for a formula or a decomposition.
template <class Context>
Expr weight(Context& c) {
  const Attrs attrs = c.attrs();
  std::vector<Expr> in{c.x(1), c.x(2)};
  in.push_back(c.has_x(3) ? c.x(3) : Expr());
  if (c.has_x(4)) in.push_back(c.x(4));
  while (!in.back()) in.pop_back();
  return c.b.cast(c.b.op("ortrain.DequantizeNBits", in, attrs), c.x(0).dtype());
}

std::vector<Expr> product(Decompose& d) {
  const Expr y = d.b.op("MatMul", {d.x(0), weight(d)}, {{"trans_b", int64_t{1}}});
  if (!d.has_x(5)) return {y};
  return {y + d.b.reshape(d.x(5), {d.x(5).shape().count().value()})};
}

Attrs form(int64_t n, int64_t k, int64_t bits) {
  return {{"N", n}, {"K", k}, {"bits", bits}, {"block_size", int64_t{16}}};
}
ExampleInput codes(Dims dims) { return typed(DType::kU8, ints(std::move(dims), 0, 256)); }

}  // namespace

void register_matmul_nbits(OpTable& table) {
  table.add({
      .name = "com.microsoft.MatMulNBits",
      .inputs = {"A", "B", "scales", "zero_points?", "g_idx?", "bias?"},
      .outputs = {"Y"},
      .infer = infer_product,
      .grad = {grad("A", [](Grad& g) { return g.b.matmul(g.dy(), weight(g)); }), no_grad("B"),
               no_grad("scales"), no_grad("zero_points"), no_grad("g_idx"),
               grad("bias", [](Grad& g) { return g.dy(); })},
      .decompose = product,
      .examples = {{.in = {f({2, 3, 40}), codes({5, 3, 8}), f({15}, 0.1, 0.2)},
                    .attrs = form(5, 40, 4)},
                   {.in = {f({3, 32}), codes({4, 2, 8}), f({4, 2}, 0.1, 0.2), codes({4, 1}),
                           absent(), f({4})},
                    .attrs = form(4, 32, 4)},
                   {.in = {f({3, 32}), codes({4, 2, 16}), f({8}, 0.1, 0.2), f({8}, 100, 140)},
                    .attrs = form(4, 32, 8)},
                   {.in = {f({20}), codes({4, 2, 4}), f({8}, 0.1, 0.2)}, .attrs = form(4, 20, 2)}},
      .note = "weight and scales are frozen; gradient to A and bias",
  });
  table.add({
      .name = "ortrain.DequantizeNBits",
      .inputs = {"B", "x_scale", "zero_points?", "g_idx?"},
      .outputs = {"W"},
      .infer = infer_weight,
      .grad = {no_grad("B"), no_grad("x_scale"), no_grad("zero_points"), no_grad("g_idx")},
      .kernels = {{"cpu", "ref", nullptr, dequantize}},
      .examples = {{.in = {codes({5, 3, 8}), f({15}, 0.1, 0.2)}, .attrs = form(5, 40, 4)},
                   {.in = {codes({4, 2, 4}), f({8}, 0.1, 0.2), codes({4, 1}),
                           typed(DType::kI32, ints({20}, 0, 2))},
                    .attrs = form(4, 20, 2)}},
      .note = "frozen",
  });
}

}  // namespace ortrain::ops
