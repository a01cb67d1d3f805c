// `ortrain init`: what the data is and how it reaches the model's inputs. Reads what the readers of
// runtime/data say; nothing here knows a file format.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "graph/error.h"
#include "importers/onnx_tensor.h"
#include "runtime/cli/init_parts.h"
#include "runtime/cli/setup.h"
#include "runtime/cli/words.h"
#include "runtime/data/picture_rows.h"
#include "runtime/data/table.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
using data::ArraySpec;
using data::DataKind;
namespace {

constexpr const char* kHeldNames[] = {"val", "valid", "validation", "test", "eval"};
constexpr const char* kLabelNames[] = {"labels", "label", "targets", "target", "y"};

std::string listed(const std::vector<std::string>& all, size_t most) {
  std::string out;
  for (size_t i = 0; i < all.size() && i < most; ++i) out += (i ? ", " : "") + all[i];
  return all.size() > most ? cat(out, ", ... (", all.size(), ")") : out;
}

// "x/train.npz" gives "x/test.npz" where there is one; "" else.
std::string held_beside(const std::string& path) {
  const fs::path p(path);
  const std::string file = p.filename().string();
  const size_t at = file.rfind("train");
  if (at == std::string::npos) return {};
  const size_t end = file.compare(at, 8, "training") == 0 ? 8 : 5;
  std::error_code ignored;
  for (const char* word : kHeldNames) {
    fs::path other = p;
    other.replace_filename(std::string(file).replace(at, end, word));
    if (fs::exists(other, ignored)) return other.string();
  }
  return {};
}

// The training data inside a folder that is none itself.
std::string inside(const std::string& folder) {
  std::vector<std::string> folders, files;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    std::error_code odd;
    if (name.starts_with(".")) continue;
    if (it->is_directory(odd))
      folders.push_back(name);
    else if (data::kind_of(it->path().string()) != DataKind::kNone)
      files.push_back(name);
  }
  if (ec) fail(ErrorCode::kIo, "cannot read folder '", folder, "': ", ec.message());
  std::sort(files.begin(), files.end());
  const auto is_part = [](const std::string& n) {
    return n == "train" || n == "training" ||
           std::any_of(std::begin(kHeldNames), std::end(kHeldNames),
                       [&](const char* w) { return n == w; });
  };
  if (std::all_of(folders.begin(), folders.end(), is_part))
    for (const std::string& name : folders)
      if (name.starts_with("train")) return (fs::path(folder) / name).string();
  if (data::kind_of(folder) != DataKind::kNone) return folder;
  if (files.size() == 1) return (fs::path(folder) / files[0]).string();
  for (const std::string& name : files)
    if (const std::string path = (fs::path(folder) / name).string(); !held_beside(path).empty())
      return path;
  fail(
      ErrorCode::kData, "folder '", folder, "' holds ",
      files.empty() ? "nothing to train on" : "several files: " + listed(files, 8),
      "; expected a folder per class with pictures (.jpg, .png, .webp), ONNX test data, .npy files "
      "named after the model's inputs, or one file (.npz, .csv, .tsv, .bin, .txt, .safetensors); "
      "name it: --data ",
      (fs::path(folder) / (files.empty() ? "FILE" : files[0])).string());
}

// The paths of --data one by one, without weights; for looking at them.
std::vector<std::string> paths_of(const std::string& text) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (std::string part : split(text, ',')) {
    const size_t colon = part.rfind(':');
    double v = 0;
    if (colon != std::string::npos && !fs::exists(part, ignored) &&
        parse_number(part.substr(colon + 1), v))
      part.resize(colon);
    for (std::string& path : data::expanded(part)) out.push_back(std::move(path));
  }
  return out;
}

// --- tables

// Why a column is no feature, "" where it may be one.
std::string unfit(const data::ColumnLook& c, int64_t rows) {
  std::string low = c.name;
  std::transform(low.begin(), low.end(), low.begin(),
                 [](unsigned char x) { return std::tolower(x); });
  if (c.missing * 2 > rows) return "mostly missing";
  if (c.different <= 1) return "always the same";
  if (!c.numbers && c.different > 20 && c.different * 2 > rows) return "a word of its own per row";
  const bool counts = c.whole && c.different == rows && rows > 20;
  if (counts &&
      (low.empty() || low.ends_with("id") || low == "index" || low == "row" || low == "unnamed: 0"))
    return "a number per row";
  return {};
}

