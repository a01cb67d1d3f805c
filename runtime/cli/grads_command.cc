// `ortrain grads`: loss and gradients of the first batch, for comparison with another framework.
//
// Writes an .npz with "loss" and one array per trainable parameter, under its name and in the
// file's layout, in the precision computed in.
#include <cstdio>

#include "graph/error.h"
#include "runtime/cli/setup.h"
#include "runtime/data/loader.h"
#include "runtime/data/npz.h"

namespace ortrain::cli {

int run_grads(Context& c) {
  if (!c.config.has("data")) explain_missing_data(c, "grads");
  if (!c.config.has("out")) fail(ErrorCode::kUsage, "grads writes a file: add --out grads.npz");
  DataRun r(c, c.config.text("data"), Mode::kGrads);
  const data::Sampler sampler({.samples = r.data().samples(),
                               .batch_size = r.batch(),
                               .shuffle = c.config.text("shuffle") != "none",
                               .seed = static_cast<uint64_t>(c.config.integer("seed"))});
  data::Loader loader(r.data(), r.program().arrays(), sampler, {.threaded = false});
  r.run_one(*loader.next());
  const std::vector<PlanTensor>& outputs = r.program().plan().outputs;
  std::vector<HostTensor> kept;
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = outputs[i].name;
    names.push_back(name.starts_with("grad/") ? name.substr(5) : name);
    kept.push_back(r.program().executor().output(static_cast<int>(i)));
  }
  std::vector<data::NpzEntry> entries;
  for (size_t i = 0; i < kept.size(); ++i) entries.push_back({names[i], kept[i]});
  data::write_npz(c.config.text("out"), entries);
  std::printf("loss %.9g, %zu gradients of %lld samples: %s\n", kept[0].as_double(0),
              kept.size() - 1, static_cast<long long>(r.batch()), c.config.text("out").c_str());
  return 0;
}

}  // namespace ortrain::cli
