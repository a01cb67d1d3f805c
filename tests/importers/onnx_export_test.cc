// The export: new values in every encoding a file may use, external data and its layout, metadata,
// and what is left on disk when it fails or is cut off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "graph/error.h"
#include "ortrain_test_paths.h"
#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using T = onnx::TensorProto;

onnx::ModelProto read_model(const std::string& path) {
  onnx::ModelProto m;
  EXPECT_TRUE(m.ParseFromString(read_file(path))) << path;
  return m;
}

std::vector<float> value_in(const std::string& path, const std::string& name, const OpTable& ops) {
  const auto file = OnnxFile::open(path, ops);
  const ValueId v = file->graph().find(name);
  return v == kNone ? std::vector<float>{} : floats_of(*file->graph().tensor(v));
}

OnnxFile::ValueOf only(const std::string& wanted, const HostTensor& t) {
  return [wanted, &t](const std::string& name) { return name == wanted ? &t : nullptr; };
}

TEST(Export, WithoutChangesTheFileIsEqual) {
  onnx::ModelProto m = linear_model();
  m.set_doc_string("kept");
  m.mutable_graph()->mutable_node(0)->set_doc_string("kept too");
  m.mutable_graph()->mutable_node(0)->add_metadata_props()->set_key("k");
  std::string bytes = m.SerializeAsString();
  bytes += std::string("\xaa\xbb\x03\x02hi", 6);  // field 7605: unknown to every version
  TempFolder folder;
  write_file(folder.path("a.onnx"), bytes);
  const auto file = OnnxFile::open(folder.path("a.onnx"), table_for(m));
  file->export_model(folder.path("b.onnx"), nullptr);
  EXPECT_EQ(read_file(folder.path("b.onnx")), bytes);
  EXPECT_THAT(folder.files(), ElementsAre("a.onnx", "b.onnx"));
}

TEST(Export, TypedDataKeepsItsEncoding) {
  onnx::ModelProto m = empty_model();
  auto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  const auto add = [&](const std::string& name, int type) {
    T t;
    t.set_name(name);
    t.set_data_type(type);
    t.add_dims(2);
    for (int i = 0; i < 2; ++i) {
      if (type == T::FLOAT) t.add_float_data(0);
      if (type == T::DOUBLE) t.add_double_data(0);
      if (type == T::FLOAT16 || type == T::BFLOAT16) t.add_int32_data(0);
    }
    *g.add_initializer() = t;
  };
  add("f32", T::FLOAT);
  add("f64", T::DOUBLE);
  add("f16", T::FLOAT16);
  add("bf16", T::BFLOAT16);
  auto* floats = add_node(g, "Constant", "", {}, {"fs"}).add_attribute();
  floats->set_name("value_floats");
  floats->set_type(onnx::AttributeProto::FLOATS);
  floats->add_floats(0);
  floats->add_floats(0);
  add_node(g, "Sum", "sum", {"x", "f32", "f64", "f16", "bf16", "fs"}, {"y"});
  TempFolder folder;
  const OpTable ops = table_for(m);
  const std::string path = folder.path("m.onnx");
  const HostTensor v = HostTensor::of<float>({2}, {-1.5f, 1024.f});
  parse(m, ops)->export_model(path, [&](const std::string&) { return &v; });

  const onnx::ModelProto got = read_model(path);
  const auto& t = got.graph().initializer();
  EXPECT_THAT(t[0].float_data(), ElementsAre(-1.5f, 1024.f));
  EXPECT_THAT(t[1].double_data(), ElementsAre(-1.5, 1024.0));
  EXPECT_THAT(t[2].int32_data(), ElementsAre(0xbe00, 0x6400));  // grew: two-byte varints and more
  EXPECT_THAT(t[3].int32_data(), ElementsAre(0xbfc0, 0x4480));
  EXPECT_THAT(got.graph().node(0).attribute(0).floats(), ElementsAre(-1.5f, 1024.f));
  EXPECT_EQ(got.graph().node(1).input(5), "fs");
  for (const char* name : {"f32", "f64", "f16", "bf16", "fs"})
    EXPECT_EQ(value_in(path, name, ops), (std::vector<float>{-1.5f, 1024.f})) << name;
}

