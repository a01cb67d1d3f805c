// Large buffers: aligned, zero, resident after prefault, refused beyond the machine. And threads.
#include "runtime/buffer.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <vector>

#include "graph/error.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

TEST(Buffer, AlignedZeroAndResident) {
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{2} << 20, (size_t{9} << 20) + 7}) {
    Buffer b(bytes);
    EXPECT_EQ(b.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % (bytes >= (2u << 20) ? 2u << 20 : 64u), 0u);
    b.prefault();
    std::vector<unsigned char> resident((bytes + 4095) / 4096);
    ASSERT_EQ(mincore(b.data(), bytes, resident.data()), 0);
    for (unsigned char page : resident) EXPECT_EQ(page & 1, 1);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(b.data()[i], std::byte{0});
    b.data()[bytes - 1] = std::byte{7};
    Buffer moved = std::move(b);
    EXPECT_EQ(moved.data()[bytes - 1], std::byte{7});
    EXPECT_EQ(b.data(), nullptr);
  }
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

TEST(Buffer, MoreThanTheMachineHasIsAnError) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 50}) {
    try {
      Buffer b(bytes);
      FAIL() << bytes;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kMemory);
    }
  }
}

TEST(Threads, FollowTheAffinityMask) {
  EXPECT_GE(available_threads(), 1);
  EXPECT_EQ(set_threads(3), 3);
  EXPECT_EQ(omp_get_max_threads(), 3);
  EXPECT_EQ(set_threads(0), available_threads());
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &all)) {
      CPU_SET(cpu, &one);
      break;
    }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_threads(), 1);
  sched_setaffinity(0, sizeof all, &all);
}

}  // namespace
}  // namespace ortrain
