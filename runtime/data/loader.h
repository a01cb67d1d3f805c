// Batches for the trainer: threads of their own gather the rows of the next batches while the
// current one is computed on.
//
// Promises: batch k is a function of (data, sampler, k) alone, whatever the number of threads, so a
// loader started at step k gives what a straight run gives from there. Memory is `prefetch` buffers
// per array (64-byte aligned, allocated in the constructor), or none for arrays whose rows can be
// handed out as views of the file. Threads sleep whenever all buffers are full. A sample that
// cannot be read is left out: the next one of the data set stands in for it, and the data set's
// skips() tell; under its `strict` the error surfaces in next(), as every other error does.
// Destruction stops the threads at the end of the rows they are gathering.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "graph/tensor.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"

namespace ortrain::data {

struct BatchArray {
  std::string_view name;
  DType dtype = DType::kUndefined;
  Dims dims;                   // [count, ...]
  const void* data = nullptr;  // aligned to 64 in a buffer, to the dtype in a view of the file
  HostTensor tensor() const { return HostTensor::view(dtype, dims, data); }
};

struct Batch {
  int64_t step = 0;
  SamplePosition position;
  int64_t count = 0;               // samples on this rank
  int64_t global_count = 0;        // samples over all ranks
  std::vector<int64_t> sample;     // global sample numbers, `count` of them; stand-ins named
  std::vector<BatchArray> arrays;  // in the order of the specs
};

struct LoaderOptions {
  int64_t first_step = 0;
  int64_t end_step = -1;       // exclusive; -1: endless
  bool threaded = true;        // false: next() gathers itself
  int workers = 1;             // threads
  int prefetch = 2;            // batches in memory, with the one handed out
  std::vector<int> cpus = {};  // what the threads are bound to; empty: where the process may run
  bool views = true;           // hand out rows of the file where they are consecutive and fit
};

struct LoaderStats {
  int64_t batches = 0;        // handed out
  double stall_seconds = 0;   // the consumer waited in next()
  double gather_seconds = 0;  // of all threads, waiting for files included
  double cpu_seconds = 0;     // of all threads
};

class Loader {
 public:
  // `data` must outlive the loader and fit the specs (Dataset::check_fits). Errors: kData where it
  // does not, kMemory where the buffers cannot be had.
  Loader(const Dataset& data, std::span<const ArraySpec> arrays, const Sampler& sampler,
         const LoaderOptions& options = {});
  ~Loader();

  // The next batch, valid until the following call; nullptr at the end. Throws what went wrong
  // while gathering (kData: a value that does not fit the input's dtype), again on every call.
  const Batch* next();

  LoaderStats stats() const;
  size_t buffer_bytes() const;  // allocated for batches, exact

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain::data