// A new float value beside them leaves packed and 8-bit float data as it was, byte for byte.
TEST(Export, StorageTypesAreWrittenBack) {
  onnx::ModelProto m = linear_model();
  auto& g = *m.mutable_graph();
  const auto add = [&](const std::string& name, int type, int64_t n) {
    T& t = *g.add_initializer();
    t.set_name(name);
    t.set_data_type(type);
    t.add_dims(n);
    return &t;
  };
  add("i4", T::INT4, 3)
      ->set_raw_data(std::string("\x8f\x71", 2));  // the last 4 bits belong to none
  add("u2", T::UINT2, 3)->set_raw_data("\x1b");
  T& f8 = *add("f8", T::FLOAT8E4M3FN, 2);
  f8.add_int32_data(0x7f);
  f8.add_int32_data(0x80);
  TempFolder folder;
  write_file(folder.path("a.onnx"), m.SerializeAsString());
  const auto file = OnnxFile::open(folder.path("a.onnx"), table_for(m));
  const HostTensor b = HostTensor::of<float>({2}, {5, 6});
  file->export_model(folder.path("b.onnx"), only("b", b));
  onnx::ModelProto want = m, got = read_model(folder.path("b.onnx"));
  for (auto* graph : {want.mutable_graph(), got.mutable_graph()})
    for (auto& t : *graph->mutable_initializer())
      if (t.name() == "b") t.clear_raw_data();
  EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString());
  EXPECT_EQ(value_in(folder.path("b.onnx"), "b", table_for(m)), (std::vector<float>{5, 6}));
}

TEST(Export, ValuesMustFit) {
  onnx::ModelProto m = linear_model();
  TempFolder folder;
  const auto file = parse(m, table_for(m));
  const HostTensor wrong = HostTensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  try {
    file->export_model(folder.path("m.onnx"), only("w", wrong));
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'w': its value has shape [3,2], the file has [2,3]"));
  }
  EXPECT_TRUE(folder.files().empty());
  const HostTensor wide = HostTensor::of<double>({2}, {0.1, 0.2});
  file->export_model(folder.path("m.onnx"), only("b", wide));
  EXPECT_EQ(value_in(folder.path("m.onnx"), "b", table_for(m)), (std::vector<float>{0.1f, 0.2f}));
}

TEST(Export, MetadataIsAddedOrReplaced) {
  onnx::ModelProto m = linear_model();
  for (const char* key : {"keep", "ortrain.recipe"}) {
    auto* e = m.add_metadata_props();
    e->set_key(key);
    e->set_value("old");
  }
  TempFolder folder;
  const OpTable ops = table_for(m);
  parse(m, ops)->export_model(folder.path("m.onnx"), nullptr,
                              {{"ortrain.recipe", "new"}, {"ortrain.version", "1"}});
  const auto file = OnnxFile::open(folder.path("m.onnx"), ops);
  const std::map<std::string, std::string> expected{
      {"keep", "old"}, {"ortrain.recipe", "new"}, {"ortrain.version", "1"}};
  EXPECT_EQ(file->metadata(), expected);
  EXPECT_EQ(read_model(folder.path("m.onnx")).metadata_props_size(), 3);
}

TEST(Export, PythonsCheckerAcceptsIt) {
  const char* python = std::getenv("ORTRAIN_PYTHON");
  if (!python || std::string(kOnnxPythonDir).empty())
    GTEST_SKIP() << "no Python with onnx (ORTRAIN_DEPS)";
  onnx::ModelProto m = linear_model();
  auto* type = m.mutable_graph()->mutable_output(0)->mutable_type()->mutable_tensor_type();
  type->set_elem_type(T::FLOAT);
  type->mutable_shape()->add_dim()->set_dim_param("batch");
  type->mutable_shape()->add_dim()->set_dim_value(2);
  TempFolder folder;
  const HostTensor b = HostTensor::of<float>({2}, {5, 6});
  parse(m, table_for(m))->export_model(folder.path("m.onnx"), only("b", b), {{"k", "v"}});
  const std::string command =
      cat(python, " -c \"import onnx,sys; m=onnx.load('", folder.path("m.onnx"),
          "'); onnx.checker.check_model(m); from onnx import numpy_helper as h; "
          "assert h.to_array(m.graph.initializer[1]).tolist()==[5,6]\"");
  EXPECT_EQ(0, std::system(command.c_str()));
}

