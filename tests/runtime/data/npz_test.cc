// The .npz/.npy reader and writer: round trips through numpy (the outside witness), every refusal
// with its message, and no accident on any truncation or byte flip of a small file.
#include "runtime/data/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "runtime/data/npy.h"
#include "tests/runtime/data/data_test_util.h"

namespace ortrain::data {
namespace {
using test::as_span;
using test::error_of;
using test::read_file;
using test::ScratchFolder;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kMakeFiles = R"(
import sys, numpy as np
d = sys.argv[1]
types = 'f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ?'.split()
def ramp(t, shape):
    n = int(np.prod(shape)); v = np.arange(n)
    return ((v % 2) if t == '?' else v - (0 if t[0] == 'u' else 3)).astype(t).reshape(shape)
a = {t if t != '?' else 'bool': ramp(t, (2, 3, 2)) for t in types}
np.savez(d + '/stored.npz', **a)
np.savez_compressed(d + '/deflated.npz', **a)
np.savez(d + '/fortran.npz', **{k: np.asfortranarray(v) for k, v in a.items()})
np.savez(d + '/big.npz', **{k: v.astype(v.dtype.newbyteorder('>')) for k, v in a.items()})
np.savez(d + '/bigfortran.npz',
         **{k: np.asfortranarray(v.astype(v.dtype.newbyteorder('>'))) for k, v in a.items()})
open(d + '/prefixed.npz', 'wb').write(b'junk before the zip' + open(d + '/stored.npz', 'rb').read())
np.savez(d + '/shapes.npz', scalar=np.float32(7), empty=np.zeros((0, 4), 'i8'), one=np.ones(1))
for v in (1, 2, 3):
    with open(f'{d}/v{v}.npy', 'wb') as f:
        np.lib.format.write_array(f, a['f4'], version=(v, 0))
np.save(d + '/object.npy', np.array([{}, 1], dtype=object), allow_pickle=True)
np.save(d + '/text.npy', np.array(['ab', 'c']))
np.save(d + '/bytes.npy', np.array([b'ab']))
np.save(d + '/complex.npy', np.zeros(2, 'c8'))
np.save(d + '/date.npy', np.zeros(2, 'M8[s]'))
np.save(d + '/void.npy', np.zeros(2, 'V2'))
np.save(d + '/struct.npy', np.zeros(2, [('x', 'f4'), ('y', 'i4')]))
np.save(d + '/longdouble.npy', np.zeros(2, np.longdouble))
)";

// Sets a little-endian field of the n-th record that starts with `signature`.
void patch(std::string& zip, const char* signature, size_t offset, uint64_t value, size_t width) {
  const size_t at = zip.find(std::string(signature, 4));
  ASSERT_NE(at, std::string::npos);
  for (size_t i = 0; i < width; ++i)
    zip[at + offset + i] = static_cast<char>(value >> (8 * i) & 0xff);
}
constexpr const char* kCentral = "PK\x01\x02";

class NumpyFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::python_has(folder, "numpy")) GTEST_SKIP() << "no Python with numpy";
    ASSERT_TRUE(test::run_python(folder, kMakeFiles, folder.path()));
  }
  ScratchFolder folder;
};

TEST_F(NumpyFiles, EveryDtypeAndLayoutReadsAsNumpyWroteIt) {
  for (const char* file : {"stored", "deflated", "fortran", "big", "bigfortran", "prefixed"}) {
    const ArrayFile npz = open_npz(folder / (std::string(file) + ".npz"));
    ASSERT_EQ(npz.arrays.size(), 12u) << file;
    for (const StoredArray& array : npz.arrays) {
      SCOPED_TRACE(std::string(file) + " " + array.name);
      EXPECT_EQ(array.dims, (Dims{2, 3, 2}));
      const HostTensor t = array.tensor();
      const bool is_unsigned = array.name[0] == 'u';
      for (int64_t i = 0; i < 12; ++i) {
        const double want = array.name == "bool" ? static_cast<double>(i % 2)
                                                 : static_cast<double>(i - (is_unsigned ? 0 : 3));
        EXPECT_EQ(t.as_double(i), want) << i;
      }
    }
  }
}

TEST_F(NumpyFiles, StoredEntriesAreViewsAndDtypesAreExact) {
  const ArrayFile npz = open_npz(folder / "stored.npz");
  const auto in_file = [&](const std::byte* p) {
    return p >= npz.file.bytes().data() && p < npz.file.bytes().data() + npz.file.size();
  };
  for (const StoredArray& array : npz.arrays) EXPECT_TRUE(in_file(array.data)) << array.name;
  const std::pair<const char*, DType> dtypes[] = {
      {"f8", DType::kF64}, {"f4", DType::kF32}, {"f2", DType::kF16}, {"i8", DType::kI64},
      {"i4", DType::kI32}, {"i2", DType::kI16}, {"i1", DType::kI8},  {"u8", DType::kU64},
      {"u4", DType::kU32}, {"u2", DType::kU16}, {"u1", DType::kU8},  {"bool", DType::kBool}};
  for (const auto& [name, dtype] : dtypes) EXPECT_EQ(npz.find(name)->dtype, dtype) << name;
  EXPECT_EQ(npz.find("nothing"), nullptr);
}

