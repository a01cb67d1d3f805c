// Copies of unaligned tensors: released memory is gone (mincore is the witness), reading it
// meanwhile crashes, and graph() has every byte again; an export that needs the contents finds
// them.
#include "importers/copies.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

constexpr int64_t kCount = 100000;  // elements

size_t page() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// Pages of `t` that take memory.
size_t resident_pages(const HostTensor& t) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(t.raw()) / page() * page();
  const uintptr_t end = reinterpret_cast<uintptr_t>(t.raw()) + t.bytes();
  std::vector<unsigned char> in((end - begin + page() - 1) / page());
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, in.data()), 0);
  size_t n = 0;
  for (unsigned char c : in) n += c & 1;
  return n;
}

std::vector<float> ramp(float from) {
  std::vector<float> v(kCount);
  for (size_t i = 0; i < v.size(); ++i) v[i] = from + static_cast<float>(i);
  return v;
}

// Four tensors at different places of the file: names grow.
onnx::ModelProto model() {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {-1, kCount});
  add_output(g, "y4");
  std::string name = "w", x = "x";
  for (int i = 1; i <= 4; ++i, name += "w") {
    *g.add_initializer() = float_tensor(name, {kCount}, ramp(static_cast<float>(i)), true);
    const std::string y = "y" + std::to_string(i);
    add_node(g, "Mul", "", {x, name}, {y});
    x = y;
  }
  return m;
}

class CopiesOf : public testing::Test {
 protected:
  void open(const onnx::ModelProto& m) {
    ops_ = table_for(m);
    write_file(folder_.path("m.onnx"), m.SerializeAsString());
    file_ = OnnxFile::open(folder_.path("m.onnx"), ops_);
  }
  std::vector<const HostTensor*> tensors(const Graph& g) const {
    std::vector<const HostTensor*> out;
    for (ValueId v : g.sources(Source::kParam)) out.push_back(g.tensor(v));
    return out;
  }
  // Whether these contents are unaligned in the file.
  bool copied(const HostTensor& t) const {
    const std::string file = read_file(folder_.path("m.onnx"));
    const size_t at = file.find(std::string(static_cast<const char*>(t.raw()), t.bytes()));
    EXPECT_NE(at, std::string::npos);
    return at % sizeof(float) != 0;
  }
  TempFolder folder_;
  OpTable ops_;
  std::unique_ptr<OnnxFile> file_;
};

TEST_F(CopiesOf, UnalignedTensorsGoAndComeBack) {
  open(model());
  const Graph& g = file_->graph();
  const auto all = tensors(g);
  ASSERT_EQ(all.size(), 4u);
  std::vector<bool> own;
  for (const HostTensor* t : all) own.push_back(copied(*t));
  ASSERT_GE(std::count(own.begin(), own.end(), true), 2);
  ASSERT_GE(std::count(own.begin(), own.end(), false), 1);
  for (size_t round = 0; round < 2; ++round) {
    for (const HostTensor* t : all) EXPECT_GT(resident_pages(*t), 0u);
    file_->release_copies();
    file_->release_copies();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!own[i]) continue;
      EXPECT_EQ(resident_pages(*all[i]), 0u);
      EXPECT_DEATH(std::printf("%f", all[i]->as_double(kCount / 2)), "");
    }
    EXPECT_EQ(&file_->graph(), &g);
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(floats_of(*all[i]), ramp(static_cast<float>(i + 1)));
  }
}

TEST_F(CopiesOf, ExportAfterReleaseIsTheFile) {
  open(model());
  file_->release_copies();
  file_->export_model(folder_.path("out.onnx"), {});
  const auto out = OnnxFile::open(folder_.path("out.onnx"), ops_);
  const auto all = tensors(out->graph());
  ASSERT_EQ(all.size(), 4u);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(floats_of(*all[i]), ramp(static_cast<float>(i + 1)));
}

// One tensor in the file for two: where one changes, the other is written with its old contents.
TEST_F(CopiesOf, ExportFetchesWhatItNeeds) {
  for (const std::string name : {"s", "ss", "sss", "ssss"}) {
    onnx::ModelProto m = empty_model();
    auto& g = *m.mutable_graph();
    add_input(g, "x", {-1, kCount});
    add_output(g, "y");
    *g.add_initializer() = float_tensor(name, {kCount}, std::vector<float>(kCount, 3), true);
    add_node(g, "Identity", "same", {name}, {"other"});
    add_node(g, "Mul", "one", {"x", name}, {"a"});
    add_node(g, "Mul", "two", {"a", "other"}, {"y"});
    open(m);
    ASSERT_EQ(tensors(file_->graph()).size(), 2u);
    file_->release_copies();
    const HostTensor value = HostTensor::from<float>({kCount}, ramp(0));
    file_->export_model(folder_.path("out.onnx"),
                        [&](const std::string& n) { return n == name ? &value : nullptr; });
    const auto out = OnnxFile::open(folder_.path("out.onnx"), ops_);
    EXPECT_EQ(floats_of(*out->graph().tensor(out->graph().find(name))), ramp(0));
    EXPECT_EQ(floats_of(*out->graph().tensor(out->graph().find("other"))),
              std::vector<float>(kCount, 3));
  }
}

}  // namespace
}  // namespace ortrain::test