// A weight made by ConstantOfShape in a file of IR 3: the export holds it as an initializer that is
// no input, which IR 3 does not allow (onnx.checker: "in initializer but not in graph input").
TEST(Export, InitializersOfOldFilesRaiseTheVersion) {
  onnx::ModelProto m = empty_model(9);
  m.set_ir_version(3);
  auto& g = *m.mutable_graph();
  add_input(g, "x", {1, 2});
  add_input(g, "shape", {2}, T::INT64);
  *g.add_initializer() = int_tensor("shape", {2}, {2, 1});
  set_tensor(add_node(g, "ConstantOfShape", "make_w", {"shape"}, {"w"}), "value",
             float_tensor("", {1}, {0.5f}, true));
  add_node(g, "Conv", "conv", {"x", "w"}, {"y"});
  add_output(g, "y");
  TempFolder folder;
  OpTable ops = table_of({"ConstantOfShape"});
  ops.add({.name = "Conv", .inputs = {"X", "W"}, .outputs = {"Y"}});
  const HostTensor w = HostTensor::of<float>({2, 1}, {5, 6});
  parse(m, ops)->export_model(folder.path("same.onnx"), nullptr);
  parse(m, ops)->export_model(folder.path("new.onnx"), only("w", w));
  EXPECT_EQ(read_model(folder.path("same.onnx")).ir_version(), 3);
  EXPECT_EQ(read_model(folder.path("new.onnx")).ir_version(), 4);
  EXPECT_THAT(value_in(folder.path("new.onnx"), "w", ops), ElementsAre(5, 6));
}

// --- external data

// w at 0 and b at 64 of "model.onnx.data"; an integer tensor at 128; a gap that must survive.
onnx::ModelProto external_model(const TempFolder& folder, const std::string& data) {
  onnx::ModelProto m = linear_model();
  *m.mutable_graph()->add_initializer() = int_tensor("axes", {2}, {});
  std::string bytes(144, '#');
  int64_t offset = 0;
  for (auto& t : *m.mutable_graph()->mutable_initializer()) {
    const std::string raw = t.name() == "axes" ? std::string(16, '\0') : t.raw_data();
    bytes.replace(static_cast<size_t>(offset), raw.size(), raw);
    t.clear_raw_data();
    t.clear_int64_data();
    t.set_data_location(T::EXTERNAL);
    const auto put = [&](const std::string& key, const std::string& value) {
      auto* e = t.add_external_data();
      e->set_key(key);
      e->set_value(value);
    };
    put("location", data);
    put("offset", std::to_string(offset));
    put("length", std::to_string(raw.size()));
    put("checksum", "0123");
    offset += 64;
  }
  write_file(folder.path(data), bytes);
  write_file(folder.path("model.onnx"), m.SerializeAsString());
  return m;
}

TEST(ExportExternal, LayoutIsKeptAndTheFileRenamedWithTheModel) {
  TempFolder in, out;
  const onnx::ModelProto m = external_model(in, "model.onnx.data");
  const OpTable ops = table_for(m);
  const auto file = OnnxFile::open(in.path("model.onnx"), ops);
  EXPECT_EQ(names_of(file->graph(), Source::kParam), (std::vector<std::string>{"b", "w"}));
  const HostTensor b = HostTensor::of<float>({2}, {5, 6});
  file->export_model(out.path("best.onnx"), only("b", b));
  EXPECT_THAT(out.files(), ElementsAre("best.onnx", "best.onnx.data"));
  std::string expected = read_file(in.path("model.onnx.data"));
  expected.replace(64, 8, std::string(static_cast<const char*>(b.raw()), 8));
  EXPECT_EQ(read_file(out.path("best.onnx.data")), expected);
  EXPECT_EQ(value_in(out.path("best.onnx"), "b", ops), (std::vector<float>{5, 6}));
  const onnx::ModelProto got = read_model(out.path("best.onnx"));
  EXPECT_EQ(got.graph().initializer(0).external_data(0).value(), "best.onnx.data");
  EXPECT_EQ(got.graph().initializer(0).external_data_size(), 4);  // w is unchanged: checksum holds
  EXPECT_EQ(got.graph().initializer(1).external_data_size(), 3);  // b's is gone
  EXPECT_EQ(got.graph().initializer(2).external_data(0).value(), "best.onnx.data");
  EXPECT_EQ(OnnxFile::open(out.path("best.onnx"), ops)->hash(), file->hash());
}

