// A ring of slots: step k goes into slot k % prefetch once the consumer has let go of it. One
// worker opens a slot (which samples it wants), then all workers take pieces of its rows; whoever
// finishes the last piece hands it over. Steps are opened in order, so the earliest batch is
// finished first.
#include "runtime/data/loader.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

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
#include "runtime/data/row_source.h"

namespace ortrain::data {
namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double thread_cpu_seconds() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
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
  enum class State : uint8_t { kFree, kOpening, kOpen, kFull };
  struct Slot {
    Batch batch;
    std::vector<int64_t> epochs;      // of the rows
    std::vector<HostTensor> buffers;  // per source; empty where the rows are always views
    // Guarded by mutex:
    State state = State::kFree;
    int64_t taken = 0, done = 0;  // rows
    std::exception_ptr error;     // of the first row that has one
    int64_t error_row = 0;
  };

  Impl(const Dataset& data, std::span<const ArraySpec> specs, const Sampler& sampler_,
       const LoaderOptions& options_)
      : where(data.where()),
        data(data),
        sampler(sampler_),
        options(options_),
        slots(static_cast<size_t>(std::max(2, options_.prefetch))),
        next_step(options_.first_step),
        open_step(options_.first_step) {
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
      made |= stored.rows != nullptr;
      heavy |= stored.rows != nullptr && stored.rows->heavy();
      sources.push_back(std::move(s));
    }
    // Where a sample may have to be replaced, every array must be able to follow.
    if (made)
      for (Source& s : sources) s.viewable = false;
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
    if (!options.threaded) return;
    for (int i = 0; i < std::max(1, options.workers); ++i) workers.emplace_back([this] { work(); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& w : workers) w.join();
  }

  [[noreturn]] void does_not_fit(const Source& s, const std::byte* in, int64_t index, int64_t bad) {
    fail(ErrorCode::kData, where, ", array '", s.stored->name, "', sample ", index, ", element ",
         bad, ": value ", integer_at(s.stored->dtype, in, bad), " does not fit in ",
         name_of(s.dtype));
  }

  // Sample `index` of one array into its row.
  void copy_row(const Source& s, int64_t index, int64_t epoch, std::byte* out) {
    const std::byte* in = nullptr;
    thread_local std::vector<std::byte> scratch;
    if (s.stored->rows) {
      if (!s.converted) return s.stored->rows->read({index, epoch}, out);
      scratch.resize(s.row_bytes);
      s.stored->rows->read({index, epoch}, scratch.data());
      in = scratch.data();
    } else {
      in = s.stored->data + static_cast<size_t>(index) * s.row_bytes;
      if (!s.converted) {
        if (s.row_bytes) std::memcpy(out, in, s.row_bytes);
        return;
      }
    }
    if (const auto bad = convert(s.stored->dtype, in, s.dtype, out, s.row_elements))
      does_not_fit(s, in, index, *bad);
  }

  // Which samples a slot is made of. One thread at a time.
  void open(Slot& slot, int64_t step) {
    Batch& b = slot.batch;
    b.step = step;
    b.position = sampler.position(step);
    sampler.batch_indices(step, b.sample, &slot.epochs);
    b.count = static_cast<int64_t>(b.sample.size());
    b.global_count = sampler.global_count(step);
    slot.taken = slot.done = 0;
    const std::optional<int64_t> first = sampler.contiguous_start(step);
    for (size_t i = 0; i < sources.size(); ++i) {
      const Source& s = sources[i];
      if (s.shared) continue;
      b.arrays[i].dims[0] = b.count;
      const bool view = s.viewable && first;
      b.arrays[i].data =
          view ? s.stored->data + static_cast<size_t>(*first) * s.row_bytes : slot.buffers[i].raw();
    }
  }

