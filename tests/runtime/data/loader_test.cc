// The loader against the arrays and the sampler directly: values, resume, views, conversions,
// errors in the thread, clean stops, memory and stall figures. Run under TSan for its hand-over.
#include "runtime/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/data/npz.h"
#include "tests/runtime/data/data_test_util.h"

namespace ortrain::data {
namespace {
using test::error_of;
using test::ScratchFolder;
using testing::AllOf;
using testing::HasSubstr;

// x[i] = {10 i, 10 i + 1, 10 i + 2}, labels[i] = i
Dataset numbers(int64_t n) {
  HostTensor x(DType::kF32, {n, 3}), y(DType::kI64, {n});
  for (int64_t i = 0; i < n; ++i) {
    y.set_double(i, static_cast<double>(i));
    for (int64_t j = 0; j < 3; ++j) x.set_double(3 * i + j, static_cast<double>(10 * i + j));
  }
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("x", std::move(x));
  arrays.emplace_back("labels", std::move(y));
  return Dataset::from_arrays(std::move(arrays), "numbers");
}
const std::vector<ArraySpec> kSpecs = {{"labels", DType::kI64, {-1}}, {"x", DType::kF32, {-1, 3}}};

std::vector<int64_t> ints(const BatchArray& a) { return a.tensor().as_ints(); }

void expect_batch(const Batch& b, const Sampler& sampler, int64_t step) {
  Sampler s = sampler;
  std::vector<int64_t> want;
  s.batch_indices(step, want);
  EXPECT_EQ(b.step, step);
  EXPECT_EQ(b.position, s.position(step));
  EXPECT_EQ(b.sample, want);
  EXPECT_EQ(b.count, static_cast<int64_t>(want.size()));
  EXPECT_EQ(b.global_count, s.global_count(step));
  ASSERT_EQ(b.arrays.size(), 2u);
  EXPECT_EQ(ints(b.arrays[0]), want);
  EXPECT_EQ(b.arrays[1].dims, (Dims{b.count, 3}));
  for (int64_t i = 0; i < b.count; ++i)
    for (int64_t j = 0; j < 3; ++j)
      EXPECT_EQ(ints(b.arrays[1])[static_cast<size_t>(3 * i + j)],
                10 * want[static_cast<size_t>(i)] + j);
}

TEST(Loader, GivesTheSamplersRowsFromAnyStep) {
  const Dataset data = numbers(11);
  for (const bool threaded : {true, false}) {
    for (const bool shuffle : {true, false}) {
      for (const LastBatch last : {LastBatch::kKeep, LastBatch::kDrop, LastBatch::kWrap}) {
        for (const int64_t batch : {1, 4, 11, 30}) {
          if (last == LastBatch::kDrop && batch > 11) continue;
          const Sampler s(
              {.samples = 11, .batch_size = batch, .shuffle = shuffle, .seed = 8, .last = last});
          for (const int64_t first : {0, 5}) {
            Loader loader(data, kSpecs, s,
                          {.first_step = first, .end_step = 14, .threaded = threaded});
            for (int64_t step = first; step < 14; ++step) {
              const Batch* b = loader.next();
              ASSERT_NE(b, nullptr);
              expect_batch(*b, s, step);
            }
            EXPECT_EQ(loader.next(), nullptr);
            EXPECT_EQ(loader.next(), nullptr);
            EXPECT_EQ(loader.stats().batches, 14 - first);
          }
        }
      }
    }
  }
}

TEST(Loader, FileOrderIsViewedAndShuffledRowsAreBuffered) {
  const Dataset data = numbers(12);
  const float* x = data.array("x").data<float>();
  Loader views(data, kSpecs, Sampler({.samples = 12, .batch_size = 5, .shuffle = false}));
  EXPECT_EQ(views.buffer_bytes(), 0u);
  EXPECT_EQ(views.next()->arrays[1].data, x);
  EXPECT_EQ(views.next()->arrays[1].data, x + 15);
  EXPECT_EQ(views.next()->count, 2);
  EXPECT_EQ(views.next()->arrays[1].data, x);

  Loader copies(data, kSpecs, Sampler({.samples = 12, .batch_size = 5, .seed = 1}));
  EXPECT_EQ(copies.buffer_bytes(), 2u * 5 * (8 + 12));
  for (int i = 0; i < 6; ++i)
    for (const BatchArray& a : copies.next()->arrays)
      EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 64, 0u);

