// See perf_table.h.
#include "tests/ops/perf_table.h"

#include <cmath>

#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

using L = std::vector<int64_t>;
using S = std::string;
constexpr int64_t kOne = 1;

// Images of a mid-size network, rows of a transformer, masks of a segmentation.
const Dims kImages{32, 64, 56, 56}, kRows{4096, 1024}, kCube{64, 256, 256}, kMask{8, 21, 192, 192};

ExampleInput positions(int64_t batch, int64_t steps) {
  L values;
  for (int64_t i = 0; i < batch * steps; ++i) values.push_back(i % steps);
  return iconst({batch, steps}, values);
}
// A smooth warp of d axes of n points each: what spatial transformers and flows give.
ExampleInput grid(int64_t batch, int64_t n, int d) {
  Dims dims{batch};
  for (int k = 0; k < d; ++k) dims.push_back(n);
  dims.push_back(d);
  std::vector<double> values;
  const int64_t points = element_count(dims) / d;
  for (int64_t p = 0; p < points; ++p)
    for (int64_t k = 0, rest = p; k < d; ++k, rest /= n) {
      const double at = (static_cast<double>(rest % n) + 0.5) / static_cast<double>(n);
      values.push_back(1.8 * at - 0.9 + 0.05 * std::sin(9 * at + static_cast<double>(k)));
    }
  return floats(dims, values);
}
ExampleInput fixed(ExampleInput e) {
  e.constant = true;
  return e;
}
Attrs axis(int64_t a) { return {{"axis", a}}; }
Attrs kernel(L k, L strides, L pads) {
  return {
      {"kernel_shape", std::move(k)}, {"strides", std::move(strides)}, {"pads", std::move(pads)}};
}
Attrs conv(L strides, L pads, int64_t group = 1) {
  return {{"strides", std::move(strides)}, {"pads", std::move(pads)}, {"group", group}};
}
ExampleInput axis_input(int64_t a) { return iconst({}, {a}); }
ExampleInput u8(Dims dims) { return typed(DType::kU8, ints(std::move(dims), 0, 256)); }

