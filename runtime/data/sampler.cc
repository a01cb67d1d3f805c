// Step arithmetic and the epoch permutation; the algorithm is specified in the header and checked
// against an independent Python version (tests/runtime/data/sampler_reference.py).
#include "runtime/data/sampler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/error.h"

namespace ortrain::data {
namespace {
uint64_t mix(uint64_t z) {  // SplitMix64's finaliser (Steele, Lea, Flood 2014)
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Stream {
 public:
  Stream(uint64_t seed, int64_t epoch) : state_(mix(mix(seed) + static_cast<uint64_t>(epoch))) {}
  // Uniform in [0, bound), without bias: Lemire, "Fast random integer generation in an interval".
  uint64_t below(uint64_t bound) {
    unsigned __int128 m = static_cast<unsigned __int128>(next()) * bound;
    if (static_cast<uint64_t>(m) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(m) < threshold)
        m = static_cast<unsigned __int128>(next()) * bound;
    }
    return static_cast<uint64_t>(m >> 64);
  }

 private:
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  uint64_t state_;
};

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
}  // namespace

namespace {
void make_order(std::vector<uint32_t>& order, int64_t samples, uint64_t seed, int64_t epoch) {
  ORTRAIN_CHECK(samples >= 0 && samples <= std::numeric_limits<uint32_t>::max(), "sample count");
  order.resize(static_cast<size_t>(samples));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  Stream stream(seed, epoch);
  for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[stream.below(i + 1)]);
}
}  // namespace

std::vector<uint32_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch) {
  std::vector<uint32_t> order;
  make_order(order, samples, seed, epoch);
  return order;
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  const auto& o = options_;
  if (o.samples < 1) fail(ErrorCode::kData, "there are no samples to draw batches from");
  if (o.batch_size < 1 || o.batch_size > kLimit)
    fail(ErrorCode::kUsage, "batch size ", o.batch_size, "; expected 1 to ", kLimit);
  if (o.world < 1 || o.world > 1 << 20 || o.rank < 0 || o.rank >= o.world)
    fail(ErrorCode::kUsage, "rank ", o.rank, " of ", o.world, " ranks; expected 0 <= rank < ranks");
  if (o.shuffle && o.samples > std::numeric_limits<uint32_t>::max())
    fail(ErrorCode::kUnsupported, "shuffling ", o.samples, " samples; expected at most ",
         std::numeric_limits<uint32_t>::max(), "; train in file order (--shuffle none)");
  if (o.last == LastBatch::kDrop && o.samples < global_batch())
    fail(ErrorCode::kUsage, "a batch of ", global_batch(), " from ", o.samples,
         " samples leaves no full batch, and short ones are dropped; expected a batch size of at "
         "most ",
         o.samples / o.world);
}

int64_t Sampler::steps_for_epochs(int64_t epochs) const {
  const int64_t n = options_.samples, g = global_batch();
  __int128 steps = 0;
  switch (options_.last) {
    case LastBatch::kKeep: steps = static_cast<__int128>(epochs) * ceil_div(n, g); break;
    case LastBatch::kDrop: steps = static_cast<__int128>(epochs) * (n / g); break;
    case LastBatch::kWrap: steps = (static_cast<__int128>(epochs) * n + g - 1) / g; break;
  }
  constexpr int64_t kMost = int64_t{1} << 62;
  if (epochs < 0 || steps > kMost) fail(ErrorCode::kUsage, epochs, " epochs: out of range");
  return static_cast<int64_t>(steps);
}

Sampler::Slice Sampler::global_slice(int64_t step) const {
  ORTRAIN_CHECK(step >= 0, cat("step ", step));
  const int64_t n = options_.samples, g = global_batch();
  if (options_.last == LastBatch::kWrap) {
    const __int128 at = static_cast<__int128>(step) * g;
    return {static_cast<int64_t>(at / n), static_cast<int64_t>(at % n), g};
  }
  const int64_t per_epoch = steps_per_epoch();
  const int64_t begin = step % per_epoch * g;
  return {step / per_epoch, begin, std::min(g, n - begin)};
}

Sampler::Slice Sampler::rank_slice(int64_t step) const {
  const Slice all = global_slice(step);
  const auto cut = [&](int64_t r) {
    return static_cast<int64_t>(static_cast<__int128>(all.count) * r / options_.world);
  };
  const int64_t begin = cut(options_.rank), end = cut(options_.rank + 1);
  const int64_t at = all.begin + begin, n = options_.samples;
  return {all.epoch + at / n, at % n, end - begin};
}

SamplePosition Sampler::position(int64_t step) const {
  const Slice s = global_slice(step);
  if (options_.last != LastBatch::kWrap) return {s.epoch, step % steps_per_epoch()};
  return {s.epoch, step - steps_for_epochs(s.epoch)};
}

int64_t Sampler::step_of(const SamplePosition& position) const {
  return steps_for_epochs(position.epoch) + position.batch;
}

int64_t Sampler::global_count(int64_t step) const { return global_slice(step).count; }
int64_t Sampler::count(int64_t step) const { return rank_slice(step).count; }

const std::vector<uint32_t>& Sampler::order(int64_t epoch) {
  if (order_epoch_ != epoch) {
    make_order(order_, options_.samples, options_.seed, epoch);  // in the memory it has
    order_epoch_ = epoch;
  }
  return order_;
}

void Sampler::batch_indices(int64_t step, std::vector<int64_t>& out, std::vector<int64_t>* epochs) {
  const Slice s = rank_slice(step);
  out.resize(static_cast<size_t>(s.count));
  int64_t epoch = s.epoch, at = s.begin;
  if (epochs) epochs->clear();
  for (int64_t& index : out) {
    if (at == options_.samples) {
      ++epoch;
      at = 0;
    }
    index = options_.shuffle ? order(epoch)[static_cast<size_t>(at)] : at;
    if (epochs) epochs->push_back(epoch);
    ++at;
  }
}

std::optional<int64_t> Sampler::contiguous_start(int64_t step) const {
  if (options_.shuffle) return std::nullopt;
  const Slice s = rank_slice(step);
  if (s.count > options_.samples - s.begin) return std::nullopt;
  return s.begin;
}

bool Sampler::always_contiguous() const {
  return !options_.shuffle &&
         (options_.last != LastBatch::kWrap || options_.samples % global_batch() == 0);
}

}  // namespace ortrain::data
