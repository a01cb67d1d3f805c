// TensorProto <-> HostTensor: every numeric type raw and typed, external data and its confinement,
// wrong sizes. Tensors are written by protobuf, so the reader is not its own witness.
#include "importers/onnx_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "graph/error.h"
#include "tests/importers/onnx_models.h"

namespace ortrain::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using T = onnx::TensorProto;

HostTensor read_back(const T& t, const std::string& folder = "/tmp") {
  const std::string bytes = t.SerializeAsString();
  const FileIndex index = index_file(std::as_bytes(std::span(bytes)), RootKind::kTensor, 8);
  T header;
  EXPECT_TRUE(header.ParseFromString(index.skeleton));
  DataFiles files(folder);
  return read_tensor(header, index.tensors.at(0), {std::as_bytes(std::span(bytes)), nullptr}, files)
      .clone();
}

std::string error_of(const T& t, const std::string& folder = "/tmp") {
  try {
    read_back(t, folder);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

T header(int type, const std::vector<int64_t>& dims) {
  T t;
  t.set_name("t");
  t.set_data_type(type);
  for (int64_t d : dims) t.add_dims(d);
  return t;
}

TEST(TensorRead, TypedFieldsOfEveryType) {
  const auto ints = [](int type, std::vector<int64_t> values) {
    T t = header(type, {static_cast<int64_t>(values.size())});
    for (int64_t v : values) {
      if (type == T::INT64)
        t.add_int64_data(v);
      else if (type == T::UINT64 || type == T::UINT32)
        t.add_uint64_data(static_cast<uint64_t>(v));
      else
        t.add_int32_data(static_cast<int32_t>(v));
    }
    return read_back(t).as_ints();
  };
  using V = std::vector<int64_t>;
  EXPECT_EQ(ints(T::INT64, {-1, INT64_MIN, INT64_MAX}), (V{-1, INT64_MIN, INT64_MAX}));
  EXPECT_EQ(ints(T::INT32, {-1, INT32_MIN, INT32_MAX}), (V{-1, INT32_MIN, INT32_MAX}));
  EXPECT_EQ(ints(T::INT16, {-32768, 32767}), (V{-32768, 32767}));
  EXPECT_EQ(ints(T::INT8, {-128, 127}), (V{-128, 127}));
  EXPECT_EQ(ints(T::UINT8, {0, 255}), (V{0, 255}));
  EXPECT_EQ(ints(T::UINT16, {0, 65535}), (V{0, 65535}));
  EXPECT_EQ(ints(T::UINT32, {0, 4294967295}), (V{0, 4294967295}));
  EXPECT_EQ(ints(T::UINT64, {0, INT64_MAX}), (V{0, INT64_MAX}));
  EXPECT_EQ(ints(T::BOOL, {0, 1, 7, 256}), (V{0, 1, 1, 1}));

  T f = header(T::FLOAT, {2, 1});
  f.add_float_data(1.5f);
  f.add_float_data(-0.0f);
  EXPECT_EQ(floats_of(read_back(f)), (std::vector<float>{1.5f, -0.0f}));
  EXPECT_TRUE(std::signbit(read_back(f).data<float>()[1]));
  T d = header(T::DOUBLE, {1});
  d.add_double_data(0.1);
  EXPECT_EQ(read_back(d).data<double>()[0], 0.1);
  T h = header(T::FLOAT16, {3});  // bits in int32_data: 1.0, -2.0, the smallest subnormal
  for (int bits : {0x3c00, 0xc000, 0x0001}) h.add_int32_data(bits);
  EXPECT_EQ(floats_of(read_back(h)), (std::vector<float>{1, -2, std::ldexp(1.f, -24)}));
  T b = header(T::BFLOAT16, {2});
  for (int bits : {0x3f80, 0xc040}) b.add_int32_data(bits);
  EXPECT_EQ(floats_of(read_back(b)), (std::vector<float>{1, -3}));
}

TEST(TensorRead, RawIsTheSameAsTyped) {
  for (int shift = 0; shift < 9; ++shift) {  // any alignment in the file
    T t = header(T::DOUBLE, {2});
    t.set_name(std::string(static_cast<size_t>(shift), 'n'));
    const double v[] = {3.25, -1e300};
    t.set_raw_data(v, sizeof v);
    const HostTensor r = read_back(t);
    EXPECT_EQ(r.data<double>()[0], 3.25);
    EXPECT_EQ(r.data<double>()[1], -1e300);
  }
  T b = header(T::BOOL, {3});
  b.set_raw_data("\0\1\7", 3);
  EXPECT_EQ(read_back(b).as_ints(), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(read_back(header(T::FLOAT, {0, 5})).dims(), (Dims{0, 5}));  // empty, no data at all
  T scalar = header(T::INT64, {});
  scalar.add_int64_data(9);
  EXPECT_EQ(read_back(scalar).rank(), 0);
}

TEST(TensorRead, WrongSizesAreRefusedBeforeAllocation) {
  T t = header(T::FLOAT, {3});
  t.set_raw_data("12345678");
  EXPECT_THAT(error_of(t), AllOf(HasSubstr("'t'"), HasSubstr("8 bytes"), HasSubstr("needs 12")));
  t = header(T::FLOAT, {int64_t{1} << 40});
  t.add_float_data(1);
  EXPECT_THAT(error_of(t), HasSubstr("expected 1099511627776 elements"));
  t = header(T::INT64, {1});
  t.add_int64_data(1);
  t.add_int64_data(2);
  EXPECT_THAT(error_of(t), HasSubstr("more data"));
  EXPECT_THAT(error_of(header(T::FLOAT, {-2})), HasSubstr("negative extent in shape [-2]"));
  EXPECT_THAT(error_of(header(T::FLOAT, {int64_t{1} << 40, int64_t{1} << 40})),
              HasSubstr("too large"));
  EXPECT_THAT(error_of(header(T::FLOAT, {2})), HasSubstr("expected 2 elements"));
  EXPECT_THAT(error_of(header(T::STRING, {1})), HasSubstr("STRING is not supported"));
  EXPECT_THAT(error_of(header(T::COMPLEX64, {1})), HasSubstr("COMPLEX64 is not supported"));
  EXPECT_THAT(error_of(header(99, {1})), HasSubstr("number 99 is not supported"));
}

// Five elements are three bytes of 4 bits or two of 2 bits; the rest of the last byte is ignored.
TEST(TensorRead, PackedElementsBecomeBytes) {
  T raw = header(T::INT4, {5});
  raw.set_raw_data(std::string("\x8f\x70\xf9", 3));
  EXPECT_EQ(read_back(raw).as_ints(), (std::vector<int64_t>{-1, -8, 0, 7, -7}));
  EXPECT_EQ(write_tensor("t", read_back(raw)).back(), '\x09');  // padding comes out as zeros
  T field = header(T::UINT4, {3});
  field.add_int32_data(0xf1);
  field.add_int32_data(0x02);
  EXPECT_EQ(read_back(field).as_ints(), (std::vector<int64_t>{1, 15, 2}));
  T two = header(T::INT2, {5});
  two.set_raw_data(std::string("\xe4\x02", 2));
  EXPECT_EQ(read_back(two).as_ints(), (std::vector<int64_t>{0, 1, -2, -1, -2}));
  T f4 = header(T::FLOAT4E2M1, {3});
  f4.set_raw_data("\xf3\x01");
  EXPECT_EQ(read_back(f4).as_double(0), 1.5);
  EXPECT_EQ(read_back(f4).as_double(1), -6);
  EXPECT_EQ(read_back(f4).as_double(2), 0.5);
  T f8 = header(T::FLOAT8E4M3FN, {2});
  f8.add_int32_data(0x38);
  f8.add_int32_data(0xfe);
  EXPECT_EQ(read_back(f8).as_double(0), 1);
  EXPECT_EQ(read_back(f8).as_double(1), -448);
  for (const T& t : {raw, field, two, f4, f8}) {
    T again;
    ASSERT_TRUE(again.ParseFromString(write_tensor("t", read_back(t))));
    EXPECT_EQ(again.data_type(), t.data_type());
    const HostTensor a = read_back(t), b = read_back(again);
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0);
  }
  raw.set_raw_data("12");
  EXPECT_THAT(error_of(raw), HasSubstr("raw data has 2 bytes"));
  T short_field = header(T::INT4, {3});
  short_field.add_int32_data(1);
  EXPECT_THAT(error_of(short_field), HasSubstr("expected 2 elements"));
}

TEST(TensorRead, UnpackedFieldsAreReadToo) {
  // float_data as two fields of one element, which a reader must accept although writers pack.
  std::string bytes = header(T::FLOAT, {2}).SerializeAsString();
  for (float v : {2.5f, -8.f}) {
    bytes += '\x25';  // field 4, 32 bit
    bytes.append(reinterpret_cast<const char*>(&v), 4);
  }
  T check;
  ASSERT_TRUE(check.ParseFromString(bytes));
  ASSERT_EQ(check.float_data_size(), 2);
  TempFolder folder;
  write_file(folder.path("t.pb"), bytes);
  EXPECT_EQ(floats_of(read_tensor_file(folder.path("t.pb"))), (std::vector<float>{2.5f, -8.f}));
}

T external(const std::string& location, int64_t offset, int64_t length) {
  T t = header(T::FLOAT, {2});
  t.set_data_location(T::EXTERNAL);
  const auto put = [&](const std::string& key, const std::string& value) {
    auto* e = t.add_external_data();
    e->set_key(key);
    e->set_value(value);
  };
  put("location", location);
  if (offset >= 0) put("offset", std::to_string(offset));
  if (length >= 0) put("length", std::to_string(length));
  return t;
}

TEST(TensorExternal, ReadsAtAnyOffset) {
  TempFolder folder;
  const float v[] = {1, 2, 3, 4};
  std::string bytes(reinterpret_cast<const char*>(v), sizeof v);
  write_file(folder.path("w.bin"), bytes);
  EXPECT_EQ(floats_of(read_back(external("w.bin", 4, 8), folder.path())),
            (std::vector<float>{2, 3}));
  EXPECT_EQ(floats_of(read_back(external("w.bin", -1, -1), folder.path())),
            (std::vector<float>{1, 2}));
  write_file(folder.path("odd.bin"), "x" + bytes);
  EXPECT_EQ(floats_of(read_back(external("odd.bin", 1, 8), folder.path())),
            (std::vector<float>{1, 2}));
}

TEST(TensorExternal, BoundsAreChecked) {
  TempFolder folder;
  write_file(folder.path("w.bin"), std::string(12, 'x'));
  EXPECT_THAT(error_of(external("w.bin", 8, 8), folder.path()), HasSubstr("beyond the end"));
  EXPECT_THAT(error_of(external("w.bin", 0, 12), folder.path()), HasSubstr("needs 8"));
  T t = external("w.bin", 0, 8);
  t.mutable_external_data(1)->set_value("18446744073709551615");
  EXPECT_THAT(error_of(t, folder.path()), HasSubstr("beyond the end"));
  t.mutable_external_data(1)->set_value("-4");
  EXPECT_THAT(error_of(t, folder.path()), HasSubstr("not a number"));
  write_file(folder.path("empty.bin"), "");
  EXPECT_THAT(error_of(external("empty.bin", 0, 8), folder.path()), HasSubstr("beyond the end"));
}

TEST(TensorExternal, StaysInTheModelsFolder) {
  TempFolder outside, folder;
  write_file(outside.path("secret"), std::string(8, 's'));
  ASSERT_EQ(0, ::symlink(outside.path("secret").c_str(), folder.path("link").c_str()));
  ASSERT_EQ(0, ::symlink(outside.path().c_str(), folder.path("dir").c_str()));
  write_file(folder.path("real"), std::string(8, '\0'));
  ASSERT_EQ(0, ::symlink("real", folder.path("inner").c_str()));
  const std::string up = "../" + outside.path().substr(outside.path().rfind('/') + 1) + "/secret";
  const auto refused = [&](const std::string& location) {
    return error_of(external(location, 0, 8), folder.path());
  };
  EXPECT_THAT(refused(outside.path("secret")), HasSubstr("absolute path"));
  EXPECT_THAT(refused(up), HasSubstr("'..'"));
  EXPECT_THAT(refused("x/../real"), HasSubstr("'..'"));
  EXPECT_THAT(refused("link"), HasSubstr("leads outside"));
  EXPECT_THAT(refused("dir/secret"), HasSubstr("leads outside"));
  EXPECT_THAT(refused("."), HasSubstr("outside"));
  EXPECT_THAT(refused(""), HasSubstr("no usable name"));
  EXPECT_NE(refused(std::string("real\0x", 6)), "");
  EXPECT_THAT(refused("missing"), HasSubstr("No such file"));
  EXPECT_EQ(refused("inner"), "");
  EXPECT_THAT(error_of(external("real", 0, 8), ""), HasSubstr("no folder"));
}

TEST(TensorWrite, ProtobufReadsIt) {
  T t;
  ASSERT_TRUE(t.ParseFromString(write_tensor("w", HostTensor::of<float>({2, 1}, {1, -2}))));
  EXPECT_EQ(t.name(), "w");
  EXPECT_EQ(t.data_type(), T::FLOAT);
  EXPECT_EQ(std::vector<int64_t>(t.dims().begin(), t.dims().end()), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(t.raw_data().size(), 8u);
  EXPECT_EQ(floats_of(read_back(t)), (std::vector<float>{1, -2}));
}

}  // namespace
}  // namespace ortrain::test
