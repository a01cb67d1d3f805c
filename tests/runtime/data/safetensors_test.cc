// The safetensors reader and writer: round trips through Python's safetensors (the outside
// witness), every refusal with its message, and no accident on any truncation or byte flip.
#include "runtime/data/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/data/data_test_util.h"

namespace ortrain::data {
namespace {
using test::as_span;
using test::error_of;
using test::read_file;
using test::ScratchFolder;
using testing::AllOf;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  std::string out;
  for (size_t i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + data;
}

std::string write_small(const ScratchFolder& folder) {
  const HostTensor w = HostTensor::of<float>({2, 2}, {1, 2, 3, 4});
  const HostTensor b = HostTensor::of<bool>({3}, {true, false, true});
  const SafetensorsEntry entries[] = {{"b", DType::kBool, {3}, b.raw()},
                                      {"w", DType::kF32, {2, 2}, w.raw()}};
  write_safetensors(folder / "small.safetensors", entries, {{"format", "pt"}});
  return read_file(folder / "small.safetensors");
}

TEST(Safetensors, PythonReadsWhatWeWrite) {
  const ScratchFolder folder;
  if (!test::python_has(folder, "safetensors.numpy, numpy"))
    GTEST_SKIP() << "no Python with safetensors and numpy";
  const DType dtypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kI64,
                          DType::kI32, DType::kI16, DType::kI8,  DType::kU64,
                          DType::kU32, DType::kU16, DType::kU8,  DType::kBool};
  std::vector<HostTensor> tensors;
  std::vector<SafetensorsEntry> entries;
  for (const DType d : dtypes) {
    HostTensor t(d, {2, 3});
    for (int64_t i = 0; i < 6; ++i)
      t.set_double(i, d == DType::kBool ? static_cast<double>(i % 2) : static_cast<double>(i));
    entries.push_back({"t." + std::string(name_of(d)), d, t.dims(), t.raw()});
    tensors.push_back(std::move(t));
  }
  const HostTensor scalar = HostTensor::scalar<float>(2.5f);
  const HostTensor empty(DType::kF32, {0, 5});
  entries.push_back({"scalar", DType::kF32, {}, scalar.raw()});
  entries.push_back({"empty \"quoted\" \xc3\xa9", DType::kF32, empty.dims(), empty.raw()});
  write_safetensors(folder / "ours.safetensors", entries, {{"step", "12"}, {"note", "a\nb"}});
  EXPECT_TRUE(test::run_python(folder, R"(
import sys, numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
t = load_file(sys.argv[1])
names = dict(f64='f8', f32='f4', f16='f2', i64='i8', i32='i4', i16='i2', i8='i1', u64='u8', u32='u4',
             u16='u2', u8='u1', bool='?')
for n, d in names.items():
    a = t['t.' + n]; want = np.arange(6).reshape(2, 3)
    want = (want % 2 if n == 'bool' else want).astype(d)
    assert a.dtype == want.dtype and (a == want).all() and a.shape == (2, 3), (n, a)
assert t['scalar'].shape == () and t['scalar'] == 2.5 and t['empty "quoted" é'].shape == (0, 5)
assert len(t) == 14
with safe_open(sys.argv[1], 'np') as f: assert f.metadata() == dict(step='12', note='a\nb')
)",
                               folder / "ours.safetensors"));
}

TEST(Safetensors, ReadsWhatPythonWrites) {
  const ScratchFolder folder;
  if (!test::python_has(folder, "safetensors.numpy, numpy"))
    GTEST_SKIP() << "no Python with safetensors and numpy";
  ASSERT_TRUE(test::run_python(folder, R"(
import sys, numpy as np
from safetensors.numpy import save_file
t = {d: np.arange(6).reshape(2, 3).astype(d) for d in 'f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1'.split()}
t['scalar'] = np.array(7, 'i8'); t['empty'] = np.zeros((3, 0), 'f4'); t['odd'] = np.array([True])
save_file(t, sys.argv[1], metadata={'k': 'v'})
)",
                               folder / "theirs.safetensors"));
  const ArrayFile file = open_safetensors(folder / "theirs.safetensors");
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"k", "v"}}));
  ASSERT_EQ(file.arrays.size(), 14u);
  for (const StoredArray& a : file.arrays) {
    if (a.count != 6) continue;
    EXPECT_EQ(a.dims, (Dims{2, 3}));
    EXPECT_EQ(a.tensor().as_ints(), (std::vector<int64_t>{0, 1, 2, 3, 4, 5})) << a.name;
    EXPECT_EQ(size_of(a.dtype), static_cast<size_t>(a.name[1] - '0')) << a.name;
  }
  EXPECT_EQ(file.find("scalar")->tensor().as_int(0), 7);
  EXPECT_EQ(file.find("empty")->dims, (Dims{3, 0}));
  EXPECT_EQ(file.find("odd")->dtype, DType::kBool);
}