// The column that holds labels; "" where the model needs none.
std::string label_column(RecipeWriter& r, const std::vector<data::ColumnLook>& columns,
                         const std::vector<ArraySpec>& inputs) {
  const Context& c = r.context();
  if (c.config.has("label")) return c.config.text("label");
  for (const char* word : kLabelNames)
    for (const data::ColumnLook& l : columns)
      if (l.name == word) return word;
  std::vector<const data::ColumnLook*> free;
  for (const data::ColumnLook& l : columns)
    if (std::none_of(inputs.begin(), inputs.end(), [&](const auto& s) { return s.name == l.name; }))
      free.push_back(&l);
  if (free.empty()) return {};
  const std::string& name = free.back()->name;
  r.choose("label", name,
           free.size() == 1 ? "the column that is no input"
                            : "a guess: the last column, as none is called label or target");
  return name;
}

void choose_columns(RecipeWriter& r, const std::vector<std::string>& paths) {
  Context& c = r.context();
  data::OpenOptions options = open_options(c, DataUse::kPredict);
  int64_t rows = 0;
  const auto columns = data::look_at_columns(paths, options, rows);
  const std::string label = label_column(r, columns, options.inputs);
  r.tell("data", cat(c.config.text("data"), ": a table of ", count_text(rows), " rows, ",
                     columns.size(), " columns"));
  std::vector<const data::ColumnLook*> wanted;
  std::set<std::string> named;
  std::vector<const ArraySpec*> open;
  for (const ArraySpec& s : options.inputs) {
    const bool has = std::any_of(columns.begin(), columns.end(),
                                 [&](const auto& l) { return l.name == s.name; });
    has ? void(named.insert(s.name)) : open.push_back(&s);
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    const data::ColumnLook& l = columns[i];
    if (i < 40)
      r.tell(cat("  ", l.name), cat(!l.numbers ? cat(l.different, " different words")
                                    : l.whole  ? cat("whole numbers, ", l.different, " different")
                                               : "numbers",
                                    l.missing ? cat(", ", l.missing, " missing") : "", ": ", l.some,
                                    l.name == label ? " (the label)" : ""));
    if (l.name != label && !named.contains(l.name)) wanted.push_back(&l);
  }
  std::vector<std::string> dropped;
  if (open.size() == 1 && open[0]->dims.size() == 2 && c.config.is_default("map")) {
    const int64_t k = open[0]->dims[1];
    if (static_cast<int64_t>(wanted.size()) != k)
      std::erase_if(wanted, [&](const data::ColumnLook* l) {
        const std::string why = unfit(*l, rows);
        if (!why.empty()) dropped.push_back(cat(l->name, " (", why, ")"));
        return !why.empty();
      });
    std::vector<std::string> names;
    for (const data::ColumnLook* l : wanted) names.push_back(l->name);
    if (k >= 0 && static_cast<int64_t>(names.size()) != k)
      fail(ErrorCode::kData, "input '", open[0]->name, "' takes ", k, " columns, '", paths[0],
           "' has ", names.size(), " for it: ", listed(names, 40),
           label.empty() ? "" : cat("; the label is '", label, "' (--label)"),
           dropped.empty() ? "" : cat("; not counted: ", listed(dropped, 20)),
           "\nsay which: ortrain init ", c.model_path, " --data ", c.config.text("data"),
           " --map \"", open[0]->name, ":COLUMN,COLUMN,...\"");
    std::string map = open[0]->name + ":";
    for (size_t i = 0; i < names.size(); ++i) map += (i ? "," : "") + names[i];
    const bool can = speakable(open[0]->name) && std::all_of(names.begin(), names.end(), speakable);
    const bool words =
        std::any_of(wanted.begin(), wanted.end(), [](auto* l) { return !l->numbers; });
    if (can && (names.size() <= 32 || !dropped.empty()))
      r.choose("map", map,
               cat("columns of the input", words ? "; words by their number in a vocabulary" : "",
                   dropped.empty() ? "" : "; left out: " + listed(dropped, 8)));
  }
  for (const data::ColumnLook& l : columns) {
    const bool used =
        std::find(wanted.begin(), wanted.end(), &l) != wanted.end() || named.contains(l.name);
    if (l.missing == 0 || !used) continue;
    if (l.numbers && speakable(l.name))
      r.prepare(l.name, "fill", "mean", cat(l.missing, " of ", rows, " values are missing"));
    else
      r.tell("note", cat("rows without '", l.name, "' are left out (", l.missing, ")"));
  }
}