TEST_F(NumpyFiles, ScalarsEmptyArraysAndAllFormatVersions) {
  const ArrayFile npz = open_npz(folder / "shapes.npz");
  EXPECT_EQ(npz.find("scalar")->dims, Dims{});
  EXPECT_EQ(npz.find("scalar")->tensor().as_double(0), 7);
  EXPECT_EQ(npz.find("empty")->dims, (Dims{0, 4}));
  EXPECT_EQ(npz.find("one")->dims, Dims{1});
  for (const char* file : {"v1.npy", "v2.npy", "v3.npy"}) {
    const ArrayFile npy = open_npy(folder / file, "x");
    EXPECT_EQ(npy.arrays[0].name, "x");
    EXPECT_EQ(npy.arrays[0].tensor().as_double(11), 8) << file;
  }
}

TEST_F(NumpyFiles, UnsupportedDtypesAreNamed) {
  const std::pair<const char*, const char*> table[] = {
      {"object", "object dtype"},     {"text", "string dtype"}, {"bytes", "string dtype"},
      {"complex", "complex dtype"},   {"date", "date or time"}, {"void", "bfloat16"},
      {"struct", "structured dtype"}, {"longdouble", "width"}};
  for (const auto& [file, text] : table) {
    const std::string path = folder / (std::string(file) + ".npy");
    EXPECT_THAT(error_of([&] { open_npy(path, "x"); }),
                AllOf(HasSubstr(text), HasSubstr(path), HasSubstr("float32")))
        << file;
  }
}

TEST_F(NumpyFiles, NumpyReadsWhatWeWrite) {
  HostTensor bf(DType::kBF16, {2});
  bf.set_double(0, 1.5);
  bf.set_double(1, -2);
  HostTensor half(DType::kF16, {1, 2});
  half.set_double(0, 0.25);
  half.set_double(1, 65504);
  const HostTensor f = HostTensor::of<float>({2, 2}, {1, 2, 3, -4});
  const HostTensor flags = HostTensor::of<bool>({3}, {true, false, true});
  const HostTensor labels = HostTensor::ints({5, -1});
  const HostTensor scalar = HostTensor::scalar<double>(0.1);
  const HostTensor empty(DType::kI32, {0, 3});
  write_npz(folder / "ours.npz", {{"f", f},
                                  {"param/w.0", f},
                                  {"bf", bf},
                                  {"half", half},
                                  {"flags", flags},
                                  {"labels", labels},
                                  {"scalar", scalar},
                                  {"empty", empty}});
  write_npy(folder / "ours.npy", f);
  EXPECT_TRUE(test::run_python(folder, R"(
import sys, zipfile, numpy as np
assert zipfile.ZipFile(sys.argv[1]).testzip() is None
z = np.load(sys.argv[1])
def same(name, a):
    b = z[name]; assert b.dtype == a.dtype and b.shape == a.shape and (a == b).all(), (name, b)
f = np.array([[1, 2], [3, -4]], 'f4')
same('f', f); same('param/w.0', f); same('bf', np.array([1.5, -2], 'f4'))
same('half', np.array([[.25, 65504]], 'f2')); same('flags', np.array([True, False, True]))
same('labels', np.array([5, -1])); same('scalar', np.array(.1)); same('empty', np.zeros((0, 3), 'i4'))
assert len(z.files) == 8 and (np.load(sys.argv[2]) == f).all()
)",
                               (folder / "ours.npz") + " " + (folder / "ours.npy")));
}

// ---- Without Python ----------------------------------------------------------------------------

std::string small_npz(const ScratchFolder& folder) {
  const HostTensor x = HostTensor::of<float>({2, 2}, {1, 2, 3, 4});
  const HostTensor y = HostTensor::of<bool>({2}, {true, false});
  write_npz(folder / "small.npz", {{"x", x}, {"labels", y}});
  return read_file(folder / "small.npz");
}