TEST(ExportExternal, OverTheSourceKeepsNamesAndSize) {
  TempFolder folder;
  const onnx::ModelProto m = external_model(folder, "weights.bin");
  const OpTable ops = table_for(m);
  const std::string path = folder.path("model.onnx");
  for (int round = 1; round <= 3; ++round) {
    const auto file = OnnxFile::open(path, ops);
    const auto r = static_cast<float>(round);
    const HostTensor w = HostTensor::of<float>({2, 3}, {r, r, r, r, r, r});
    file->export_model(path, only("w", w));
    EXPECT_EQ(value_in(path, "w", ops), std::vector<float>(6, r));
    EXPECT_THAT(folder.files(), ElementsAre("model.onnx", "weights.bin"));
    EXPECT_EQ(read_file(folder.path("weights.bin")).size(), 144u);
  }
}

TEST(ExportExternal, ASecondModelInTheFolderDoesNotTouchTheFirst) {
  TempFolder folder;
  const onnx::ModelProto m = external_model(folder, "sub/weights.bin");
  ASSERT_EQ(0, ::mkdir(folder.path("sub").c_str(), 0777));
  external_model(folder, "sub/weights.bin");
  const OpTable ops = table_for(m);
  const std::string before = read_file(folder.path("sub/weights.bin"));
  const auto file = OnnxFile::open(folder.path("model.onnx"), ops);
  const HostTensor b = HostTensor::of<float>({2}, {5, 6});
  file->export_model(folder.path("last.onnx"), only("b", b));
  EXPECT_EQ(read_file(folder.path("sub/weights.bin")), before);
  EXPECT_EQ(value_in(folder.path("last.onnx"), "b", ops), (std::vector<float>{5, 6}));
  EXPECT_EQ(read_model(folder.path("last.onnx")).graph().initializer(0).external_data(0).value(),
            "sub/last.onnx.weights.bin");
}

TEST(ExportExternal, TensorsThatSharedBytesComeApart) {
  TempFolder folder;
  onnx::ModelProto m = external_model(folder, "w.bin");
  auto* twin = m.mutable_graph()->add_initializer();
  *twin = m.graph().initializer(1);
  twin->set_name("b2");
  add_node(*m.mutable_graph(), "Add", "add", {"y", "b2"}, {"z"});
  m.mutable_graph()->mutable_output(0)->set_name("z");
  write_file(folder.path("model.onnx"), m.SerializeAsString());
  const OpTable ops = table_for(m);
  const auto file = OnnxFile::open(folder.path("model.onnx"), ops);
  const HostTensor one = HostTensor::of<float>({2}, {1, 1}),
                   two = HostTensor::of<float>({2}, {2, 2});
  file->export_model(folder.path("out.onnx"), [&](const std::string& n) {
    return n == "b" ? &one : n == "b2" ? &two : nullptr;
  });
  EXPECT_EQ(value_in(folder.path("out.onnx"), "b", ops), (std::vector<float>{1, 1}));
  EXPECT_EQ(value_in(folder.path("out.onnx"), "b2", ops), (std::vector<float>{2, 2}));
  EXPECT_EQ(value_in(folder.path("out.onnx"), "w", ops), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  // Only one of the two changes: the other keeps the old bytes.
  file->export_model(folder.path("out.onnx"), only("b2", two));
  EXPECT_EQ(value_in(folder.path("out.onnx"), "b", ops), (std::vector<float>{-1, 1}));
  EXPECT_EQ(value_in(folder.path("out.onnx"), "b2", ops), (std::vector<float>{2, 2}));
}

// --- failing disks

TEST(ExportFailure, UnwritableTargets) {
  onnx::ModelProto m = linear_model();
  const auto file = parse(m, table_for(m));
  TempFolder folder;
  try {
    file->export_model(folder.path("no/such/folder/m.onnx"), nullptr);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIo);
    EXPECT_THAT(e.what(), HasSubstr("No such file"));
  }
  ASSERT_EQ(0, ::mkdir(folder.path("dir.onnx").c_str(), 0777));
  EXPECT_THROW(file->export_model(folder.path("dir.onnx"), nullptr), Error);
  EXPECT_THAT(folder.files(), ElementsAre("dir.onnx"));
}