// --- tokens, text

void choose_tokens(RecipeWriter& r, const std::string& path, DataKind kind) {
  Context& c = r.context();
  const auto outputs = typed_outputs(c);
  const OutputLook& out = loss_output(c, outputs);
  const int64_t classes = out.dims.empty() ? -1 : out.dims.back();
  const data::MappedFile file(path);
  const auto* bytes = reinterpret_cast<const unsigned char*>(file.bytes().data());
  const size_t size = file.size();
  int64_t tokens = static_cast<int64_t>(size);
  std::string what = "bytes";
  if (kind == DataKind::kTokens) {
    bool wide = size % 4 == 0 && size > 0;  // the high halves of small numbers are 0
    for (size_t i = 0; wide && i + 4 <= std::min<size_t>(size, 1 << 16); i += 4) {
      uint32_t v = 0;
      std::memcpy(&v, bytes + i, 4);
      wide = v < (classes > 65536 ? static_cast<uint32_t>(classes) : 65536u);
    }
    r.choose("tokens", wide ? "uint32" : "uint16",
             wide ? "read as 4 bytes each, no number is beyond the vocabulary" : "2 bytes each");
    what = c.config.text("tokens") + " tokens";
    tokens /= c.config.text("tokens") == "uint32" ? 4 : 2;
  } else {
    std::set<std::string> symbols;
    const std::string_view text(reinterpret_cast<const char*>(bytes), size);
    const bool known = c.vocabularies.contains("text");
    const bool chars = known || (classes > 0 && classes < 256);
    r.choose("text", chars ? "chars" : "bytes",
             known   ? "the model knows its characters"
             : chars ? cat("the model has ", classes,
                           " symbols, too few for bytes; characters are "
                           "numbered in the order of their codes")
                     : "each byte is a token");
    what = c.config.text("text") == "chars" ? "characters (at most)" : "bytes";
  }
  int64_t built_in = -1;
  for (const ArraySpec& s : open_options(c, DataUse::kPredict).inputs)
    if (is_integer(s.dtype) && s.dims.size() == 2) built_in = s.dims[1];
  if (built_in < 1)
    r.choose("window", cat(std::clamp<int64_t>((tokens - 1) / 8, 1, 128)),
             "tokens per sample; the model takes any");
  const int64_t window = c.config.has("window") ? c.config.integer("window") : built_in;
  r.offer("stride", cat(std::max<int64_t>(1, window / 2)), "windows that overlap: more samples");
  r.tell("data", cat(c.config.text("data"), ": ", count_text(tokens), " ", what, ", windows of ",
                     window, "; the labels are the tokens one further"));
}

// --- pictures

const ArraySpec* picture_input(const std::vector<ArraySpec>& inputs) {
  const ArraySpec* found = nullptr;
  for (const ArraySpec& s : inputs) {
    if (!data::takes_pictures(s)) continue;
    if (found) return nullptr;  // the reader asks which
    found = &s;
  }
  return found;
}

void offer_augmentation(RecipeWriter& r, const std::string& name, int64_t h, int64_t w,
                        bool colour) {
  const std::string size = cat(h, "x", w);
  r.offer_prepare(name, "flip", "true", "augmentation: left and right; not for digits or letters");
  r.offer_prepare(name, "random-crop", size, "augmentation: shifted by up to `border` pixels");
  r.offer_prepare(name, "border", cat(std::max<int64_t>(1, std::min(h, w) / 8)), "");
  if (colour)
    r.offer_prepare(name, "jitter", "0.2/0.2/0.2",
                    "augmentation: brightness, contrast, saturation");
}