TEST(Safetensors, RoundTripIsAViewInTheFile) {
  const ScratchFolder folder;
  const std::string bytes = write_small(folder);
  const ArrayFile file = open_safetensors(folder / "small.safetensors");
  ASSERT_EQ(file.arrays.size(), 2u);
  EXPECT_EQ(file.arrays[0].name, "w") << "widest elements first";
  EXPECT_EQ(file.arrays[0].data - file.file.bytes().data(),
            static_cast<ptrdiff_t>(bytes.size()) - 16 - 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.arrays[0].data) % 64, 0u);
  EXPECT_EQ(file.arrays[0].tensor().as_ints(), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(file.arrays[1].tensor().as_ints(), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(file.metadata.at("format"), "pt");
}

TEST(Safetensors, Bf16RoundTrip) {
  const ScratchFolder folder;
  HostTensor t(DType::kBF16, {3});
  for (int64_t i = 0; i < 3; ++i) t.set_double(i, 0.5 * static_cast<double>(i));
  const SafetensorsEntry entries[] = {{"h", DType::kBF16, {3}, t.raw()}};
  write_safetensors(folder / "h.safetensors", entries);
  EXPECT_THAT(read_file(folder / "h.safetensors"), HasSubstr("\"BF16\""));
  const ArrayFile file = open_safetensors(folder / "h.safetensors");
  EXPECT_EQ(file.arrays[0].tensor().as_double(2), 1.0);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const ScratchFolder folder;
  const std::string bytes = write_small(folder);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);
    EXPECT_NE(error_of([&] { read_safetensors(as_span(cut), "cut"); }), "") << n;
  }
}

TEST(Safetensors, ByteFlipsAreRefusedOrStayInBounds) {
  const ScratchFolder folder;
  const std::string bytes = write_small(folder);
  for (size_t n = 0; n < bytes.size(); ++n) {
    for (const int flip : {0x01, 0x02, 0x80, 0xff}) {
      std::string bad = bytes;
      bad[n] = static_cast<char>(bad[n] ^ flip);
      try {
        const SafetensorsContent content = read_safetensors(as_span(bad), "flip");
        for (const StoredArray& a : content.arrays) {
          EXPECT_GE(a.data, as_span(bad).data());
          EXPECT_LE(a.data + a.bytes(), as_span(bad).data() + bad.size());
        }
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr("flip"));
      }
    }
  }
}

TEST(Safetensors, MalformedFilesSayWhatIsWrong) {
  const std::string d8(8, '\0');
  const auto tensor = [](const std::string& name, const std::string& rest) {
    return "\"" + name + "\":{" + rest + "}";
  };
  const std::string a = tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  const struct {
    std::string bytes, message;
  } table[] = {
      {"", "at least 8 bytes"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "at most 100000000"},
      {file_of("{}", "").substr(0, 9), "header of 2 bytes"},
      {file_of("{", ""), "not valid JSON"},
      {file_of("[]", ""), "not a JSON object"},
      {file_of("{}", "x"), "cover 0 of the 1 bytes"},
      {file_of(deep, ""), "nested deeper"},
      {file_of("{\"a\":" + deep, ""), "nested deeper"},
      {file_of("{" + a + "," + a + "}", "1234"), "'a' twice"},
      {file_of("{\"a\":3}", ""), "tensor 'a': expected an object"},
      {file_of("{\"a\":{}}", ""), "'dtype' is missing"},
      {file_of("{" + tensor("a", R"("dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1])") + "}",
               "x"),
       "dtype 'F8_E4M3' is not supported; supported: F64 F32"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])") + "}",
               "1234"),
       "non-negative"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])") + "}",
               "1234"),
       "non-negative"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,4])") + "}",
               "1234"),
       "expects 2 x 4 bytes, got 4"},
      {file_of("{" +
                   tensor("a", R"("dtype":"F32","shape":[4294967296,4294967296],)"
                               R"("data_offsets":[0,0])") +
                   "}",
               ""),
       "too large"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[4,12])") + "}", d8),
       "expected within the 8 bytes"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[4,0])") + "}", d8),
       "expected within the 8 bytes"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[4,8])") + "}", d8),
       "a hole before it"},
      {file_of("{" + a + "}", d8), "cover 4 of the 8 bytes"},
      {file_of(
           "{" + a + "," + tensor("b", R"("dtype":"U8","shape":[6],"data_offsets":[2,8])") + "}",
           d8),
       "tensor 'b': starts at 2, expected 4 (overlaps"},
      {file_of("{" + tensor("a", R"("dtype":"BOOL","shape":[1],"data_offsets":[0,1])") + "}",
               "\x02"),
       "has the byte 2"},
      {file_of("{\"__metadata__\":{\"k\":1}}", ""), "not a string"},
  };
  for (const auto& [bytes, message] : table)
    EXPECT_THAT(error_of([&] { read_safetensors(as_span(bytes), "m.safetensors"); }),
                AllOf(HasSubstr("m.safetensors"), HasSubstr(message)));
}

TEST(Safetensors, WriterRefusesBadNames) {
  const ScratchFolder folder;
  const float x = 1;
  const SafetensorsEntry twice[] = {{"a", DType::kF32, {1}, &x}, {"a", DType::kF32, {1}, &x}};
  EXPECT_THAT(error_of([&] { write_safetensors(folder / "f", twice); }), HasSubstr("given twice"));
  const SafetensorsEntry reserved[] = {{"__metadata__", DType::kF32, {1}, &x}};
  EXPECT_THAT(error_of([&] { write_safetensors(folder / "f", reserved); }), HasSubstr("reserved"));
  const SafetensorsEntry bytes[] = {{"\xff", DType::kF32, {1}, &x}};
  EXPECT_THAT(error_of([&] { write_safetensors(folder / "f", bytes); }), HasSubstr("UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
}

}  // namespace
}  // namespace ortrain::data