void movement(std::vector<PerfEntry>& t) {
  const auto pad = [&](const char* mode, L pads) {
    t.push_back({"Pad", mode, {{f(kImages), ivals(std::move(pads))}, {{"mode", S(mode)}}}});
  };
  pad("constant", {0, 0, 1, 1, 0, 0, 1, 1});
  pad("reflect", {0, 0, 1, 1, 0, 0, 1, 1});
  pad("edge", {0, 0, 1, 1, 0, 0, 1, 1});
  pad("wrap", {0, 0, 1, 1, 0, 0, 1, 1});
  t.push_back({"Gather", "rows", {{f({20000, 128}), ints({32768}, 0, 20000)}}});
  t.push_back({"Gather", "axis 1", {{f({64, 1024, 64}), ints({512}, 0, 1024)}, axis(1)}});
  t.push_back({"Gather", "last axis", {{f({4096, 1024}), ints({512}, 0, 1024)}, axis(1)}});
  t.push_back({"GatherElements", "last", {{f(kRows), ints(kRows, 0, 1024)}, axis(1)}});
  t.push_back({"GatherElements", "first", {{f(kRows), ints(kRows, 0, 4096)}, axis(0)}});
  t.push_back({"GatherND", "rows", {{f({256, 256, 64}), ints({32768, 2}, 0, 256)}}});
  t.push_back(
      {"GatherND", "scalars", {{f(kRows), ints({4096, 256, 1}, 0, 1024)}, {{"batch_dims", kOne}}}});
  for (const char* how : {"none", "add", "max"})
    t.push_back({"ScatterElements",
                 how,
                 {{f(kRows), ints({4096, 512}, 0, 1024), f({4096, 512})},
                  {{"axis", kOne}, {"reduction", S(how)}}}});
  for (const char* how : {"none", "add"})
    t.push_back(
        {"ScatterND",
         how,
         {{f({65536, 64}), ints({32768, 1}, 0, 65536), f({32768, 64})}, {{"reduction", S(how)}}}});
  t.push_back({"Concat", "axis 1", {{f(kImages), f(kImages)}, axis(1)}});
  t.push_back({"Split", "axis 1", {{f(kImages)}, {{"axis", kOne}, {"num_outputs", 2}}, 2}});
  t.push_back({"Slice", "window", {{f(kImages), ivals({4, 4}), ivals({52, 52}), ivals({2, 3})}}});
  t.push_back({"Slice",
               "step 2",
               {{f(kImages), ivals({0, 0}), ivals({56, 56}), ivals({2, 3}), ivals({2, 2})}}});
  t.push_back({"Transpose", "matrix", {{f(kRows)}, {{"perm", L{1, 0}}}}});
  t.push_back({"Transpose", "to NHWC", {{f(kImages)}, {{"perm", L{0, 2, 3, 1}}}}});
  t.push_back({"Transpose", "heads", {{f({16, 256, 8, 64})}, {{"perm", L{0, 2, 1, 3}}}}});
  t.push_back(
      {"Transpose", "patches", {{f({32, 8, 8, 64, 4, 4})}, {{"perm", L{0, 2, 4, 1, 5, 3}}}}});
  t.push_back({"Expand", "rows", {{f({1, 1024}), ivals({4096, 1024})}}});
  t.push_back({"Expand", "columns", {{f({4096, 1}), ivals({4096, 1024})}}});
  t.push_back({"Expand", "channels", {{f({32, 64, 1, 1}), ivals({32, 64, 56, 56})}}});
  t.push_back({"Tile", "both axes", {{f({1024, 512}), ivals({2, 4})}}});
  t.push_back({"DepthToSpace", "DCR", {{f({16, 64, 64, 64})}, {{"blocksize", 2}}}});
  t.push_back(
      {"DepthToSpace", "CRD", {{f({16, 64, 64, 64})}, {{"blocksize", 2}, {"mode", S("CRD")}}}});
  t.push_back({"SpaceToDepth", "", {{f({16, 16, 128, 128})}, {{"blocksize", 2}}}});
  t.push_back({"ReverseSequence", "", {{f({128, 64, 512}), ints({64}, 1, 129)}}});
  t.push_back({"Trilu", "", {{f({64, 256, 256})}, {{"upper", 0}}}});
  t.push_back({"Where", "row mask", {{bools({64, 1, 1, 256}), f({64, 1, 256, 256}), f({})}}});
  t.push_back({"Where", "full", {{bools(kRows), f(kRows), f(kRows)}}});
  t.push_back({"OneHot", "", {{ints({8192}, 0, 512), iconst({}, {512}), fixed(f({2}))}}});
  t.push_back({"Cast", "to f16", {{f(kRows)}, {{"to", S("f16")}}}});
  t.push_back({"Cast", "i64 to f32", {{ints(kRows, 0, 99)}, {{"to", S("f32")}}}});
  t.push_back(
      {"TensorScatter", "", {{f({16, 8, 512, 64}), f({16, 8, 64, 64}), ints({16}, 0, 448)}}});
  t.push_back({"CenterCropPad", "", {{f(kImages), ivals({48, 64})}, {{"axes", L{2, 3}}}}});
  t.push_back({"BitCast", "", {{f(kRows)}, {{"to", S("i32")}}}});
}