// Resize and scale of pictures for `spec`, which may have open sides; `first` is the first picture.
void prepare_pictures(RecipeWriter& r, const ArraySpec& spec, data::PictureHead first,
                      bool same_size) {
  const bool hwc = spec.dims[1] != 1 && spec.dims[1] != 3 && spec.dims[1] != 4 &&
                   (spec.dims[3] == 1 || spec.dims[3] == 3 || spec.dims[3] == 4);
  const int64_t channels = spec.dims[hwc ? 3 : 1];
  int64_t h = spec.dims[hwc ? 1 : 2], w = spec.dims[hwc ? 2 : 3];
  const bool open = h < 1 || w < 1;
  std::string why = "what the model takes";
  if (open) {
    const int64_t side =
        std::clamp<int64_t>(std::min(first.height, first.width) / 32 * 32, 32, 224);
    if (h < 1) h = same_size ? first.height : side;
    if (w < 1) w = same_size ? first.width : side;
    why = same_size ? "the size of the pictures; the model takes any" : "the model takes any size";
  }
  const std::string name = speakable(spec.name) ? spec.name : "*";
  r.prepare(name, "resize", cat(h, "x", w), why);
  if (channels < 1) r.prepare(name, "channels", first.grey ? "1" : "3", "grey or colour");
  if (is_float(spec.dtype)) r.prepare(name, "scale", "255", "pixels / 255: 0 to 1");
  offer_augmentation(r, name, h, w, channels != 1);
}

void choose_pictures(RecipeWriter& r, const std::string& path) {
  Context& c = r.context();
  data::Skips skips;
  std::vector<std::string> notes;
  const auto known = c.vocabularies.find("labels");
  const data::PictureFolder f =
      data::list_pictures(path, known == c.vocabularies.end() ? nullptr : &known->second, skips,
                          c.config.on("strict"), notes);
  std::vector<int64_t> count(f.classes.size(), 0);
  for (const data::PictureFile& p : f.files)
    if (p.label >= 0) ++count[static_cast<size_t>(p.label)];
  std::string classes = ", no class folders";
  if (!count.empty()) {
    const auto [low, high] = std::minmax_element(count.begin(), count.end());
    classes = cat(" in ", count.size(), count.size() == 1 ? " class" : " classes", " of ", *low,
                  *low == *high ? "" : cat(" to ", *high), ": ", listed(f.classes, 10));
    if (*high > 3 * *low)
      r.offer("class-weights", "auto",
              cat("classes are uneven (", *low, " to ", *high, "): every class weighs the same"));
  }
  r.tell("data", cat(c.config.text("data"), ": ", count_text(static_cast<int64_t>(f.files.size())),
                     " pictures", classes, f.same_size ? "; all " : "; several sizes, the first ",
                     f.first.height, "x", f.first.width, f.first.grey ? ", grey" : ""));
  if (skips.count() > 0)
    r.tell("note",
           cat(skips.count(), " cannot be read and are left out, the first: ", skips.list()[0]));
  for (const std::string& n : notes) r.tell("note", n);
  const auto inputs = open_options(c, DataUse::kPredict).inputs;
  if (const ArraySpec* input = picture_input(inputs))
    prepare_pictures(r, *input, f.first, f.same_size);
}

// --- arrays

// What the reader found by type and shape, written down.
void choose_map(RecipeWriter& r, const data::Dataset& raw, const std::vector<ArraySpec>& inputs) {
  Context& c = r.context();
  if (!c.config.is_default("map")) return;
  const data::Dataset set = open_data(c, c.config.text("data"), DataUse::kPredict);
  std::string map;
  for (const ArraySpec& s : inputs) {
    const data::StoredArray* now = raw.has(s.name) ? nullptr : set.find(s.name);
    if (!now || !speakable(s.name)) continue;
    for (const std::string& name : raw.names()) {
      const data::StoredArray& was = raw.stored(name);
      if (set.has(name) || !speakable(name) || was.dtype != now->dtype || was.dims != now->dims)
        continue;
      map += cat(map.empty() ? "" : ";", s.name, ":", name);
      break;
    }
  }
  if (!map.empty()) r.choose("map", map, "INPUT:ARRAY; the only one of its type and shape");
}

