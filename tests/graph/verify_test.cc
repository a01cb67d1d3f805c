// verify(): each invariant, broken on purpose, is named.
#include <gmock/gmock.h>

#include "tests/graph/mini_ops.h"

namespace ortrain {
namespace {

using testing::HasSubstr;

const OpTable& ops() {
  static const OpTable table = mini::table();
  return table;
}

Graph sound() {
  return parse_graph(
      "graph \"g\" inferred\n"
      "input %0:f32[2] \"x\"\n"
      "state %1:f32[2] \"s\" = {1, 2}\n"
      "%2:f32[2] = Add(%0, %1) #a\n"
      "%3:f32[2] = Mul(%2, %1) #b\n"
      "output %3 \"y\"\n"
      "update %1 <- %2\n",
      ops());
}

TEST(Verify, ASoundGraphHasNoProblems) { EXPECT_EQ(verify(sound()), ""); }

TEST(Verify, I1UseLists) {
  Graph g = sound();
  g.value(0).uses.clear();
  EXPECT_THAT(verify(g), HasSubstr("I1: use list of %0"));
  g = sound();
  g.value(2).producer = 1;
  EXPECT_THAT(verify(g), HasSubstr("has another producer"));
}

TEST(Verify, I1Cycle) {
  Graph g = sound();
  g.set_input(0, 0, 3);
  EXPECT_THAT(verify(g), HasSubstr("cycle"));
}

TEST(Verify, I2Types) {
  Graph g = sound();
  g.value(2).typed = false;
  EXPECT_THAT(verify(g), HasSubstr("I2"));
  g.stage = Stage::kImported;
  EXPECT_EQ(verify(g), "");
}

TEST(Verify, I5Updates) {
  Graph g = sound();
  g.add_update(1, 3);
  EXPECT_THAT(verify(g), HasSubstr("two writers"));
  g = sound();
  g.set_update(0, 0);
  EXPECT_THAT(verify(g), HasSubstr("no node makes"));
  g = sound();
  g.value(2).shape = Shape({3});
  EXPECT_THAT(verify(g), HasSubstr("I5: 's' is f32[2] but takes f32[3]"));
  g = sound();
  g.add_update(0, 3);
  EXPECT_THAT(verify(g), HasSubstr("neither parameter nor state"));
}

TEST(Verify, I5ReadersComeBeforeTheWriter) {
  Graph g = sound();  // Mul reads the old state, but needs the new one: no order is right
  g.stage = Stage::kScheduled;
  g.order = {0, 1};
  EXPECT_THAT(verify(g), HasSubstr("after its new value is made"));
}

TEST(Verify, Order) {
  Graph g = sound();
  g.set_update(0, 3);
  g.stage = Stage::kScheduled;
  EXPECT_THAT(verify(g), HasSubstr("missing in a scheduled graph"));
  g.order = {0, 1};
  EXPECT_EQ(verify(g), "");
  g.order = {1, 0};
  EXPECT_THAT(verify(g), HasSubstr("runs before its input"));
  g.order = {0};
  EXPECT_THAT(verify(g), HasSubstr("lists 1 of 2"));
  g.order = {0, 0};
  EXPECT_THAT(verify(g), HasSubstr("listed twice"));
}

TEST(Verify, I12Origin) {
  Graph g = sound();
  g.node(1).origin.clear();
  EXPECT_THAT(verify(g), HasSubstr("I12"));
}

}  // namespace
}  // namespace ortrain
