// `ortrain predict`: the model's outputs for a data set, as .npz with arrays named like the
// outputs.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/data/loader.h"
#include "runtime/data/npz.h"

namespace ortrain::cli {

int run_predict(Context& c) {
  const std::string& paths =
      c.config.has("data") ? c.config.text("data") : c.config.text("eval-data");
  if (paths.empty()) explain_missing_data(c, "predict");
  if (!c.config.has("out"))
    fail(ErrorCode::kUsage, "predict writes a file: add --out predictions.npz");
  ModelData d = open_data(c, paths, Labels::kNone);
  const int64_t batch = std::min(batch_size(c, d.notes), d.samples);
  const data::Sampler sampler({.samples = d.samples, .batch_size = batch, .shuffle = false});
  ParamStore store;
  Arena arena;
  std::map<int64_t, Runner> runners;  // full batches, and the short last one
  for (int64_t size : {batch, d.samples % batch})
    if (size > 0 && !runners.contains(size))
      runners.emplace(size, make_runner(c, make_spec(c, &d, Mode::kPredict, size), store, arena));
  arena.allocate();
  for (auto& [size, r] : runners) start(r, arena);

  std::vector<HostTensor> results;
  const std::vector<PlanTensor>& outputs = runners.at(batch).plan.outputs;
  for (const PlanTensor& t : outputs) {
    Dims dims = t.dims;
    if (dims.empty() || dims[0] != batch)
      fail(ErrorCode::kUnsupported, "output '", t.name,
           "' has no batch axis; predict cannot join its batches");
    dims[0] = d.samples;
    results.emplace_back(t.dtype, dims);
  }
  data::Loader loader(d.set, d.arrays, sampler, {.end_step = sampler.steps_per_epoch()});
  int64_t done = 0;
  while (const data::Batch* b = loader.next()) {
    Runner& r = runners.at(b->count);
    r.executor->run(input_pointers(r.plan, *b));
    for (size_t i = 0; i < results.size(); ++i) {
      const HostTensor t = r.executor->output(static_cast<int>(i));
      const size_t row = t.bytes() / static_cast<size_t>(b->count);
      std::memcpy(
          static_cast<std::byte*>(results[i].mutable_raw()) + static_cast<size_t>(done) * row,
          t.raw(), t.bytes());
    }
    done += b->count;
  }
  std::vector<data::NpzEntry> entries;
  for (size_t i = 0; i < results.size(); ++i) entries.push_back({outputs[i].name, results[i]});
  data::write_npz(c.config.text("out"), entries);
  std::printf("%s samples, %zu outputs: %s\n", count_text(done).c_str(), results.size(),
              c.config.text("out").c_str());
  return 0;
}

}  // namespace ortrain::cli