  void fill(Slot& slot, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) fill_row(slot, r);
    const std::optional<int64_t> first = sampler.contiguous_start(slot.batch.step);
    for (size_t i = 0; first && i < sources.size(); ++i)
      if (const Source& s = sources[i]; !s.shared && s.viewable)
        touch_pages(s.stored->data + static_cast<size_t>(*first + begin) * s.row_bytes,
                    static_cast<size_t>(end - begin) * s.row_bytes);
  }

  void fill_row(Slot& slot, int64_t r) {
    const bool viewed = sampler.contiguous_start(slot.batch.step).has_value();
    int64_t& index = slot.batch.sample[static_cast<size_t>(r)];
    const int64_t epoch = slot.epochs[static_cast<size_t>(r)], samples = sampler.options().samples;
    for (int64_t tries = 1;; ++tries) {
      const Source* reading = nullptr;
      try {
        for (size_t i = 0; i < sources.size(); ++i) {
          const Source& s = sources[i];
          if (s.shared || (s.viewable && viewed)) continue;
          reading = s.stored->rows ? &s : nullptr;
          const size_t row = static_cast<size_t>(s.row_elements) * size_of(s.dtype);
          copy_row(s, index, epoch,
                   static_cast<std::byte*>(slot.buffers[i].mutable_raw()) +
                       static_cast<size_t>(r) * row);
        }
        return;
      } catch (const Error& e) {
        if (!reading || data.strict) throw;
        data.skips().add(e.what());
        if (tries == samples)
          fail(ErrorCode::kData, where, ": not one sample can be read; ", e.what());
        index = index + 1 == samples ? 0 : index + 1;
      }
    }
  }

  bool at_end(int64_t step) const { return options.end_step >= 0 && step >= options.end_step; }
  Slot& slot_of(int64_t step) { return slots[static_cast<size_t>(step) % slots.size()]; }

  // Rows of one piece: one where a row is work, else as many as keep all threads busy.
  int64_t piece(const Slot& slot) const {
    const int64_t workers = std::max(1, options.workers);
    return heavy ? 1 : std::max<int64_t>(1, (slot.batch.count + workers - 1) / workers);
  }

  void work() {
    pthread_setname_np(pthread_self(), "ortrain-load");
    if (!options.cpus.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (const int cpu : options.cpus) CPU_SET(static_cast<size_t>(cpu), &set);
      sched_setaffinity(0, sizeof set, &set);  // where that is refused, the thread runs anywhere
    }
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] {
        if (stopping || failed || at_end(open_step)) return true;
        // One round later the slot may still be open for the step before, where a thread stands
        // still in a row of it.
        const Slot& s = slot_of(open_step);
        return s.state == State::kFree || (s.state == State::kOpen && s.batch.step == open_step);
      });
      if (stopping || failed || at_end(open_step)) return;
      Slot& slot = slot_of(open_step);
      if (slot.state == State::kFree) {
        slot.state = State::kOpening;
        const int64_t step = open_step;
        lock.unlock();
        std::exception_ptr error;
        try {
          open(slot, step);
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        slot.error = error;
        failed |= error != nullptr;
        if (error || slot.batch.count == 0) {  // more ranks than samples
          slot.state = State::kFull;
          ++open_step;
        } else {
          slot.state = State::kOpen;
        }
        changed.notify_all();
        continue;
      }
      const int64_t begin = slot.taken;
      const int64_t end = slot.taken = std::min(slot.batch.count, begin + piece(slot));
      if (end == slot.batch.count) ++open_step;
      lock.unlock();
      std::exception_ptr error;
      const auto start = Clock::now();
      const double cpu = thread_cpu_seconds();
      try {
        fill(slot, begin, end);
      } catch (...) {
        error = std::current_exception();
      }
      const double used = thread_cpu_seconds() - cpu;
      lock.lock();
      stats.gather_seconds += seconds_since(start);
      stats.cpu_seconds += used;
      if (error && (!slot.error || begin < slot.error_row)) {
        slot.error = error;
        slot.error_row = begin;
      }
      slot.done += end - begin;
      if (slot.done < slot.batch.count) continue;
      slot.state = State::kFull;
      failed |= slot.error != nullptr;
      changed.notify_all();
    }
  }

  const Batch* next() {
    if (at_end(next_step)) {
      release();
      return nullptr;
    }
    Slot& slot = slot_of(next_step);
    if (!options.threaded) {
      const auto start = Clock::now();
      open(slot, next_step);
      fill(slot, 0, slot.batch.count);
      const std::lock_guard lock(mutex);
      stats.stall_seconds += seconds_since(start);
      stats.gather_seconds += seconds_since(start);
    } else {
      release();
      std::unique_lock lock(mutex);
      if (slot.state != State::kFull) {
        const auto start = Clock::now();
        changed.wait(lock, [&] { return slot.state == State::kFull; });
        stats.stall_seconds += seconds_since(start);
      }
      if (slot.error) std::rethrow_exception(slot.error);
      ORTRAIN_CHECK(slot.batch.step == next_step, "batches come in order");
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
      held->state = State::kFree;
    }
    held = nullptr;
    changed.notify_all();
  }

  const std::string where;
  const Dataset& data;
  Sampler sampler;  // its cache is used by whoever opens a slot
  const LoaderOptions options;
  std::vector<Source> sources;
  bool made = false, heavy = false;  // rows of some array are made; are work
  std::vector<Slot> slots;
  size_t buffer_bytes = 0;
  int64_t next_step;
  int64_t open_step;     // guarded by mutex: the step whose rows are being given out
  Slot* held = nullptr;  // the consumer's batch
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false, failed = false;
  LoaderStats stats;
  std::vector<std::thread> workers;
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
