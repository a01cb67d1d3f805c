// Opening data sets of every kind, the start-up check's messages, label ranges and conversions.
#include "runtime/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/data/convert.h"
#include "runtime/data/npz.h"
#include "runtime/data/safetensors.h"
#include "tests/runtime/data/data_test_util.h"

namespace ortrain::data {
namespace {
using test::error_of;
using test::ScratchFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

HostTensor images() { return HostTensor(DType::kF32, {4, 1, 8, 8}); }
HostTensor labels() { return HostTensor::ints({0, 9, 3, -100}); }

Dataset in_memory(std::vector<std::pair<std::string, HostTensor>> extra = {}) {
  extra.emplace_back("x", images());
  extra.emplace_back("labels", labels());
  return Dataset::from_arrays(std::move(extra), "train.npz");
}

TEST(Dataset, OpensEveryKind) {
  const ScratchFolder folder;
  const HostTensor x = images(), y = labels();
  write_npz(folder / "d.npz", {{"x", x}, {"labels", y}});
  const SafetensorsEntry entries[] = {{"x", DType::kF32, x.dims(), x.raw()}};
  write_safetensors(folder / "x.safetensors", entries);
  std::filesystem::create_directory(folder / "npys");
  write_npy(folder / "npys/x.npy", x);
  write_npy(folder / "npys/labels.npy", y);

  EXPECT_THAT(Dataset::open(folder / "d.npz").names(), ElementsAre("x", "labels"));
  EXPECT_THAT(Dataset::open(folder / "npys").names(), ElementsAre("labels", "x"));
  EXPECT_THAT(Dataset::open(folder / "npys/x.npy").names(), ElementsAre("x"));
  EXPECT_THAT(Dataset::open("pixels=" + (folder / "npys/x.npy")).names(), ElementsAre("pixels"));
  const Dataset both =
      Dataset::open((folder / "x.safetensors") + ",y=" + (folder / "npys/labels.npy"));
  EXPECT_THAT(both.names(), ElementsAre("x", "y"));
  EXPECT_EQ(both.samples(), 4);
  EXPECT_EQ(both.array("y").as_ints(), (std::vector<int64_t>{0, 9, 3, -100}));
  EXPECT_EQ(&both.array("y"), &both.array("y"));
  EXPECT_EQ(both.summary(), "x f32[4,1,8,8], y i64[4]");
}

TEST(Dataset, PathsThatCannotBeOpened) {
  const ScratchFolder folder;
  const HostTensor y = labels();
  write_npz(folder / "a.npz", {{"x", y}});
  write_npz(folder / "b.npz", {{"x", y}, {"z", y}});
  write_npz(folder / "none.npz", {});
  test::write_file(folder / "a.parquet", "1,2");
  const auto open = [&](const std::string& p) { return error_of([&] { Dataset::open(p); }); };
  EXPECT_THAT(open(folder / "no.npz"), HasSubstr("No such file"));
  EXPECT_THAT(open(folder / "no"), HasSubstr("does not exist"));
  EXPECT_THAT(open(folder / "a.parquet"),
              AllOf(HasSubstr("unknown kind"), HasSubstr(".safetensors")));
  EXPECT_THAT(open(folder.path()), HasSubstr("holds no .npy file"));
  EXPECT_THAT(open(folder / "none.npz"), HasSubstr("holds no array"));
  EXPECT_THAT(open((folder / "a.npz") + "," + (folder / "b.npz")),
              HasSubstr("'x' is in two of the files"));
  EXPECT_THAT(open((folder / "a.npz") + ","), HasSubstr("an empty path"));
  EXPECT_THAT(open("y=" + (folder / "a.npz")), HasSubstr("only be given to a .npy"));
}

TEST(Dataset, UnknownNameListsTheNamesAndTheNearest) {
  EXPECT_THAT(
      error_of([] { in_memory().array("lables"); }),
      AllOf(HasSubstr("train.npz"), HasSubstr("'lables'"),
            HasSubstr("x f32[4,1,8,8], labels i64[4]"), HasSubstr("nearest name: 'labels'")));
}

TEST(CheckFits, WhatFits) {
  const ArraySpec specs[] = {{"x", DType::kF32, {-1, 1, 8, -1}}, {"labels", DType::kI64, {-1}}};
  const Fit fit = in_memory().check_fits(specs);
  EXPECT_EQ(fit.samples, 4);
  EXPECT_TRUE(fit.notes.empty());
}

TEST(CheckFits, NotesConversionsAndUnusedArrays) {
  const ArraySpec specs[] = {
      {"x", DType::kF64, {32, 1, 8, 8}}, {"labels", DType::kI32, {-1}}, {"w", DType::kF32, {-1}}};
  std::vector<std::pair<std::string, HostTensor>> extra;
  extra.emplace_back("w", HostTensor(DType::kF64, {4}));
  extra.emplace_back("spare", HostTensor(DType::kU8, {7}));
  const Fit fit = in_memory(std::move(extra)).check_fits(specs);
  EXPECT_EQ(fit.samples, 4) << "the unused array of 7 does not count";
  EXPECT_THAT(fit.notes,
              ElementsAre("'x' is converted from f32 to f64",
                          "'labels' is converted from i64 to i32 (every value checked)",
                          "'w' is converted from f64 to f32 (rounded)", "'spare' is not used"));
}

TEST(CheckFits, ListsEveryProblemWithBothSides) {
  std::vector<std::pair<std::string, HostTensor>> extra;
  extra.emplace_back("mask", HostTensor(DType::kU8, {4}));
  extra.emplace_back("short", HostTensor(DType::kF32, {3}));
  extra.emplace_back("scalar", HostTensor::scalar(1.f));
  const ArraySpec specs[] = {{"x", DType::kF32, {-1, 3, 8, 8}}, {"label", DType::kI64, {-1}},
                             {"mask", DType::kF32, {-1, 4}},    {"labels", DType::kI64, {-1}},
                             {"short", DType::kF32, {-1}},      {"scalar", DType::kF32, {-1}}};
  EXPECT_EQ(
      error_of([&] { in_memory(std::move(extra)).check_fits(specs); }),
      "the data 'train.npz' does not fit the model:\n"
      "  'x': expected f32[?,3,8,8], got f32[4,1,8,8]; shape differs after the batch axis\n"
      "  'label': expected i64[?], got no such array; the data has mask u8[4], short f32[3], "
      "scalar f32[], x f32[4,1,8,8], labels i64[4]; nearest name: 'labels'\n"
      "  'mask': expected f32[?,4], got u8[4]; rank differs (2 and 1); u8 does not convert to "
      "f32 without loss of meaning, convert and scale the array when writing it\n"
      "  'scalar': expected f32[?], got f32[]; a scalar has no batch axis\n"
      "  train.npz: expected one number of samples (first axis) in labels i64[4], "
      "short f32[3]\n"
      "name the array of an input: --map \"label:ARRAY\"");
}

TEST(Dataset, SampleCounts) {
  EXPECT_EQ(in_memory().samples(), 4);
  std::vector<std::pair<std::string, HostTensor>> one;
  one.emplace_back("x", HostTensor(DType::kF32, {0, 3}));
  EXPECT_THAT(error_of([&] { Dataset::from_arrays(std::move(one)).samples(); }),
              HasSubstr("no samples"));
}

TEST(Dataset, LabelsOutOfRangeAreLocated) {
  in_memory().check_labels("labels", 10);
  EXPECT_THAT(error_of([] { in_memory().check_labels("labels", 9); }),
              AllOf(HasSubstr("array 'labels', sample 1: label 9"), HasSubstr("0 to 8"),
                    HasSubstr("-100")));
  EXPECT_THAT(error_of([] { in_memory().check_labels("labels", 10, -1); }),
              HasSubstr("sample 3: label -100"));
  std::vector<std::pair<std::string, HostTensor>> extra;
  extra.emplace_back("tokens", HostTensor::of<uint16_t>({2, 3}, {0, 1, 2, 3, 4, 65535}));
  const Dataset d = in_memory(std::move(extra));
  EXPECT_THAT(error_of([&] { d.check_labels("tokens", 100); }),
              HasSubstr("sample 1, position 2: label 65535"));
  EXPECT_THAT(error_of([&] { d.check_labels("x", 10); }), HasSubstr("expected integer labels"));
}

TEST(Convert, AllowedPairs) {
  const auto c = [](DType a, DType b) { return conversion(a, b); };
  EXPECT_EQ(c(DType::kF32, DType::kF32), Conversion::kNone);
  EXPECT_EQ(c(DType::kI32, DType::kI64), Conversion::kExact);
  EXPECT_EQ(c(DType::kI64, DType::kI32), Conversion::kChecked);
  EXPECT_EQ(c(DType::kU64, DType::kI64), Conversion::kChecked);
  EXPECT_EQ(c(DType::kU8, DType::kI16), Conversion::kExact);
  EXPECT_EQ(c(DType::kBool, DType::kU8), Conversion::kExact);
  EXPECT_EQ(c(DType::kF64, DType::kF32), Conversion::kRounded);
  EXPECT_EQ(c(DType::kF16, DType::kF32), Conversion::kExact);
  EXPECT_EQ(c(DType::kBF16, DType::kF64), Conversion::kExact);
  for (const auto& [a, b] : {std::pair(DType::kU8, DType::kF32),
                             {DType::kI64, DType::kF32},
                             {DType::kF32, DType::kI64},
                             {DType::kI64, DType::kI16},
                             {DType::kI8, DType::kU64},
                             {DType::kU8, DType::kI8},
                             {DType::kF32, DType::kF16},
                             {DType::kF64, DType::kF16},
                             {DType::kU8, DType::kBool},
                             {DType::kF16, DType::kBF16}})
    EXPECT_EQ(c(a, b), Conversion::kRefused) << name_of(a) << " " << name_of(b);
}

template <class From, class To>
std::vector<double> converted(const HostTensor& in) {
  HostTensor out(dtype_of<To>, in.dims());
  // One byte off, as arrays in zip files are.
  std::string bytes = "?" + std::string(static_cast<const char*>(in.raw()), in.bytes());
  EXPECT_FALSE(convert(dtype_of<From>, test::as_span(bytes).data() + 1, dtype_of<To>,
                       static_cast<std::byte*>(out.mutable_raw()), in.count()));
  std::vector<double> values;
  for (int64_t i = 0; i < out.count(); ++i) values.push_back(out.as_double(i));
  return values;
}

TEST(Convert, Values) {
  EXPECT_THAT((converted<int64_t, int32_t>(HostTensor::ints({-5, 2147483647}))),
              ElementsAre(-5, 2147483647));
  EXPECT_THAT((converted<bool, int64_t>(HostTensor::of<bool>({2}, {true, false}))),
              ElementsAre(1, 0));
  EXPECT_THAT((converted<uint8_t, int32_t>(HostTensor::of<uint8_t>({2}, {255, 7}))),
              ElementsAre(255, 7));
  EXPECT_THAT((converted<double, float>(HostTensor::of<double>({2}, {0.5, 0.1}))),
              ElementsAre(0.5, static_cast<double>(0.1f)));
  EXPECT_THAT((converted<f16, float>(HostTensor::of<f16>({1}, {f16(65504.f)}))),
              ElementsAre(65504));
  const HostTensor big = HostTensor::ints({1, int64_t{1} << 31});
  std::byte out[8];
  EXPECT_EQ(convert(DType::kI64, big.data<std::byte>(), DType::kI32, out, 2), 1);
}

}  // namespace
}  // namespace ortrain::data