TEST(Npz, OwnFilesAreAlignedViews) {
  const ScratchFolder folder;
  small_npz(folder);
  const ArrayFile npz = open_npz(folder / "small.npz");
  for (const StoredArray& a : npz.arrays) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 64, 0u) << a.name;
    EXPECT_FALSE(a.tensor().owns());
  }
  EXPECT_EQ(npz.arrays[0].tensor().as_ints(), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(Npz, EveryTruncationIsRefused) {
  const ScratchFolder folder;
  const std::string bytes = small_npz(folder);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);
    EXPECT_NE(error_of([&] { read_npz(as_span(cut), "cut.npz"); }), "") << n;
  }
}

// A flipped byte is either refused or harmless (names, dates); the values are never wrong.
TEST(Npz, NoByteFlipChangesAValue) {
  const ScratchFolder folder;
  const std::string bytes = small_npz(folder);
  int refused = 0;
  for (size_t n = 0; n < bytes.size(); ++n) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bad = bytes;
      bad[n] = static_cast<char>(bad[n] ^ flip);
      try {
        for (const StoredArray& a : read_npz(as_span(bad), "flip.npz")) {
          const std::vector<int64_t> values = a.tensor().as_ints();
          if (a.count == 4)
            EXPECT_EQ(values, (std::vector<int64_t>{1, 2, 3, 4})) << n;
          else
            EXPECT_EQ(values, (std::vector<int64_t>{1, 0})) << n;
        }
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr("flip.npz"));
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size()) * 2);
}

std::string npy(const std::string& dict, const std::string& payload) {
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(dict.size() & 255);
  out += static_cast<char>(dict.size() >> 8);
  return out + dict + payload;
}

TEST(Npy, MalformedHeadersSayWhatIsWrong) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  const std::string data(8, '\0');
  EXPECT_EQ(parse_npy(as_span(npy(good, data)), "x", "f").dims, Dims{2});
  const struct {
    std::string bytes, message;
  } table[] = {
      {"", "at least 10 bytes, got 0"},
      {std::string("\x93NUMPZ\x01\x00\x00\x00", 10), "magic"},
      {std::string("\x93NUMPY\x04\x00\x00\x00", 10), "version 4.0"},
      {std::string("\x93NUMPY\x02\x00\x00\x00", 10), "at least 12 bytes"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\x7f", 12), "at most 65536"},
      {npy(good, data).substr(0, 30), "truncated numpy header"},
      {npy(good, data + "x"), "expects 2 x 4 bytes, got 9"},
      {npy(good, ""), "expects 2 x 4 bytes, got 0"},
      {npy("{'descr': '<f4', 'fortran_order': False}", data), "missing"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", data), "after the closing"},
      {npy("{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", data), "second or unknown"},
      {npy("{'descr': '<f4', 'fortran_order': None, 'shape': (2,)}", data), "neither True nor"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", data), "non-negative"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", data),
       "above 2^58"},
      // 2^32 * 2^32 * 4 bytes wraps to 0 in 64 bits.
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", ""),
       "too large"},
      {npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952,)}", ""),
       "expects 2305843009213693952 x 8 bytes, got 0"},
      {npy("{'descr': '", data), "unterminated"},
      {npy("{'descr': 'x4', 'fortran_order': False, 'shape': (2,)}", data), "unknown dtype 'x4'"},
      {npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", "\x01\x07"),
       "element 1 has the byte 7"},
  };
  for (const auto& [bytes, message] : table)
    EXPECT_THAT(error_of([&] { parse_npy(as_span(bytes), "x", "data.npy"); }),
                AllOf(HasSubstr("data.npy"), HasSubstr(message)));
}

TEST(Npz, HostileZipStructuresSayWhatIsWrong) {
  const ScratchFolder folder;
  const std::string good = small_npz(folder);
  const size_t name_size = 5, extra = 46 + name_size;  // "x.npy", then its zip64 field
  const auto message = [&](auto&& change) {
    std::string bad = good;
    change(bad);
    return error_of([&] { read_npz(as_span(bad), "bad.npz"); });
  };
  EXPECT_THAT(message([](std::string& z) { patch(z, kCentral, 8, 0x801, 2); }),
              AllOf(HasSubstr("bad.npz, entry 'x.npy'"), HasSubstr("encrypted")));
  EXPECT_THAT(message([](std::string& z) { patch(z, kCentral, 10, 12, 2); }),
              HasSubstr("compression method 12"));
  EXPECT_THAT(message([](std::string& z) { patch(z, kCentral, 16, 1, 4); }),
              AllOf(HasSubstr("entry 'x.npy'"), HasSubstr("checksum mismatch")));
  EXPECT_THAT(message([&](std::string& z) { patch(z, kCentral, extra + 4, 1u << 30, 8); }),
              HasSubstr("two sizes"));
  EXPECT_THAT(message([&](std::string& z) {
                patch(z, kCentral, extra + 4, uint64_t{1} << 60, 8);
                patch(z, kCentral, extra + 12, uint64_t{1} << 60, 8);
              }),
              HasSubstr("pass the end of the file"));
  EXPECT_THAT(message([](std::string& z) { z[z.find("x.npy", z.find(kCentral))] = '\0'; }),
              HasSubstr("NUL byte"));
  EXPECT_THAT(message([](std::string& z) { z[z.find("x.npy", z.find(kCentral)) + 4] = 'z'; }),
              HasSubstr("does not match the directory"));
  EXPECT_THAT(message([](std::string& z) {
                for (size_t at; (at = z.find("x.npy")) != std::string::npos;) z[at + 4] = 'z';
              }),
              HasSubstr("NAME.npy"));
  EXPECT_THAT(error_of([] { read_npz({}, "none.npz"); }), HasSubstr("not a zip file"));
}