  Loader no_views(data, kSpecs, Sampler({.samples = 12, .batch_size = 6, .shuffle = false}),
                  {.views = false});
  EXPECT_EQ(no_views.buffer_bytes(), 2u * 6 * (8 + 12));
  EXPECT_NE(no_views.next()->arrays[1].data, x);
}

TEST(Loader, BatchStaysValidUntilTheNextCall) {
  const Dataset data = numbers(64);
  const Sampler s({.samples = 64, .batch_size = 4, .seed = 2});
  Loader loader(data, kSpecs, s);
  for (int64_t step = 0; step < 20; ++step) {
    const Batch* b = loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the worker is ahead by now
    expect_batch(*b, s, step);
  }
}

// numpy's own zip files leave the payloads unaligned.
TEST(Loader, GathersFromUnalignedFiles) {
  const ScratchFolder folder;
  if (!test::python_has(folder, "numpy")) GTEST_SKIP() << "no Python with numpy";
  ASSERT_TRUE(test::run_python(folder, R"(
import sys, numpy as np
x = 10. * np.arange(9)[:, None] + np.arange(3)
np.savez(sys.argv[1], x=x.astype('f4'), labels=np.arange(9))
)",
                               folder / "d.npz"));
  const Dataset data = Dataset::open(folder / "d.npz");
  EXPECT_FALSE(data.find("labels")->aligned());
  for (const bool shuffle : {true, false}) {
    const Sampler s({.samples = 9, .batch_size = 3, .shuffle = shuffle});
    Loader loader(data, kSpecs, s, {.end_step = 6});
    for (int64_t step = 0; step < 6; ++step) expect_batch(*loader.next(), s, step);
  }
}

TEST(Loader, ConvertsAndReportsValuesThatDoNotFit) {
  std::vector<std::pair<std::string, HostTensor>> arrays;
  arrays.emplace_back("y", HostTensor::ints({1, 2, 3, int64_t{1} << 40}));
  const Dataset data = Dataset::from_arrays(std::move(arrays), "d.npz");
  const ArraySpec specs[] = {{"y", DType::kI32, {-1}}};
  for (const bool threaded : {true, false}) {
    Loader loader(data, specs, Sampler({.samples = 4, .batch_size = 2, .shuffle = false}),
                  {.threaded = threaded});
    const Batch* b = loader.next();
    EXPECT_EQ(b->arrays[0].dtype, DType::kI32);
    EXPECT_EQ(ints(b->arrays[0]), (std::vector<int64_t>{1, 2}));
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(error_of([&] { loader.next(); }),
                  AllOf(HasSubstr("d.npz, array 'y', sample 3, element 0"),
                        HasSubstr("1099511627776 does not fit in i32")));
  }
}

TEST(Loader, RefusesWhatDoesNotFit) {
  const Dataset data = numbers(4);
  const ArraySpec specs[] = {{"x", DType::kI64, {-1, 3}}};
  EXPECT_THAT(error_of([&] { Loader l(data, specs, Sampler({.samples = 4})); }),
              HasSubstr("convertible to i64"));
  EXPECT_THAT(error_of([&] { Loader l(data, kSpecs, Sampler({.samples = 5})); }),
              HasSubstr("expected 5 samples"));
  EXPECT_THAT(
      error_of([&] {
        Loader l(data, kSpecs,
                 Sampler({.samples = 4, .batch_size = int64_t{1} << 40, .last = LastBatch::kWrap}));
      }),
      HasSubstr("use a smaller batch size"));
}

TEST(Loader, StopsAtAnyMoment) {
  const Dataset data = numbers(1000);
  for (int used = 0; used < 60; ++used) {
    Loader loader(data, kSpecs, Sampler({.samples = 1000, .batch_size = 100}));
    for (int i = 0; i < used % 6; ++i) ASSERT_NE(loader.next(), nullptr);
  }
}

// Row i is i; the thread that makes row 0 stands still until all others have nothing left to do.
class SlowFirstRow : public RowSource {
 public:
  void read(const RowRequest& row, std::byte* out) const override {
    if (row.sample == 0 && row.epoch == 0) {
      while (made < 3) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ++made;
    const auto v = static_cast<float>(row.sample);
    std::memcpy(out, &v, sizeof v);
  }
  bool heavy() const override { return true; }
  mutable std::atomic<int> made = 0;
};

TEST(Loader, AThreadThatStandsStillLosesNoStep) {
  Dataset data = Dataset::empty("slow");
  data.add_rows("x", DType::kF32, {8, 1}, std::make_unique<SlowFirstRow>());
  const std::vector<ArraySpec> specs = {{"x", DType::kF32, {-1, 1}}};
  const Sampler sampler({.samples = 8, .batch_size = 2, .shuffle = false});
  // Two slots: the second one is full when the ring comes round to the first, which is not.
  Loader loader(data, specs, sampler, {.end_step = 4, .workers = 2, .prefetch = 2});
  for (int64_t step = 0; step < 4; ++step) {
    const Batch* b = loader.next();
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->step, step);
    EXPECT_EQ(ints(b->arrays[0]), (std::vector<int64_t>{2 * step, 2 * step + 1}));
  }
  EXPECT_EQ(loader.next(), nullptr);
}

TEST(Loader, MeasuresStalls) {
  const Dataset data = numbers(4);
  Loader loader(data, kSpecs, Sampler({.samples = 4, .batch_size = 2}));
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    loader.next();
  }
  const LoaderStats stats = loader.stats();
  EXPECT_EQ(stats.batches, 5);
  EXPECT_GT(stats.gather_seconds, 0);
  EXPECT_LT(stats.stall_seconds, 0.1) << "batches were ready, 20 ms of compute each";
}

}  // namespace
}  // namespace ortrain::data
