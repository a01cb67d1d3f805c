// Hostile bytes: every prefix of a file, every byte flipped, deep nesting, absurd sizes. An Error
// or a graph, never a crash; tests/fuzz/onnx_fuzz.cc goes further.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

using ::testing::HasSubstr;

// "" = imported, else the message.
std::string try_import(const std::string& bytes, const OpTable& ops) {
  try {
    OnnxFile::parse(std::as_bytes(std::span(bytes)), "", ops);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

onnx::ModelProto rich_model() {
  onnx::ModelProto m = linear_model();
  auto& g = *m.mutable_graph();
  set_tensor(add_node(g, "Constant", "", {}, {"k"}), "value", float_tensor("", {2}, {1, 2}, false));
  add_node(g, "F", "call", {"y"}, {"z"}).set_domain("my");
  auto* f = m.add_functions();
  f->set_name("F");
  f->set_domain("my");
  f->add_input("a");
  f->add_output("b");
  auto* n = f->add_node();
  n->set_op_type("Relu");
  n->add_input("a");
  n->add_output("b");
  *g.add_initializer() = int_tensor("i", {2}, {3, 300});
  return m;
}

TEST(Hostile, EveryPrefixIsAnErrorOrAGraph) {
  const onnx::ModelProto m = rich_model();
  const std::string bytes = m.SerializeAsString();
  const OpTable ops = table_of({"Gemm", "Relu"});
  ASSERT_EQ(try_import(bytes, ops), "");
  int errors = 0;
  for (size_t n = 0; n < bytes.size(); ++n)
    if (!try_import(bytes.substr(0, n), ops).empty()) ++errors;
  // A cut between two top-level fields after the graph may still be a model.
  EXPECT_GE(errors, static_cast<int>(bytes.size()) - 3);
}

TEST(Hostile, FlippedBytes) {
  const std::string bytes = rich_model().SerializeAsString();
  const OpTable ops = table_of({"Gemm", "Relu"});
  int errors = 0;
  for (size_t n = 0; n < bytes.size(); ++n)
    for (int bit : {0x01, 0x08, 0x80, 0xff}) {
      std::string b = bytes;
      b[n] = static_cast<char>(b[n] ^ bit);
      errors += !try_import(b, ops).empty();
    }
  EXPECT_GT(errors, static_cast<int>(bytes.size()));
}

TEST(Hostile, RandomBytes) {
  uint64_t s = 1;
  for (int round = 0; round < 2000; ++round) {
    std::string b(static_cast<size_t>(round % 97), '\0');
    for (char& c : b) {
      s = s * 6364136223846793005u + 1442695040888963407u;
      c = static_cast<char>(s >> 56);
    }
    EXPECT_NE(try_import(b, table_of({})), "");
  }
}

TEST(Hostile, DeepNestingIsRefused) {
  std::string inner = "\x0a\x01x";
  const auto wrap = [&](int field) {
    std::string size;
    for (size_t n = inner.size();; n >>= 7) {
      size += static_cast<char>(n < 128 ? n : 0x80 | (n & 127));
      if (n < 128) break;
    }
    inner = static_cast<char>(field << 3 | 2) + size + inner;
  };
  for (int i = 0; i < 400; ++i) {  // graph in an attribute in a node, again and again
    wrap(6);
    wrap(5);
    wrap(1);
  }
  wrap(7);
  EXPECT_THAT(try_import(inner, table_of({})), HasSubstr("nested deeper"));
}

TEST(Hostile, LengthsBeyondTheFile) {
  const OpTable ops = table_of({});
  EXPECT_THAT(try_import(std::string("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10), ops),
              HasSubstr("cut short"));
  EXPECT_THAT(try_import(std::string("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), ops),
              HasSubstr("more than 10 bytes"));
  EXPECT_THAT(try_import(std::string("\x00\x00", 2), ops), HasSubstr("no field starts"));
  EXPECT_THAT(try_import("this is a text file\n", ops), HasSubstr("ONNX"));
}

}  // namespace
}  // namespace ortrain::test