void reductions(std::vector<PerfEntry>& t) {
  for (const char* op :
       {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"}) {
    t.push_back({op, "last", {{f(kCube, 0.5, 1.5), ivals({2})}}});
    t.push_back({op, "middle", {{f(kCube, 0.5, 1.5), ivals({1})}}});
    t.push_back({op, "first", {{f(kCube, 0.5, 1.5), ivals({0})}}});
    t.push_back({op, "image", {{f(kImages, 0.5, 1.5), ivals({2, 3})}}});
  }
  t.push_back({"ReduceSum", "channels kept", {{f(kImages), ivals({0, 2, 3})}}});
  for (const char* op : {"CumSum", "CumProd"}) {
    t.push_back({op, "last", {{f(kRows, 0.9, 1.1), axis_input(1)}}});
    t.push_back({op, "middle", {{f(kCube, 0.9, 1.1), axis_input(1)}}});
  }
  for (const char* op : {"ArgMax", "ArgMin", "Hardmax"}) {
    t.push_back({op, "last", {{f(kRows)}, axis(1)}});
    t.push_back({op, "middle", {{f(kCube)}, axis(1)}});
  }
  t.push_back({"TopK", "10 of 1024", {{f(kRows), ivals({10})}, axis(1), 2}});
  t.push_back({"TopK", "half, axis 1", {{f({64, 256, 128}), ivals({128})}, axis(1), 2}});
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    t.push_back({op, "last", {{f(kRows)}, axis(-1)}});
    t.push_back({op, "classes of pixels", {{f(kMask)}, axis(1)}});
    t.push_back({op, "short rows", {{f({131072, 32})}, axis(-1)}});
  }
  ExampleInput weights = f({21}, 0.5, 1);
  weights.constant = true;
  t.push_back({"SoftmaxCrossEntropyLoss", "rows", {{f({4096, 1000}), ints({4096}, 0, 1000)}}});
  t.push_back(
      {"SoftmaxCrossEntropyLoss", "pixels", {{f(kMask), ints({8, 192, 192}, 0, 21), weights}}});
  t.push_back(
      {"NegativeLogLikelihoodLoss", "pixels", {{f(kMask, -5, 0), ints({8, 192, 192}, 0, 21)}}});
}

void norms(std::vector<PerfEntry>& t) {
  t.push_back({"LayerNormalization", "", {{f(kRows), f({1024}), f({1024})}}});
  t.push_back({"LayerNormalization", "short", {{f({65536, 64}), f({64}), f({64})}}});
  t.push_back({"RMSNormalization", "", {{f(kRows), f({1024})}}});
  for (const char* op : {"SimplifiedLayerNormalization", "com.microsoft.LayerNormalization",
                         "com.microsoft.SimplifiedLayerNormalization"})
    t.push_back({op, "", {{f(kRows), f({1024})}}});
  t.push_back({"com.microsoft.SkipLayerNormalization",
               "",
               {{f(kRows), f(kRows), f({1024}), f({1024}), f({1024})}}});
  t.push_back({"com.microsoft.SkipSimplifiedLayerNormalization",
               "",
               {{f(kRows), f(kRows), f({1024}), f({1024})}}});
  t.push_back({"com.microsoft.EmbedLayerNormalization",
               "",
               {{ints({64, 128}, 0, 8192), ints({64, 128}, 0, 2), f({8192, 256}), f({128, 256}),
                 f({2, 256}), f({256}), f({256})},
                {},
                2}});
  t.push_back({"com.microsoft.BiasDropout", "", {{f(kRows), f({1024}), f(kRows)}}});
  t.push_back(
      {"com.microsoft.BiasSoftmax",
       "",
       {{f({64, 8, 128, 128}), f({64, 1, 1, 128})}, {{"axis", 3}, {"is_inner_broadcast", kOne}}}});
  t.push_back({"GroupNormalization", "", {{f(kImages), f({64}), f({64})}, {{"num_groups", 16}}}});
  t.push_back({"InstanceNormalization", "", {{f(kImages), f({64}), f({64})}}});
  t.push_back(
      {"BatchNormalization",
       "",
       {{f(kImages), f({64}), f({64}), f({64}), f({64}, 0.5, 1.5)}, {{"training_mode", kOne}}}});
  t.push_back({"BatchNormalization",
               "rows",
               {{f(kRows), f({1024}), f({1024}), f({1024}), f({1024}, 0.5, 1.5)},
                {{"training_mode", kOne}}}});
  t.push_back({"MeanVarianceNormalization", "", {{f(kImages)}}});
  t.push_back({"LpNormalization", "last", {{f(kRows)}, axis(-1)}});
  t.push_back({"LpNormalization", "channels", {{f(kImages)}, axis(1)}});
  t.push_back({"LRN", "", {{f({32, 96, 32, 32})}, {{"size", 5}}}});
  t.push_back({"Dropout", "", {{f(kRows), floats({}, {0.5})}}});
  t.back().use.in[1].constant = true;
}

