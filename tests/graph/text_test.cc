// Text form: what is printed reads back to the same text, and bad text is refused with its line.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/graph/mini_ops.h"

namespace ortrain {
namespace {

const OpTable& ops() {
  static const OpTable table = mini::table();
  return table;
}

TEST(Text, ReadsBackToTheSameText) {
  const std::string text =
      "graph \"net \\\"x\\\"\" inferred\n"
      "input %0:f32[B,3,floordiv(T, 2)] \"x\"\n"
      "param %1:f32[2,2] \"w\" = {1.0, -2.5, 1e-30, inf}\n"
      "state %2:i64[] \"ortrain/step\" = {9007199254740993}\n"
      "const %3:bool[2] = {1, 0}\n"
      "%4:f32[B,3] \"h\", _, %5:bool[] = Norm(%0, _, %3) {a=1, b=0.1, c=\"s\", d=[1, -2], "
      "e=floats[1.0, 0.5], f=strings[\"p\", \"q\"], g=[]} @1 ~2 #conv1 (a|b)\n"
      "%6:f32[2,2] = Add(%1, %1) #add\n"
      "output %4 \"y\"\n"
      "update %1 <- %6\n"
      "trainable %1 \"on a path\" perm=[1, 0]\n";
  const Graph g = parse_graph(text, ops());
  EXPECT_EQ(print_graph(g), text);
  EXPECT_EQ(mini::normal(g), text);
  EXPECT_EQ(g.value(0).shape[2], floordiv(Dim::symbol("T"), 2));
  EXPECT_EQ(g.tensor(1)->as_double(3), std::numeric_limits<double>::infinity());
  EXPECT_EQ(g.tensor(2)->as_int(0), 9007199254740993);  // not exact as a double
  EXPECT_EQ(g.value(4).uses.size(), 0u);
  EXPECT_EQ(g.value(1).uses.size(), 2u);
  EXPECT_EQ(g.node(0).outputs, (std::vector<ValueId>{4, kNone, 5}));
  EXPECT_DOUBLE_EQ(g.node(0).attrs.f("b", 0), 0.1);
}

TEST(Text, LongContentsAreElidedUnlessAskedFor) {
  Graph g(ops());
  HostTensor t(DType::kF32, {20});
  for (int64_t i = 0; i < 20; ++i) t.set_double(i, 0.1 * static_cast<double>(i));
  g.add_param(std::move(t), "w");
  EXPECT_THAT(print_graph(g), testing::HasSubstr(", ...}"));
  const Graph back = parse_graph(print_graph(g, true), ops());
  for (int64_t i = 0; i < 20; ++i)
    EXPECT_EQ(back.tensor(0)->as_double(i), g.tensor(0)->as_double(i)) << i;
}

TEST(Text, RefusesWithTheLine) {
  const auto message = [](const char* text) -> std::string {
    try {
      parse_graph(text, ops());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kModel);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message("input %0:f32[2] \"x\"\n%1 = Nope(%0)"), testing::HasSubstr("line 2"));
  EXPECT_THAT(message("%1 = Add(%0, %0)"), testing::HasSubstr("a value defined above"));
  EXPECT_THAT(message("input %0:f33[2]"), testing::HasSubstr("a type"));
  EXPECT_THAT(message("param %0:f32[B] \"w\""), testing::HasSubstr("a shape of numbers"));
  EXPECT_THAT(message("const %0:f32[1] = {1, 2}"), testing::HasSubstr("fewer elements"));
  EXPECT_THAT(message("whatever"), testing::HasSubstr("line 1"));
}

TEST(Text, PrintsAGraphWithACycle) {
  Graph g = parse_graph("input %0:f32[] \"x\"\n%1 = Add(%0, %0) #a\n%2 = Add(%1, %0) #b\n", ops());
  g.set_input(0, 1, 2);
  EXPECT_THAT(print_graph(g), testing::HasSubstr("Add(%0, %2)"));
}

}  // namespace
}  // namespace ortrain