void choose_arrays(RecipeWriter& r) {
  Context& c = r.context();
  data::OpenOptions plain;
  plain.read_pb = read_tensor_file;
  const data::Dataset raw = data::Dataset::open(c.config.text("data"), plain);
  r.tell("data", cat(c.config.text("data"), ": ", raw.summary()));
  const auto inputs = open_options(c, DataUse::kPredict).inputs;
  std::vector<const data::StoredArray*> bytes;  // u8, and no input's name
  for (const std::string& name : raw.names()) {
    const data::StoredArray& a = raw.stored(name);
    const bool free = std::none_of(inputs.begin(), inputs.end(),
                                   [&](const ArraySpec& s) { return s.name == name; });
    if (free && a.dtype == DType::kU8 && a.dims.size() >= 3 && a.dims.size() <= 4)
      bytes.push_back(&a);
  }
  std::string mask;
  for (const ArraySpec& s : inputs)
    if (!raw.has(s.name) && s.name.find("mask") != std::string::npos && s.dims.size() == 2)
      mask = s.name;
  for (const ArraySpec& s : inputs) {
    const data::StoredArray* a = raw.find(s.name);
    if (!a && bytes.size() == 1 && data::takes_pictures(s) && speakable(s.name) &&
        speakable(bytes[0]->name)) {
      a = bytes[0];
      r.choose("map", s.name + ":" + a->name, "INPUT:ARRAY; the only pictures");
    }
    if (!a || !speakable(s.name)) continue;
    if (a->dtype == DType::kU8 && is_float(s.dtype) && data::takes_pictures(s) &&
        (a->dims.size() == 3 || a->dims.size() == 4)) {
      const bool hwc = a->dims.size() == 4 && a->dims[3] <= 4 && a->dims[1] > 4;
      const bool plane = a->dims.size() == 3;
      prepare_pictures(r, s,
                       {.height = static_cast<int>(a->dims[hwc || plane ? 1 : 2]),
                        .width = static_cast<int>(a->dims[hwc || plane ? 2 : 3]),
                        .grey = plane || a->dims[hwc ? 3 : 1] == 1},
                       true);
    } else if (is_integer(a->dtype) && is_float(s.dtype) && s.dims.size() == a->dims.size() + 1 &&
               s.dims.back() > 1) {
      r.prepare(s.name, "one-hot", cat(s.dims.back()),
                "class numbers; the input takes a 1 for each");
    } else if (a->dims.size() >= 2 && a->dims.size() == s.dims.size() && s.dims[1] > 0 &&
               a->dims[1] != s.dims[1] && is_integer(a->dtype)) {
      r.prepare(s.name, "length", cat(s.dims[1]),
                cat("sequences of ", a->dims[1],
                    ", cut or filled up with `pad` to what the model takes"));
      if (!mask.empty()) r.prepare(s.name, "mask", mask, "1 where the sequence is real");
    }
  }
  choose_map(r, raw, inputs);
}

}  // namespace

void find_data(RecipeWriter& r) {
  Context& c = r.context();
  const std::string text = c.config.text("data");
  if (text.empty())
    fail(ErrorCode::kUsage, "no data: ortrain init ", c.model_path,
         " --data PATH; a folder per class with pictures, .npz, .csv, .tsv, .bin (tokens), .txt, "
         ".safetensors, or a folder of .npy or of ONNX test data");
  for (const std::string& part : split(text, ','))
    if (part == "-")
      fail(ErrorCode::kUsage,
           "--data -: a recipe needs data that can be read again; keep standard "
           "input in a file first");
  std::error_code ignored;
  std::string path = text;
  if (fs::is_directory(text, ignored)) path = inside(text);
  if (path != text) {
    c.config.set("data", path, "init");
    r.choose("data", path, "found in " + text);
  }
  if (!fs::exists(path, ignored) || c.config.has("eval-data") || c.config.has("split")) return;
  if (const std::string held = held_beside(path); !held.empty())
    r.choose("eval-data", held, "found beside the training data");
}

void choose_reading(RecipeWriter& r) {
  Context& c = r.context();
  const std::vector<std::string> paths = paths_of(c.config.text("data"));
  const DataKind kind = paths.empty() ? DataKind::kNone : data::kind_of(paths[0]);
  std::error_code ignored;
  const bool there = !paths.empty() && fs::exists(paths[0], ignored);
  if (kind == DataKind::kTable && there) return choose_columns(r, paths);
  if ((kind == DataKind::kTokens || kind == DataKind::kText) && there)
    return choose_tokens(r, paths[0], kind);
  if (kind == DataKind::kPictures) return choose_pictures(r, paths[0]);
  choose_arrays(r);  // or what is wrong with the path
  const auto outputs = typed_outputs(c);
  for (size_t i = 0; kind == DataKind::kTestData && i < outputs.size(); ++i)
    if (outputs.size() > 1 && outputs[i].name == loss_output(c, outputs).name)
      r.choose("label", cat("output_", i),
               cat("what the data says of output '", outputs[i].name, "'"));
}

}  // namespace ortrain::cli