// The disk is full after N bytes, for N over the whole range: the old pair stays whole and nothing
// is left behind.
TEST(ExportFailure, FullDiskLeavesTheOldModel) {
  TempFolder folder;
  const onnx::ModelProto m = external_model(folder, "weights.bin");
  const OpTable ops = table_for(m);
  const std::string path = folder.path("model.onnx");
  const std::string model = read_file(path), data = read_file(folder.path("weights.bin"));
  const auto file = OnnxFile::open(path, ops);
  const HostTensor w = HostTensor::of<float>({2, 3}, {9, 9, 9, 9, 9, 9});
  std::signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG
  rlimit old{};
  ASSERT_EQ(0, ::getrlimit(RLIMIT_FSIZE, &old));
  int failed = 0;
  for (rlim_t limit = 0; limit < model.size(); limit += 13) {
    rlimit now = old;
    now.rlim_cur = limit;
    ASSERT_EQ(0, ::setrlimit(RLIMIT_FSIZE, &now));
    bool threw = false;
    try {
      file->export_model(path, only("w", w));
    } catch (const Error& e) {
      threw = e.code() == ErrorCode::kIo;
    }
    ASSERT_EQ(0, ::setrlimit(RLIMIT_FSIZE, &old));
    ASSERT_TRUE(threw) << limit;
    ++failed;
    ASSERT_EQ(read_file(path), model) << limit;
    ASSERT_EQ(read_file(folder.path("weights.bin")), data) << limit;
    ASSERT_THAT(folder.files(), ElementsAre("model.onnx", "weights.bin")) << limit;
  }
  EXPECT_GT(failed, 20);
  file->export_model(path, only("w", w));
  EXPECT_EQ(value_in(path, "w", ops), std::vector<float>(6, 9.f));
}

// Killed at any instant while it exports over its own source, again and again: what is on disk is
// one export, whole, never a mixture of two. w lies in the data file, k in the model file.
TEST(ExportFailure, KilledAtAnyInstantLeavesOneWholeModel) {
  TempFolder folder;
  onnx::ModelProto m = external_model(folder, "weights.bin");
  *m.mutable_graph()->add_initializer() = float_tensor("k", {2}, {0, 0}, true);
  add_node(*m.mutable_graph(), "Add", "add", {"y", "k"}, {"z"});
  m.mutable_graph()->mutable_output(0)->set_name("z");
  const std::string path = folder.path("model.onnx");
  write_file(path, m.SerializeAsString());
  const OpTable ops = table_for(m);
  int seen = 0;
  float last = -1;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        for (int i = 1;; ++i) {
          const auto r = static_cast<float>(round * 1000 + i % 1000);
          const HostTensor w = HostTensor::of<float>({2, 3}, {r, r, r, r, r, r});
          const HostTensor k = HostTensor::of<float>({2}, {r, r});
          OnnxFile::open(path, ops)->export_model(path, [&](const std::string& n) {
            return n == "w" ? &w : n == "k" ? &k : nullptr;
          });
        }
      } catch (const Error&) {
        ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(500 + round * 7919 % 20000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(child, ::waitpid(child, &status, 0));
    ASSERT_TRUE(WIFSIGNALED(status)) << "an export failed in round " << round;
    const std::vector<float> w = value_in(path, "w", ops), k = value_in(path, "k", ops);
    const std::vector<float> old{1, 2, 3, 4, 5, 6};  // until the first export is through
    ASSERT_EQ(w, k[0] == 0 ? old : std::vector<float>(6, k[0])) << "round " << round;
    seen += k[0] != last;
    last = k[0];
  }
  EXPECT_GT(seen, 10);
  // What the killed exports left behind goes with the next ones; the names are the user's again.
  for (int i = 0; i < 2; ++i) OnnxFile::open(path, ops)->export_model(path, nullptr);
  EXPECT_EQ(read_model(path).graph().initializer(0).external_data(0).value(), "weights.bin");
  std::vector<std::string> files = folder.files();
  std::erase_if(files, [](const std::string& f) { return f.rfind("weights.bin.new", 0) == 0; });
  EXPECT_THAT(files, ElementsAre("model.onnx", "weights.bin"));
}

}  // namespace
}  // namespace ortrain::test
