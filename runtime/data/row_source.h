// Samples that are made when asked for: decoded pictures, windows of tokens, prepared rows.
//
// A RowSource stands behind one array of a data set (StoredArray::rows). Promises: read() is a pure
// function of (files, sample, epoch), so any number of threads in any order gives the same bytes;
// it may be called from several threads at once. Throws Error(kData, kIo) that names file and row:
// the loader then takes another sample in its place, or stops under --strict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace ortrain::data {

struct StoredArray;

struct RowRequest {
  int64_t sample = 0;
  int64_t epoch = 0;
};

class RowSource {
 public:
  RowSource() = default;
  virtual ~RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;
  // Writes one row: dims[1..] elements of the array's dtype; `out` need not be aligned.
  virtual void read(const RowRequest& row, std::byte* out) const = 0;
  // Positions of the row that hold values, where rows are padded sequences; -1: all.
  virtual int64_t length(int64_t /*sample*/) const { return -1; }
  // Is one row work enough to be a thread's next piece?
  virtual bool heavy() const { return false; }
  // Arrays that hold all values that rows can have; empty: rows must be read to know.
  virtual std::vector<const StoredArray*> parts() const { return {}; }
};

// Random numbers of one sample in one epoch: the same on every machine, whatever thread asks.
class SampleRandom {
 public:
  SampleRandom(uint64_t seed, int64_t epoch, int64_t sample)
      : state_(mix(mix(mix(seed) + static_cast<uint64_t>(epoch)) + static_cast<uint64_t>(sample))) {
  }
  // [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  // [0, n), n >= 1.
  int64_t below(int64_t n) {
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n)) >> 64);
  }

 private:
  static uint64_t mix(uint64_t z) {  // SplitMix64's finaliser, as in sampler.cc
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  uint64_t state_;
};

// Samples that were left out, each with its reason, once. Threads may add.
class Skips {
 public:
  void add(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (seen_.insert(reason).second) list_.push_back(reason);
  }
  int64_t count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(list_.size());
  }
  std::vector<std::string> list() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> seen_;
  std::vector<std::string> list_;
};

}  // namespace ortrain::data
