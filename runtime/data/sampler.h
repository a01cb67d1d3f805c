// Which samples make up the batch of a step: a pure function of (seed, epoch, rank, world).
//
// Promises: no state beyond the step number, so a run resumes by naming its step; the order is
// fully specified here and equal on every machine and compiler. An epoch visits each sample exactly
// once (except with `drop`, which leaves the rest of the epoch out). The order of an epoch: key =
// mix(mix(seed) + epoch); r_k = mix(key + (k+1) * 0x9e3779b97f4a7c15) with mix = the SplitMix64
// finaliser; Fisher-Yates from the last element down to the second, j = below(i + 1) by Lemire's
// multiply-and-reject over r_0, r_1, ...
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ortrain::data {

enum class LastBatch : uint8_t {
  kKeep,  // the epoch's last batch may be short
  kDrop,  // it is left out
  kWrap,  // batches run on into the next epoch, all have the full size
};

struct SamplerOptions {
  int64_t samples = 0;
  int64_t batch_size = 1;  // of one rank; the global batch is batch_size * world
  bool shuffle = true;     // false: file order
  uint64_t seed = 0;
  LastBatch last = LastBatch::kKeep;
  int rank = 0, world = 1;
};

struct SamplePosition {
  int64_t epoch = 0;
  int64_t batch = 0;  // within the epoch; with kWrap counted from the first batch that starts in it
  bool operator==(const SamplePosition&) const = default;
};

// The order of the samples in one epoch. samples < 2^32.
std::vector<uint32_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch);

class Sampler {
 public:
  // Errors: kUsage for sizes that make no batch.
  explicit Sampler(const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  int64_t global_batch() const { return options_.batch_size * options_.world; }
  // Steps of the first epoch (kKeep, kDrop: of every epoch).
  int64_t steps_per_epoch() const { return steps_for_epochs(1); }
  // Steps until `epochs` epochs have been visited.
  int64_t steps_for_epochs(int64_t epochs) const;

  // Steps count from 0 and never end.
  SamplePosition position(int64_t step) const;
  int64_t step_of(const SamplePosition& position) const;
  // Samples of the step's batch over all ranks / on this rank (may be 0 for a short last batch with
  // fewer samples than ranks).
  int64_t global_count(int64_t step) const;
  int64_t count(int64_t step) const;
  // This rank's samples: rank r of a global batch of g has its rows [g*r/world, g*(r+1)/world).
  // Reuses the memory of `out`; the order of the current epoch is cached, hence not const.
  // `epochs`, where given, gets the epoch that each of them belongs to.
  void batch_indices(int64_t step, std::vector<int64_t>& out,
                     std::vector<int64_t>* epochs = nullptr);
  // The first sample, where this rank's samples are consecutive in the file by construction.
  std::optional<int64_t> contiguous_start(int64_t step) const;
  // Is contiguous_start() known for every step?
  bool always_contiguous() const;

 private:
  struct Slice {
    int64_t epoch, begin, count;  // positions in the epoch; with kWrap may pass its end
  };
  Slice global_slice(int64_t step) const;
  Slice rank_slice(int64_t step) const;
  const std::vector<uint32_t>& order(int64_t epoch);

  SamplerOptions options_;
  std::vector<uint32_t> order_;
  int64_t order_epoch_ = -1;
};

}  // namespace ortrain::data