void windows(std::vector<PerfEntry>& t) {
  const ExampleInput line = f({64, 128, 1024}), volume = f({4, 32, 16, 56, 56});
  const Attrs k1 = kernel({3}, {2}, {1, 1}), k2 = kernel({3, 3}, {2, 2}, {1, 1, 1, 1}),
              k3 = kernel({2, 2, 2}, {2, 2, 2}, {0, 0, 0, 0, 0, 0});
  for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) {
    t.push_back({op, "1-d", {{line}, k1}});
    t.push_back({op, "3x3 stride 2", {{f(kImages)}, k2}});
    t.push_back({op, "2x2", {{f(kImages)}, kernel({2, 2}, {2, 2}, {0, 0, 0, 0})}});
    t.push_back({op, "3-d", {{volume}, k3}});
  }
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})
    t.push_back({op, "", {{f(kImages)}}});
  ExampleInput places = ints({32, 64, 28, 28}, 0, 32 * 64 * 56 * 56);
  t.push_back(
      {"MaxUnpool", "", {{f({32, 64, 28, 28}), places}, kernel({2, 2}, {2, 2}, {0, 0, 0, 0})}});
  t.push_back({"MaxRoiPool",
               "",
               {{f({4, 128, 64, 64}), typed(DType::kF32, ints({128, 5}, 0, 4))},
                {{"pooled_shape", L{7, 7}}}}});
  t.push_back({"Conv",
               "3x3",
               {{f({16, 64, 56, 56}), f({64, 64, 3, 3}), f({64})}, conv({1, 1}, {1, 1, 1, 1})}});
  t.push_back({"Conv", "1x1", {{f({16, 128, 28, 28}), f({256, 128, 1, 1})}}});
  t.push_back(
      {"Conv", "depthwise", {{f(kImages), f({64, 1, 3, 3})}, conv({1, 1}, {1, 1, 1, 1}, 64)}});
  t.push_back({"Conv",
               "32 groups",
               {{f({16, 128, 28, 28}), f({128, 4, 3, 3})}, conv({1, 1}, {1, 1, 1, 1}, 32)}});
  t.push_back(
      {"Conv", "1-d", {{f({32, 128, 512}), f({128, 128, 3}), f({128})}, conv({1}, {1, 1})}});
  t.push_back({"Conv", "1-d, audio", {{f({16, 1, 16384}), f({64, 1, 16})}, conv({8}, {4, 4})}});
  t.push_back(
      {"Conv", "1-d depthwise", {{f({32, 256, 512}), f({256, 1, 7})}, conv({1}, {3, 3}, 256)}});
  t.push_back(
      {"Conv",
       "3-d",
       {{f({2, 16, 16, 56, 56}), f({32, 16, 3, 3, 3})}, conv({1, 1, 1}, {1, 1, 1, 1, 1, 1})}});
  t.push_back(
      {"ConvTranspose", "1-d", {{f({32, 128, 256}), f({128, 64, 4}), f({64})}, conv({2}, {1, 1})}});
  t.push_back({"ConvTranspose",
               "2-d",
               {{f({16, 128, 28, 28}), f({128, 64, 4, 4}), f({64})}, conv({2, 2}, {1, 1, 1, 1})}});
  t.push_back(
      {"ConvTranspose",
       "3-d",
       {{f({2, 64, 8, 28, 28}), f({64, 32, 2, 2, 2})}, conv({2, 2, 2}, {0, 0, 0, 0, 0, 0})}});
  t.push_back({"DeformConv",
               "",
               {{f({4, 64, 32, 32}), f({64, 64, 3, 3}), f({4, 18, 32, 32}, -0.9, 0.9)},
                {{"pads", L{1, 1, 1, 1}}}}});
  ExampleInput boxes = f({256, 4}, 0, 30);
  t.push_back({"RoiAlign",
               "",
               {{f({4, 128, 64, 64}), boxes, ints({256}, 0, 4)},
                {{"output_height", 7}, {"output_width", 7}, {"sampling_ratio", 2}}}});
  for (const char* mode : {"linear", "nearest", "cubic"})
    t.push_back(
        {"GridSample", mode, {{f({16, 32, 64, 64}), grid(16, 64, 2)}, {{"mode", S(mode)}}}});
  t.push_back({"GridSample", "3-d", {{f({2, 16, 32, 32, 32}), grid(2, 32, 3)}}});
  t.push_back({"AffineGrid", "", {{f({32, 2, 3}), ivals({32, 3, 128, 128})}}});
  const auto resize = [&](const char* label, double scale, Attrs attrs) {
    ExampleInput scales = floats({4}, {1, 1, scale, scale});
    scales.constant = true;
    t.push_back({"Resize", label, {{f({16, 32, 64, 64}), absent(), scales}, std::move(attrs)}});
  };
  resize("nearest x2", 2, {{"mode", S("nearest")}});
  resize("linear x2", 2, {{"mode", S("linear")}});
  resize("cubic x2", 2, {{"mode", S("cubic")}});
  resize("linear / 2", 0.5, {{"mode", S("linear")}});
  resize("antialias / 2", 0.5, {{"mode", S("linear")}, {"antialias", kOne}});
  resize("nearest x1.5", 1.5, {{"mode", S("nearest")}});
  t.push_back({"Col2Im",
               "",
               {{f({16, 288, 1024}), ivals({32, 32}), ivals({3, 3})}, {{"pads", L{1, 1, 1, 1}}}}});
}

