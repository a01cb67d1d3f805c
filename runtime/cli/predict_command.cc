// `ortrain predict`: the model's outputs for a data set, as .npz with arrays named like the
// outputs.
#include <algorithm>
#include <cstdio>
#include <cstring>

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
  DataRun r(c, paths, Mode::kPredict);
  const int64_t samples = r.data().samples();
  std::vector<HostTensor> results;
  const std::vector<PlanTensor>& outputs = r.program().plan().outputs;
  for (const PlanTensor& t : outputs) {
    Dims dims = t.dims;
    if (samples == r.batch()) {  // one run: outputs without a batch axis are whole
      results.emplace_back(t.dtype, dims);
      continue;
    }
    if (dims.empty() || dims[0] != r.batch())
      fail(ErrorCode::kUnsupported, "output '", t.name,
           "' has no batch axis; predict cannot join its batches");
    dims[0] = samples;
    results.emplace_back(t.dtype, dims);
  }
  int64_t done = 0;
  r.run([&](const data::Batch& b, Program& p) {
    for (size_t i = 0; i < results.size(); ++i) {
      const HostTensor t = p.executor().output(static_cast<int>(i));
      if (t.bytes() == 0) continue;
      auto* to = static_cast<std::byte*>(results[i].mutable_raw());
      std::memcpy(to + static_cast<size_t>(done) * (t.bytes() / static_cast<size_t>(b.count)),
                  t.raw(), t.bytes());
    }
    done += b.count;
  });
  std::vector<data::NpzEntry> entries;
  for (size_t i = 0; i < results.size(); ++i) entries.push_back({outputs[i].name, results[i]});
  data::write_npz(c.config.text("out"), entries);
  std::printf("%s samples, %zu outputs: %s\n", count_text(done).c_str(), results.size(),
              c.config.text("out").c_str());
  return 0;
}

}  // namespace ortrain::cli
