// What a file may say about attention, generators and com.microsoft operators that no kernel could
// survive is refused while types are inferred, with the reason: mixed types, heads that do not
// divide, caches of another rank, lists that do not fit.
#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/ops/interpreter.h"

namespace ortrain::test {
namespace {

struct Refusal {
  const char* inputs;  // shapes in the text form, separated by spaces; "_" = absent
  const char* node;    // operator and attributes
  const char* reason;  // part of the message
};

std::string refusal(const Refusal& r) {
  std::string text, args;
  std::string_view rest = r.inputs;
  int id = 0;
  while (!rest.empty()) {
    const size_t space = rest.find(' ');
    const std::string one(rest.substr(0, space));
    rest = space == rest.npos ? std::string_view() : rest.substr(space + 1);
    args += args.empty() ? "" : ", ";
    if (one == "_") {
      args += "_";
      continue;
    }
    text += cat("input %", id, ":", one, " \"x", id, "\"\n");
    args += cat("%", id++);
  }
  const std::string_view node = r.node;
  const size_t brace = node.find(' ');
  text += cat("%", id, " = ", std::string(node.substr(0, brace)), "(", args, ")",
              brace == node.npos ? "" : std::string(node.substr(brace)), " #node\noutput %", id,
              " \"y\"\n");
  try {
    Graph g = parse_graph(text, all_ops());
    for (NodeId n : g.topo()) g.infer(n);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted: " + text;
}

const Refusal kRefusals[] = {
    {"f32[2,3,8] f32[2,3,8] f32[2,3,8]", "Attention {q_num_heads=3, kv_num_heads=2}", "divide"},
    {"f32[2,3,0] f32[2,3,0] f32[2,3,0]", "Attention {q_num_heads=2, kv_num_heads=2}", "divide"},
    {"f32[2,3,8] f32[2,3,8] f32[2,3,8]", "Attention {q_num_heads=99999999, kv_num_heads=1}",
     "q_num_heads"},
    {"f32[2,2,3,4] f64[2,2,3,4] f32[2,2,3,4]", "Attention", "is f64"},
    {"f32[2,2,3,4] f32[2,2,3,4] f32[2,2,3,4] _ f32[2,3] f32[2,3]", "Attention", "rank 4"},
    {"f32[2,2,3,4] f16[5,2] f32[5,2] i64[2,3]", "RotaryEmbedding", "is f16"},
    {"f32[2,2,3,4] f32[5,3] f32[5,3] i64[2,3]", "RotaryEmbedding", "cache"},
    {"f32[2,2,3,4] f32[5] f32[5] i64[2,3]", "RotaryEmbedding", "cache"},
    {"f32[2,2,3,5] f32[2,3,2] f32[2,3,2]", "RotaryEmbedding", "rotary_embedding_dim"},
    {"f32[2,2,3,4] f32[2,3,4] f32[2,3,4]", "RotaryEmbedding {rotary_embedding_dim=8}", "dim 8"},
    {"f32[2,3,0] f32[2,3,0] f32[2,3,0]", "RotaryEmbedding {num_heads=60000}", "divide"},
    {"f32[2,4,3] f64[2,1,3]", "TensorScatter", "do not fit"},
    {"f32[2,4,3] f32[2,5,3]", "TensorScatter", "do not fit"},
    {"f32[2,4,3] f32[2,1,3]", "TensorScatter {axis=0}", "axis 0"},
    {"f32[2,4,3] f32[2,1,3] f32[2]", "TensorScatter", ""},
    {"f32[1,2,0] f32[1,2,0] f32[1,2,0]",
     "LinearAttention {q_num_heads=65536, kv_num_heads=65536, update_rule=\"linear\"}", "divide"},
    {"f32[1,2,4] f32[1,2,4] f32[1,2,4]", "LinearAttention {q_num_heads=2, kv_num_heads=2}",
     "decay"},
    {"f32[1,2,4] f32[1,2,4] f32[1,2,4] f32[1,2,2,3]",
     "LinearAttention {q_num_heads=2, kv_num_heads=2, update_rule=\"linear\"}", "past_state"},
    {"f32[1,2,3] f32[2,1,0]", "CausalConvWithState", "kernel is empty"},
    {"f32[1,2,3] f32[3,1,2]", "CausalConvWithState", "weight"},
    {"", "RandomUniform {shape=[2,-1]}", "negative"},
    {"", "RandomUniform {shape=[2], dtype=\"i32\"}", "i32"},
    {"f32[2,0]", "Multinomial", "no class"},
    {"f32[2,3]", "Bernoulli {dtype=\"f8e8m0\"}", "f8e8m0"},
    {"f32[2,3] f32[2,3] f32[4]", "com.microsoft.SkipLayerNormalization", "gamma"},
    {"f32[2,3] f32[2,2,3] f32[3]", "com.microsoft.SkipLayerNormalization", "skip"},
    {"i64[2,3] _ f32[5,4] f32[3,4] _ _ f32[4]", "com.microsoft.EmbedLayerNormalization", "gamma"},
    {"f32[2,3] f32[4,5]", "com.microsoft.FusedMatMul", "do not fit"},
    {"f32[1,2,4,4] f32[3,2,2,2] _ f32[1,3,4,4]", "com.microsoft.FusedConv", "Z is"},
    {"f32[1,2,4,4] f32[3,2,2,2]", "com.microsoft.FusedConv {activation=\"Softer\"}", "Softer"},
    {"f32[2,3,5] f32[5,12]", "com.microsoft.Attention {num_heads=3, do_rotary=1}", "do_rotary"},
    {"f32[2,3,5] f32[5,12]", "com.microsoft.Attention {num_heads=3}", "qkv_hidden_sizes"},
    {"f32[2,3,5] f32[5,12] _ i32[8]", "com.microsoft.Attention {num_heads=2}", "padding mask"},
    {"f32[2,3,4] f32[2,3,4]", "com.microsoft.MultiHeadAttention {num_heads=2}", "value"},
    {"f32[2,3,4] f32[2,3,4] f32[2,3,4] f32[11]", "com.microsoft.MultiHeadAttention {num_heads=2}",
     "bias"},
    {"f32[2,3,4] f32[2,3,2] f32[2,3,2] _ _ i32[3] i32[]",
     "com.microsoft.GroupQueryAttention {num_heads=2, kv_num_heads=1}", "seqlens_k"},
    {"f32[2,3,4] f32[2,3,2] f32[2,3,2] f32[2,1,3,2] f32[2,1,3,2] i32[2] i32[]",
     "com.microsoft.GroupQueryAttention {num_heads=2, kv_num_heads=1}", "total_sequence_length"},
    {"f32[2,3,4] f32[2,3,2] f32[2,3,2] _ _ i32[2] i32[] f32[4] f32[4]",
     "com.microsoft.GroupQueryAttention {num_heads=2, kv_num_heads=1, do_rotary=1}", "caches"},
    {"f32[] i64[] f32[2] f32[2]", "ai.onnx.preview.training.Adam", "inputs per tensor"},
    {"f32[] i64[] f32[2] f32[2] f32[3]", "ai.onnx.preview.training.Momentum", "input 4"},
};

TEST(Refusals, NameTheReason) {
  for (const Refusal& r : kRefusals) {
    const std::string said = refusal(r);
    EXPECT_EQ(said.find("accepted"), said.npos) << said;
    EXPECT_NE(said.find(r.reason), said.npos) << r.node << " (" << r.inputs << "): " << said;
  }
}

}  // namespace
}  // namespace ortrain::test