void more_products(std::vector<PerfEntry>& t, const ExampleInput& heads) {
  const ExampleInput rows = f({8, 512, 512}, -1, 1), caches = fixed(f({512, 32}, -1, 1));
  const Attrs flat{{"num_heads", 8}};
  t.push_back({"RotaryEmbedding", "", {{heads, caches, caches, positions(4, 512)}}});
  t.push_back({"com.microsoft.RotaryEmbedding", "", {{heads, positions(4, 512), caches, caches}}});
  t.push_back({"com.microsoft.Attention", "", {{rows, f({512, 1536}, -.1, .1), f({1536})}, flat}});
  t.push_back({"com.microsoft.MultiHeadAttention", "", {{rows, rows, rows}, flat}});
  t.push_back({"com.microsoft.GroupQueryAttention",
               "",
               {{rows, f({8, 512, 128}, -1, 1), f({8, 512, 128}, -1, 1), absent(), absent(),
                 iconst({8}, L(8, 511)), iconst({}, {512})},
                {{"num_heads", 8}, {"kv_num_heads", 2}}}});
  t.push_back({"LinearAttention",
               "",
               {{f({4, 256, 256}, -1, 1), f({4, 256, 256}, -1, 1), f({4, 256, 256}, -1, 1)},
                {{"q_num_heads", 4}, {"kv_num_heads", 4}, {"update_rule", S("linear")}}},
               2.0 * 2 * 4 * 4 * 256 * 64 * 64});
  t.push_back({"CausalConvWithState", "", {{f({16, 512, 512}), f({512, 1, 4}), f({512})}}});
  t.push_back({"com.microsoft.FusedMatMul",
               "",
               {{f({64, 256, 64}), f({64, 256, 64})}, {{"transB", kOne}}}});
  t.push_back({"com.microsoft.FusedGemm",
               "",
               {{f({1024, 512}), f({512, 1024}), f({1024})}, {{"activation", S("Relu")}}}});
  t.push_back({"com.microsoft.FusedConv",
               "",
               {{f({16, 64, 56, 56}), f({64, 64, 3, 3}), f({64})},
                {{"pads", L{1, 1, 1, 1}}, {"activation", S("Relu")}}}});
  t.push_back({"com.microsoft.NhwcConv",
               "",
               {{f({16, 56, 56, 64}), f({64, 64, 3, 3}), f({64})}, {{"pads", L{1, 1, 1, 1}}}}});
  t.push_back({"RandomNormalLike", "", {{f(kRows)}}});
  t.push_back({"RandomUniformLike", "", {{f(kRows)}}});
  t.push_back({"Bernoulli", "", {{f(kRows, 0, 1)}}});
}