TEST(Npz, SharedPayloadsAreRefused) {
  const ScratchFolder folder;
  const HostTensor x = HostTensor::of<float>({2}, {1, 2});
  write_npz(folder / "two.npz", {{"a", x}, {"b", x}});
  const std::string zip = read_file(folder / "two.npz");
  std::string twice = zip;
  for (size_t at; (at = twice.find("b.npy")) != std::string::npos;) twice[at] = 'a';
  EXPECT_THAT(error_of([&] { read_npz(as_span(twice), "f"); }), HasSubstr("two entries are named"));
  std::string longer = zip;  // the first entry's sizes now reach into the second
  patch(longer, kCentral, 46 + 5 + 4, 200, 8);
  patch(longer, kCentral, 46 + 5 + 12, 200, 8);
  EXPECT_THAT(error_of([&] { read_npz(as_span(longer), "f"); }), HasSubstr("'b.npy' overlap"));
}

// Deflated entries, as numpy writes them: what they inflate to is held against what they claim.
TEST_F(NumpyFiles, DeflatedSizesAreCheckedBeforeAndAfterInflating) {
  ASSERT_TRUE(test::run_python(folder, R"(
import sys, numpy as np
np.savez_compressed(sys.argv[1], x=np.zeros(1000))
)",
                               folder / "z.npz"));
  const std::string good = read_file(folder / "z.npz");
  EXPECT_EQ(read_npz(as_span(good), "z")[0].count, 1000);
  for (const uint64_t size : {uint64_t{1000}, uint64_t{8127}, uint64_t{8129}}) {
    std::string bad = good;
    patch(bad, kCentral, 24, size, 4);
    EXPECT_THAT(error_of([&] { read_npz(as_span(bad), "z"); }),
                AllOf(HasSubstr("entry 'x.npy'"), HasSubstr("compressed data is damaged")));
  }
  std::string bomb = good;
  patch(bomb, kCentral, 24, 1u << 31, 4);
  EXPECT_THAT(error_of([&] { read_npz(as_span(bomb), "z"); }), HasSubstr("cannot exceed 1032:1"));
  for (size_t n = 0; n < good.size(); ++n) {
    std::string bad = good;
    bad[n] = static_cast<char>(bad[n] ^ 0x10);
    try {
      for (const StoredArray& a : read_npz(as_span(bad), "z"))
        for (int64_t i = 0; i < a.count; ++i) ASSERT_EQ(a.tensor().as_double(i), 0) << n;
    } catch (const Error&) {
    }
  }
}

TEST(Npz, FailedWriteLeavesTheOldFile) {
  const ScratchFolder folder;
  const std::string before = small_npz(folder);
  const HostTensor big(DType::kF32, {1 << 18});
  struct rlimit old {};
  getrlimit(RLIMIT_FSIZE, &old);
  struct rlimit small {
    4096, old.rlim_max
  };
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of([&] { write_npz(folder / "small.npz", {{"big", big}}); });
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(message, AllOf(HasSubstr("small.npz"), HasSubstr("after 4096 bytes"),
                             HasSubstr("File too large")));
  EXPECT_EQ(read_file(folder / "small.npz"), before);
  size_t files = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1u) << "the temporary file was left behind";
}

TEST(Npz, PathsThatCannotBeUsed) {
  const ScratchFolder folder;
  const HostTensor x = HostTensor::of<float>({1}, {1});
  EXPECT_THAT(error_of([&] { open_npz(folder / "no.npz"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { open_npz(folder.path()); }), HasSubstr("a folder"));
  EXPECT_THAT(error_of([&] { open_npz("/dev/null"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] {
                write_npz(folder / "no/x.npz", {{"x", x}});
              }),
              HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] {
                write_npz(folder / "x.npz", {{"x", x}, {"x", x}});
              }),
              HasSubstr("two arrays are named 'x'"));
}

}  // namespace
}  // namespace ortrain::data
