// Two slots in turn: the worker fills slot step % 2 once the consumer has let go of it.
#include "runtime/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "graph/error.h"
#include "runtime/data/convert.h"

namespace ortrain::data {
namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One array of the data set and the dtype it is wanted in.
struct Source {
  const StoredArray* stored = nullptr;
  DType dtype = DType::kUndefined;
  int64_t row_elements = 0;
  size_t row_bytes = 0;  // in the file
  bool converted = false;
  bool viewable = false;  // the file's bytes can be handed out
  bool shared = false;    // handed out whole with every batch; `whole` holds it
  HostTensor whole;
};

// Brings the pages of a view into memory here, so that the consumer does not wait for the disk.
void touch_pages(const std::byte* data, size_t bytes) {
  constexpr size_t kPage = 4096;
  for (size_t i = 0; i < bytes; i += kPage) {
    const volatile std::byte* p = data + i;
    static_cast<void>(*p);
  }
}
}  // namespace

struct Loader::Impl {
  struct Slot {
    Batch batch;
    std::vector<HostTensor> buffers;  // per source; empty where the rows are always views
    bool full = false;                // guarded by mutex
    std::exception_ptr error;         // guarded by mutex; set with full
  };

  Impl(const Dataset& data, std::span<const ArraySpec> specs, const Sampler& sampler_,
       const LoaderOptions& options_)
      : where(data.where()), sampler(sampler_), options(options_), next_step(options_.first_step) {
    const int64_t samples = sampler.options().samples;
    for (const ArraySpec& spec : specs) {
      const StoredArray& stored = data.stored(spec.name);
      const Conversion kind = conversion(stored.dtype, spec.dtype);
      const bool shared = data.shared(spec.name);
      if (kind == Conversion::kRefused ||
          (!shared && (stored.dims.empty() || stored.dims[0] < samples)))
        fail(ErrorCode::kData, where, ", array '", spec.name, "': expected ", samples,
             " samples convertible to ", name_of(spec.dtype), ", got ",
             describe(stored.dtype, stored.dims));
      Source s;
      s.stored = &stored;
      s.dtype = spec.dtype;
      if (shared) {
        share(s, stored);
        sources.push_back(std::move(s));
        continue;
      }
      s.row_elements = stored.count / stored.dims[0];
      s.row_bytes = static_cast<size_t>(s.row_elements) * size_of(stored.dtype);
      s.converted = kind != Conversion::kNone;
      s.viewable = options.views && !s.converted && stored.aligned();
      sources.push_back(std::move(s));
    }
    make_slots();
  }

  void share(Source& s, const StoredArray& stored) {
    s.shared = true;
    if (stored.dtype == s.dtype) {
      s.whole = stored.tensor();
      return;
    }
    s.whole = allocate(s.dtype, stored.dims, cat("'", stored.name, "'"));
    auto* out = static_cast<std::byte*>(s.whole.mutable_raw());
    if (const auto bad = convert(stored.dtype, stored.data, s.dtype, out, stored.count))
      fail(ErrorCode::kData, where, ", array '", stored.name, "', element ", *bad, ": value ",
           integer_at(stored.dtype, stored.data, *bad), " does not fit in ", name_of(s.dtype));
  }

  void make_slots() {
    // A short batch never has more rows than the data, whatever the batch size asked for.
    const SamplerOptions& o = sampler.options();
    const int64_t rows =
        o.last == LastBatch::kWrap ? o.batch_size : std::min(o.batch_size, o.samples);
    for (Slot& slot : slots) {
      for (const Source& s : sources) {
        BatchArray array;
        array.name = s.stored->name;
        array.dtype = s.dtype;
        array.dims = s.stored->dims;
        HostTensor buffer;
        if (s.shared) {
          array.data = s.whole.raw();
        } else if (!(s.viewable && sampler.always_contiguous())) {
          array.dims[0] = rows;
          buffer = allocate(s.dtype, array.dims, cat("batches of '", array.name, "'"),
                            "; use a smaller batch size");
          buffer_bytes += buffer.bytes();
        }
        slot.buffers.push_back(std::move(buffer));
        slot.batch.arrays.push_back(std::move(array));
      }
      slot.batch.sample.reserve(static_cast<size_t>(rows));
    }
  }