void products(std::vector<PerfEntry>& t) {
  t.push_back({"MatMul", "square", {{f({1024, 1024}), f({1024, 1024})}}});
  t.push_back({"MatMul", "batched", {{f({64, 256, 64}), f({64, 64, 256})}}});
  t.push_back({"MatMul", "vector", {{f({4096, 2048}), f({2048})}}});
  t.push_back({"Gemm", "", {{f({1024, 512}), f({1024, 512}), f({1024})}, {{"transB", kOne}}}});
  const auto einsum = [&](const char* equation, std::vector<ExampleInput> in) {
    t.push_back({"Einsum", equation, {std::move(in), {{"equation", S(equation)}}}});
  };
  einsum("bij,bjk->bik", {f({64, 256, 64}), f({64, 64, 256})});
  einsum("bihd,bjhd->bhij", {f({8, 256, 8, 64}), f({8, 256, 8, 64})});
  einsum("bhij,bjhd->bihd", {f({8, 8, 256, 256}), f({8, 256, 8, 64})});
  einsum("ij,ij->i", {f(kRows), f(kRows)});
  einsum("i,j->ij", {f({4096}), f({1024})});
  einsum("bij->bji", {f(kCube)});
  const auto heads = [](int64_t n) { return f({4, 8, n, 64}, -1, 1); };
  t.push_back({"Attention", "", {{heads(512), heads(512), heads(512)}}});
  t.push_back(
      {"Attention", "causal", {{heads(512), heads(512), heads(512)}, {{"is_causal", kOne}}}});
  t.push_back({"Attention", "mask", {{heads(512), heads(512), heads(512), bools({512, 512})}}});
  more_products(t, heads(512));
  t.push_back(
      {"LSTM",
       "",
       {{f({32, 32, 256}), f({1, 1024, 256}, -.1, .1), f({1, 1024, 256}, -.1, .1), f({1, 2048})},
        {{"hidden_size", 256}}}});
  t.push_back(
      {"GRU",
       "",
       {{f({32, 32, 256}), f({1, 768, 256}, -.1, .1), f({1, 768, 256}, -.1, .1), f({1, 1536})},
        {{"hidden_size", 256}, {"linear_before_reset", kOne}}}});
  t.push_back(
      {"RNN",
       "",
       {{f({32, 32, 256}), f({1, 256, 256}, -.1, .1), f({1, 256, 256}, -.1, .1), f({1, 512})},
        {{"hidden_size", 256}}}});
  t.push_back({"Det", "8x8", {{f({16384, 8, 8})}}, 16384 * 2.0 / 3 * 512});
  t.push_back({"DFT", "512", {{f({4096, 512, 1}), absent(), axis_input(1)}}});
  t.push_back(
      {"STFT", "512", {{f({16, 32768, 1}), iconst({}, {256}), f({512}), iconst({}, {512})}}});
  t.push_back({"com.microsoft.MatMulNBits",
               "",
               {{f({512, 1024}), u8({1024, 32, 16}), f({1024 * 32}, 0.1, 0.2)},
                {{"K", 1024}, {"N", 1024}, {"bits", 4}, {"block_size", 32}}}});
}

