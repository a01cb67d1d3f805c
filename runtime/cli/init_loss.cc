// `ortrain init`: what the model and the labels say about loss, head, batch and schedule.
//
// Refuses (kData) more classes than the head has where the head cannot start anew.
#include <algorithm>
#include <cmath>
#include <set>

#include "graph/error.h"
#include "graph/op_def.h"
#include "runtime/cli/init_parts.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/words.h"
#include "runtime/evaluate.h"
#include "runtime/program.h"

namespace ortrain::cli {
namespace {

constexpr int64_t kGoodBatch = 8;            // a built-in batch of at least that stays
constexpr int64_t kMostLabels = 50'000'000;  // looked at
constexpr size_t kMostDifferent = 100'000;

bool ends_in_sigmoid(const Graph& g, ValueId v) {
  while (g.value(v).producer != kNone) {
    const Node& n = g.node(g.value(v).producer);
    if (n.op->name == "Sigmoid") return true;
    if (!n.op->view || n.outputs[0] != v) return false;
    v = n.inputs[0];
  }
  return false;
}

// What the labels hold.
struct LabelLook {
  bool known = false;                           // all of them were looked at
  bool whole = true, unit = true, ones = true;  // whole numbers; within [0, 1]; only 0 and 1
  bool sums = true;                             // each row of several adds up to 1
  int64_t low = 0, high = 0;
  std::set<int64_t> different;  // whole numbers, without the ignored one
};

LabelLook look_at_labels(const data::Dataset& set, const std::string& name, int64_t ignored) {
  LabelLook look;
  const data::StoredArray& stored = set.stored(name);
  if (stored.count == 0 || stored.count > kMostLabels) return look;
  const HostTensor& t = set.array(name);
  look.known = true;
  const int64_t row = t.rank() < 2 ? 1 : t.dims().back();
  double sum = 0;
  for (int64_t i = 0; i < t.count(); ++i) {
    const double v = t.as_double(i);
    look.unit &= v >= 0 && v <= 1;
    look.ones &= v == 0 || v == 1;
    look.whole &= v == std::floor(v) && std::fabs(v) < 9e15;
    sum += v;
    if ((i + 1) % row == 0) {
      look.sums &= row > 1 && std::fabs(sum - 1) < 1e-3;
      sum = 0;
    }
    if (!look.whole || static_cast<int64_t>(v) == ignored) continue;
    if (look.different.size() < kMostDifferent) look.different.insert(static_cast<int64_t>(v));
  }
  if (!look.different.empty()) {
    look.low = *look.different.begin();
    look.high = *look.different.rbegin();
  }
  return look;
}

// The words of an integer label array; null where its classes are numbers in a file.
const std::vector<std::string>* words_of(const data::Dataset& set, const std::string& label) {
  const auto it = set.vocabularies.find(label);
  return it == set.vocabularies.end() ? nullptr : &it->second;
}

Target target_of(const Context& c, const data::Dataset& set, const std::string& kind) {
  std::vector<std::string> notes;
  StepSpec spec = spec_for_data(c.file->graph(), set, make_spec(c, Mode::kTrain),
                                batch_size(c, set.samples(), notes));
  spec.loss.kind = kind;
  return find_targets(c.file->graph(), spec).at(0);
}

// The head starts anew with `classes` outputs; false where it cannot, and `why`.
bool reset_head(RecipeWriter& r, const std::string& output, int64_t had, int64_t classes,
                std::string& why) {
  Context& c = r.context();
  r.choose(
      "reset-head", cat(output, "=", classes),
      cat("the data has ", classes, " classes, the model ", had, ": its last layer starts anew"));
  try {
    apply_model_settings(c);
    return true;
  } catch (const Error& e) {
    why = e.what();
    c.config.set("reset-head", "", "default");
    return false;
  }
}

// Class numbers that the output takes: a map where they start at 1 or have holes, another head
// where there are other classes.
void fit_classes(RecipeWriter& r, const data::Dataset& set, const Target& t,
                 const LabelLook& look) {
  Context& c = r.context();
  const std::vector<std::string>* words = words_of(set, t.label);
  const auto found = static_cast<int64_t>(look.different.size());
  int64_t classes = words ? static_cast<int64_t>(words->size()) : look.high + 1;
  if (!words && (look.low < 0 || look.high >= t.classes) &&
      found <= std::max(t.classes, int64_t{64}) && found <= 1000 &&
      c.config.is_default("reset-head")) {
    std::string map;
    int64_t next = 0;
    for (const int64_t v : look.different) map += cat(map.empty() ? "" : "/", v, ">", next++);
    if (look.low != 0 || look.high + 1 != found)  // else they are 0, 1, 2, ... already
      r.prepare(t.label, "map", map,
                cat("labels are ", look.low, " to ", look.high, ", classes count from 0"));
    classes = found;
  }
  if (!c.config.is_default("reset-head")) return;
  const bool more = classes > t.classes;
  if (!more && (!words || classes == t.classes)) return;
  if (classes < 2)
    fail(ErrorCode::kData, "'", set.where(), "' has a single class, '", words ? words->at(0) : "0",
         "'; expected a folder (or a word) for each of at least two");
  std::string why = "labels are numbers with many holes, no classes";
  const bool dense = words || classes <= 2 * found + 16;
  if (dense && reset_head(r, t.output, t.classes, classes, why)) {
    r.tell("head", cat("the data has ", classes, " classes, output '", t.output, "' ", t.classes,
                       ": the last layer starts anew (reset-head)"));
    return;
  }
  if (more)
    fail(ErrorCode::kData, "the data has ", classes, " classes, output '", t.output, "' only ",
         t.classes, ", and its last layer cannot start anew: ", why, "\nexport the model with ",
         classes, " classes, or give data with at most ", t.classes);
  r.tell("note", cat("the data has ", classes, " of the model's ", t.classes, " classes; ", why));
}

}  // namespace

std::vector<OutputLook> typed_outputs(const Context& c) {
  const CompileResult r =
      compile(c.file->graph(), make_spec(c, Mode::kPredict),
              {.evaluate = make_evaluator(), .after_pass = {}, .until = "infer"});
  std::vector<OutputLook> out;
  for (size_t i = 0; i < r.graph.outputs().size(); ++i) {
    const ValueId v = r.graph.outputs()[i];
    OutputLook o{.name = r.graph.output_names()[i], .dtype = r.graph.value(v).dtype, .dims = {}};
    for (const Dim& d : r.graph.value(v).shape) o.dims.push_back(d.is_const() ? d.value() : -1);
    o.sigmoid = ends_in_sigmoid(r.graph, v);
    out.push_back(std::move(o));
  }
  return out;
}

const OutputLook& loss_output(const Context& c, const std::vector<OutputLook>& outputs) {
  std::string all;
  for (const OutputLook& o : outputs) {
    if (c.config.has("output") ? o.name == c.config.text("output") : is_float(o.dtype)) return o;
    all += cat(all.empty() ? "" : ", ", o.name, " ", data::describe(o.dtype, o.dims));
  }
  fail(ErrorCode::kUnsupported, c.model_path, " has no ",
       c.config.has("output") ? "output '" + c.config.text("output") + "'" : "float output",
       " to train on; it has ", all);
}

void choose_model_settings(RecipeWriter& r) {
  Context& c = r.context();
  const std::optional<Dim> axis = batch_axis(c.file->graph());
  if (axis && axis->is_const() && c.config.is_default("rebatch")) {
    const int64_t fixed = axis->value();
    std::string why =
        "it is trained with; --rebatch may prove another one, in float64, which takes "
        "a while at each start";
    if (fixed < kGoodBatch) {
      r.choose("rebatch", "true", cat("the file has the batch size ", fixed, " built in"));
      try {
        apply_model_settings(c);
        why.clear();
      } catch (const Error& e) {
        c.config.set("rebatch", "false", "default");
        why = e.what();
      }
    }
    if (!why.empty()) {
      r.tell("note", cat("the batch size ", fixed, " is built into the model: ", why));
      if (fixed >= kGoodBatch)
        r.offer("rebatch", "true",
                "any batch, and evaluation; export with a free batch axis instead");
      r.choose("batch-size", cat(fixed), "built into the model");
      r.choose("last-batch", "drop", "an epoch's short last batch does not fit the model");
    }
  }
  for (const std::string& p : c.file->problems()) {
    if (!p.starts_with("--rebatch")) r.tell("note", p);
    if (p.find("--tie auto") != std::string::npos)
      r.offer("tie", "auto", "head and embedding table as one parameter, as before the export");
  }
}

void choose_loss(RecipeWriter& r, const data::Dataset& set) {
  Context& c = r.context();
  std::vector<std::string> notes;
  const auto outputs = typed_outputs(c);
  const OutputLook* out = &loss_output(c, outputs);
  StepSpec spec = make_spec(c, Mode::kTrain);
  if (c.config.is_default("loss"))
    spec = spec_for_data(c.file->graph(), set, spec, batch_size(c, set.samples(), notes));
  else
    return r.tell("loss", cat(c.config.text("loss"), ", as given (", c.config.origin("loss"), ")"));
  const std::string label = spec.loss.label;
  if (label.empty() || out->dims.empty()) {
    for (const OutputLook& o : outputs)
      if (is_float(o.dtype) && o.dims.empty()) out = &o;
    if (!out->dims.empty())
      fail(ErrorCode::kData, "'", set.where(), "' has no labels for output '", out->name, "' ",
           data::describe(out->dtype, out->dims), ": it holds ", set.summary(),
           "\npictures want a folder per class, a table a column (--label NAME), arrays one called "
           "labels");
    if (outputs.size() > 1) r.choose("output", out->name, "a single number: the loss itself");
    r.choose("loss", "graph", cat("output '", out->name, "' is the loss itself"));
    return r.tell("loss", cat("the model's own output '", out->name, "'"));
  }
  if (outputs.size() > 1)
    r.choose("output", out->name, "the first float output; the others do not train");
  if (c.config.is_default("label"))
    r.choose("label", label,
             set.keys.empty() ? "the array that is no input" : "the folders' numbers");
  const LabelLook look = look_at_labels(set, label, c.config.integer("ignore-index"));
  const data::StoredArray& y = set.stored(label);
  const bool floats = is_float(y.dtype);
  Target classes = target_of(c, set, "cross_entropy");
  const bool same = target_of(c, set, "mse").metric.kind == MetricSpec::Kind::kRegression &&
                    (floats || classes.classes < 2);
  const std::string shapes = cat("output '", out->name, "' ", data::describe(out->dtype, out->dims),
                                 ", '", label, "' ", data::describe(y.dtype, y.dims));
  std::string loss, why, metric = "mae and rmse";
  if (!floats && (classes.classes >= 2 || !same)) {
    loss = "cross_entropy";
    why = "class numbers, one score per class";
    metric = "accuracy, f1, perplexity";
    if (classes.classes >= 2 && look.known) fit_classes(r, set, classes, look);
    if (y.dims.size() == 1)
      r.offer("label-smoothing", "0.1", "less sure of itself, often better with many classes");
  } else if (floats && look.sums && look.unit && y.dims.size() >= 2 && same && !out->sigmoid) {
    loss = "cross_entropy";
    why = "each row of labels adds up to 1: probabilities of classes";
    metric = "accuracy, f1, perplexity";
  } else if (look.known && same && (look.ones || (look.unit && out->sigmoid))) {
    loss = out->sigmoid ? "bce" : "bce_with_logits";
    why = cat(look.ones ? "labels are 0 or 1" : "labels lie in [0, 1]",
              out->sigmoid ? ", the output ends in Sigmoid" : ", one score for each");
    metric = "accuracy, f1, auc";
  } else {
    loss = "mse";
    why = "numbers to come close to";
    r.offer("loss", "huber", "counts outliers less");
  }
  r.choose("loss", loss, cat(why, "; evaluation shows loss, ", metric));
  r.tell("loss", cat(loss, ": ", why, " (", shapes, ")"));
}

void choose_training(RecipeWriter& r, const data::Dataset& set) {
  Context& c = r.context();
  const int64_t all = set.samples();
  const bool fixed = c.config.text("last-batch") == "drop" && !c.config.is_default("last-batch");
  if (fixed && !c.config.has("eval-data")) {
    r.tell("note",
           "no evaluation: held-out samples would have to fill batches of the built-in size");
  } else if (!c.config.has("eval-data")) {
    if (all >= 50)
      r.choose("split", "0.1", "a tenth is held out and evaluated after each epoch");
    else
      r.offer("split", "0.2", "too few samples to hold some out without being asked");
  }
  const double held = c.config.text("split") == "0.1" ? 0.9 : 1;
  const auto n = std::max<int64_t>(1, std::llround(static_cast<double>(all) * held));
  int64_t batch = 32;
  while (batch > 1 && batch * 4 > n) batch /= 2;
  if (!fixed)
    r.choose("batch-size", cat(batch),
             batch == 32 ? "samples per step" : cat("samples per step; there are only ", n));
  batch = c.config.integer("batch-size");
  const int64_t per_epoch = std::max<int64_t>(1, (n + batch - 1) / batch);
  if (!c.config.has("steps"))
    r.choose("epochs", cat(std::clamp<int64_t>((1000 + per_epoch - 1) / per_epoch, 3, 30)),
             cat("about ", count_text(per_epoch), " steps each"));
  const int64_t total =
      c.config.has("steps") ? c.config.integer("steps") : c.config.integer("epochs") * per_epoch;
  int64_t count = 0;
  for (const ValueId v : c.file->graph().sources(Source::kParam)) {
    const Shape& s = c.file->graph().value(v).shape;
    count += s.is_const() ? element_count(s.values()) : 0;
  }
  const bool adamw = c.config.is_default("optimizer") || c.config.text("optimizer") == "adamw";
  r.choose("optimizer", "adamw", "");
  if (adamw) {
    const char* lr = count < 5'000'000 ? "0.001" : count < 50'000'000 ? "0.0003" : "0.0001";
    r.choose("lr", lr,
             cat("usual for ", count_text(count),
                 " parameters; a tenth where the model is "
                 "trained already"));
    r.choose("weight-decay", "0.01", "");
    r.choose("no-decay", "norm_bias", "none for biases and the scales of norms");
  }
  if (total >= 100) {
    r.choose("schedule", "cosine", "");
    r.choose("warmup", cat(total / 20), "steps");
  }
  if (c.config.has("window") || c.config.has("text") || !c.config.is_default("tokens"))
    r.choose("clip-norm", "1", "usual for sequences");
  r.choose("precision", "fp32", "");
  r.offer("ema", "0.999", "evaluate and export averages of the weights");
  r.offer("memory-budget", "80%", "computes again what does not fit");
  r.choose("seed", "0", "another number: another order of samples");
  r.tell("train", cat(c.config.text("optimizer"), ", lr ", c.config.text("lr"), ", batch ", batch,
                      ", ", count_text(total), " steps",
                      c.config.has("eval-data") ? cat("; evaluated on ", c.config.text("eval-data"))
                      : c.config.has("split")   ? "; a tenth is held out for evaluation"
                                                : ""));
}

}  // namespace ortrain::cli