  void start() {
    if (options.threaded) worker = std::thread([this] { work(); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (worker.joinable()) worker.join();
  }

  void copy_rows(const Source& s, const std::vector<int64_t>& sample, HostTensor& buffer) {
    auto* out = static_cast<std::byte*>(buffer.mutable_raw());
    const size_t out_row = static_cast<size_t>(s.row_elements) * size_of(s.dtype);
    for (const int64_t index : sample) {
      const std::byte* in = s.stored->data + static_cast<size_t>(index) * s.row_bytes;
      if (!s.converted) {
        if (s.row_bytes) std::memcpy(out, in, s.row_bytes);
      } else if (const auto bad = convert(s.stored->dtype, in, s.dtype, out, s.row_elements)) {
        fail(ErrorCode::kData, where, ", array '", s.stored->name, "', sample ", index,
             ", element ", *bad, ": value ", integer_at(s.stored->dtype, in, *bad),
             " does not fit in ", name_of(s.dtype));
      }
      out += out_row;
    }
  }

  void gather(Slot& slot, int64_t step) {
    const auto start = Clock::now();
    Batch& b = slot.batch;
    b.step = step;
    b.position = sampler.position(step);
    sampler.batch_indices(step, b.sample);
    b.count = static_cast<int64_t>(b.sample.size());
    b.global_count = sampler.global_count(step);
    const std::optional<int64_t> first = sampler.contiguous_start(step);
    for (size_t i = 0; i < sources.size(); ++i) {
      const Source& s = sources[i];
      if (s.shared) continue;
      b.arrays[i].dims[0] = b.count;
      if (s.viewable && first) {
        const std::byte* rows = s.stored->data + static_cast<size_t>(*first) * s.row_bytes;
        touch_pages(rows, static_cast<size_t>(b.count) * s.row_bytes);
        b.arrays[i].data = rows;
      } else {
        copy_rows(s, b.sample, slot.buffers[i]);
        b.arrays[i].data = slot.buffers[i].raw();
      }
    }
    const std::lock_guard lock(mutex);
    stats.gather_seconds += seconds_since(start);
  }

  bool at_end(int64_t step) const { return options.end_step >= 0 && step >= options.end_step; }

  void work() {
    for (int64_t step = options.first_step; !at_end(step); ++step) {
      Slot& slot = slots[step % 2];
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || !slot.full; });
        if (stopping) return;
      }
      std::exception_ptr error;
      try {
        gather(slot, step);
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex);
        slot.full = true;
        slot.error = error;
      }
      changed.notify_all();
      if (error) return;
    }
  }

  const Batch* next() {
    if (at_end(next_step)) {
      release();
      return nullptr;
    }
    Slot& slot = slots[next_step % 2];
    if (!options.threaded) {
      const auto start = Clock::now();
      gather(slot, next_step);
      const std::lock_guard lock(mutex);
      stats.stall_seconds += seconds_since(start);
    } else {
      release();
      std::unique_lock lock(mutex);
      if (!slot.full) {
        const auto start = Clock::now();
        changed.wait(lock, [&] { return slot.full; });
        stats.stall_seconds += seconds_since(start);
      }
      if (slot.error) std::rethrow_exception(slot.error);
      held = &slot;
    }
    ++next_step;
    const std::lock_guard lock(mutex);
    ++stats.batches;
    return &slot.batch;
  }

  void release() {
    if (!held) return;
    {
      const std::lock_guard lock(mutex);
      held->full = false;
    }
    held = nullptr;
    changed.notify_all();
  }

  const std::string where;
  Sampler sampler;  // used by the worker only (by next() without one)
  const LoaderOptions options;
  std::vector<Source> sources;
  Slot slots[2];
  size_t buffer_bytes = 0;
  int64_t next_step;
  Slot* held = nullptr;  // the consumer's batch
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  LoaderStats stats;
  std::thread worker;
};

Loader::Loader(const Dataset& data, std::span<const ArraySpec> arrays, const Sampler& sampler,
               const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(data, arrays, sampler, options)) {
  impl_->start();
}

Loader::~Loader() {
  if (impl_) impl_->stop();
}

const Batch* Loader::next() { return impl_->next(); }

LoaderStats Loader::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

size_t Loader::buffer_bytes() const { return impl_->buffer_bytes; }

}  // namespace ortrain::data