void pointwise(std::vector<PerfEntry>& t) {
  t.push_back({"PRelu", "channels", {{f(kImages), f({64, 1, 1}, 0.1, 0.3)}}});
  t.push_back({"PRelu", "one slope", {{f(kRows), f({1}, 0.1, 0.3)}}});
  t.push_back({"Clip", "bounds", {{f(kRows), f({}, -1, 0), f({}, 0, 1)}}});
  t.push_back({"Add", "channels", {{f(kImages), f({64, 1, 1})}}});
  t.push_back({"Mul", "columns", {{f(kRows), f({4096, 1})}}});
  t.push_back({"com.microsoft.BiasGelu", "", {{f(kRows), f({1024})}}});
  for (const char* domain : {"", "com.microsoft."}) {
    ExampleInput scale = floats({}, {0.02}), zero = typed(DType::kU8, floats({}, {128}));
    scale.constant = zero.constant = true;
    t.push_back({S(domain) + "QuantizeLinear", "tensor", {{f(kRows), scale, zero}}});
    t.push_back({S(domain) + "DequantizeLinear", "tensor", {{u8(kRows), scale, zero}}});
  }
  t.push_back({"QuantizeLinear",
               "rows",
               {{f(kRows), f({4096}, 0.01, 0.02)}, {{"axis", 0}, {"output_dtype", S("i8")}}}});
  t.push_back({"DequantizeLinear", "rows", {{u8(kRows), f({4096}, 0.01, 0.02)}, {{"axis", 0}}}});
  t.push_back({"DynamicQuantizeLinear", "", {{f(kRows)}, {}, 3}});
  t.push_back(
      {"ai.onnx.ml.Scaler",
       "",
       {{f(kRows)}, {{"offset", std::vector<double>{0.5}}, {"scale", std::vector<double>{2.0}}}}});
}

// The first example of an elementwise op, blown up; nullopt when it is none.
std::optional<PerfEntry> elementwise(const OpDef& op) {
  const bool code = op.ew != Ew::kNone;
  const bool engine = !op.kernels.empty() && std::string(op.kernels[0].name) == "simd";
  if (!code && !engine) return std::nullopt;
  PerfEntry e{op.name, "", op.examples.at(0)};
  for (ExampleInput& in : e.use.in) {
    if (in.kind == ExampleInput::Kind::kAbsent || in.constant || in.dims.empty()) continue;
    in.dims = kRows;
    if (in.values.empty()) continue;
    const auto [low, high] = std::minmax_element(in.values.begin(), in.values.end());
    in.low = *low, in.high = *high + (*high == *low), in.values.clear();
    if (in.kind == ExampleInput::Kind::kFloats) in.kind = ExampleInput::Kind::kFloat;
  }
  return e;
}

}  // namespace

std::vector<PerfEntry> perf_table() {
  std::vector<PerfEntry> t;
  movement(t);
  reductions(t);
  norms(t);
  windows(t);
  products(t);
  pointwise(t);
  std::map<std::string, bool> has;
  for (const PerfEntry& e : t) has[e.op] = true;
  for (const OpDef* op : all_ops().all())
    if (!has[op->name] && !op->view && !op->name.starts_with("ortrain."))
      if (auto e = elementwise(*op)) t.push_back(std::move(*e));
  return t;
}

const std::map<std::string, std::string>& perf_skips() {
  static const std::map<std::string, std::string> skips = [] {
    std::map<std::string, std::string> m;
    const auto skip = [&](const char* why, std::initializer_list<const char*> names) {
      for (const char* n : names) m[n] = why;
    };
    skip("integer products: inference only",
         {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"});
    skip("runs once, on constants or shapes",
         {"BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "ConstantOfShape",
          "EyeLike", "Range", "Shape", "Size"});
    skip("post-processing: not part of a training step",
         {"NonMaxSuppression", "NonZero", "Unique", "TfIdfVectorizer"});
    skip("the size of its result depends on data: only with a known condition", {"Compress"});
    skip("dissolved before planning (branches, loops, sequences)",
         {"If", "Loop", "Scan", "ConcatFromSequence", "Optional", "OptionalGetElement",
          "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
          "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence"});
    skip("as the Like form of it", {"RandomNormal", "RandomUniform", "Multinomial"});
    skip("an optimizer inside a model: never in a training step of ours",
         {"ai.onnx.preview.training.Adagrad", "ai.onnx.preview.training.Adam",
          "ai.onnx.preview.training.Momentum"});
    skip("as Attention", {"ai.onnx.preview.FlexAttention"});
    skip("an older name of another operator here", {"Scatter", "Upsample"});
    return m;
  }();
  return skips;
}

}  // namespace ortrain::test
