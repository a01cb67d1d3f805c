// Opening a data set by the kind of each path; see dataset.h.
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

#include "graph/error.h"
#include "runtime/data/dataset.h"
#include "runtime/data/npz.h"
#include "runtime/data/pick.h"
#include "runtime/data/picture_rows.h"
#include "runtime/data/prepared_rows.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/table.h"
#include "runtime/data/tokens.h"

namespace ortrain::data {
namespace {
namespace fs = std::filesystem;
constexpr const char* kKinds =
    "expected .npz, .npy (or NAME=file.npy), .safetensors, .csv, .tsv, .bin (tokens), .txt, or a "
    "folder "
    "of .npy files, of pictures or of ONNX test data";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    out.push_back(text.substr(begin, end - begin));
  out.push_back(text.substr(begin));
  return out;
}

bool exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

// The input that pictures are for, and what is said about preparing them.
const ArraySpec* picture_input(const OpenOptions& options, const std::string& where,
                               Prepare& prepare) {
  std::vector<const ArraySpec*> can, named;
  std::string all;
  for (const ArraySpec& spec : options.inputs) {
    all += cat("\n  ", spec.name, "  ", describe(spec.dtype, spec.dims));
    if (takes_pictures(spec)) can.push_back(&spec);
    if (const Prepare* p = find_prepare(options.prepare, spec.name); p && p->of_pictures())
      named.push_back(&spec);
  }
  const std::vector<const ArraySpec*>& found = named.empty() ? can : named;
  if (found.size() != 1 && !options.inputs.empty())
    fail(ErrorCode::kData, "pictures of '", where, "' (rank 4, 1, 3 or 4 channels) fit ",
         found.empty() ? "none" : "several", " of the model's inputs:", all,
         found.empty() ? "" : "\nsay which: --prepare \"NAME:resize=HxW\"");
  const Prepare* said = nullptr;
  if (!found.empty()) said = find_prepare(options.prepare, found[0]->name);
  if (!said) said = find_prepare(options.prepare, "*");
  if (!said && found.empty()) said = find_prepare(options.prepare, "image");
  if (said) prepare = *said;
  prepare.name = found.empty() ? "image" : found[0]->name;
  return found.empty() ? nullptr : found[0];
}

Dataset open_pictures(const std::string& path, const OpenOptions& options) {
  Dataset out = Dataset::empty(path);
  const auto known = options.vocabularies.find("labels");
  PictureFolder folder =
      list_pictures(path, known == options.vocabularies.end() ? nullptr : &known->second,
                    out.skips(), options.strict, out.notes);
  Prepare prepare;
  const ArraySpec* input = picture_input(options, path, prepare);
  const PictureForm form = picture_form(input, prepare, folder.first, folder.same_size);
  const auto n = static_cast<int64_t>(folder.files.size());
  StoredArray labels;
  labels.owned = HostTensor(DType::kI64, {n});
  for (int64_t i = 0; i < n; ++i) {
    const PictureFile& f = folder.files[static_cast<size_t>(i)];
    labels.owned.mutable_data<int64_t>()[i] = f.label;
    out.keys.push_back(f.key);
  }
  out.add_rows(prepare.name, form.dtype, form.dims(n),
               picture_rows(pixels_of_files(std::move(folder.files)), prepare, form,
                            options.training, options.seed));
  if (!folder.classes.empty()) {
    labels.name = "labels";
    labels.dtype = DType::kI64;
    labels.dims = {n};
    labels.count = n;
    out.add(std::move(labels));
    out.vocabularies["labels"] = std::move(folder.classes);
  }
  out.prepared.push_back(std::move(prepare));
  return out;
}

bool has_npy(const std::string& path) {
  std::error_code ec;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".npy") return true;
  return false;
}

std::vector<ArrayFile> open_folder(const std::string& path) {
  std::vector<fs::path> paths;
  std::error_code ec;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".npy") paths.push_back(it->path());
  if (ec) fail(ErrorCode::kIo, "cannot read folder '", path, "': ", ec.message());
  if (paths.empty())
    fail(ErrorCode::kData, "folder '", path, "' holds no .npy file and no picture; ", kKinds);
  std::sort(paths.begin(), paths.end());
  std::vector<ArrayFile> out;
  for (const fs::path& p : paths) out.push_back(open_npy(p.string(), p.stem().string()));
  return out;
}

// Folders that hold input_0.pb: this one, or those directly below it.
std::vector<std::string> test_data_folders(const std::string& path) {
  if (exists(path + "/input_0.pb")) return {path};
  std::vector<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    if (exists(it->path().string() + "/input_0.pb")) out.push_back(it->path().string());
  std::sort(out.begin(), out.end());
  return out;
}

// input_K.pb for the model's input K, output_K.pb as "output_K".
Dataset open_test_data(const std::string& path, const OpenOptions& options) {
  if (!options.read_pb)
    fail(ErrorCode::kUnsupported, "'", path, "': ONNX tensors cannot be read here");
  Dataset out = Dataset::empty(path);
  for (const bool input : {true, false}) {
    for (size_t k = 0;; ++k) {
      const std::string file = cat(path, input ? "/input_" : "/output_", k, ".pb");
      if (!exists(file)) break;
      StoredArray a;
      a.owned = options.read_pb(file).clone();
      a.name = input && k < options.inputs.size() ? options.inputs[k].name
                                                  : cat(input ? "input_" : "output_", k);
      a.dtype = a.owned.dtype();
      a.dims = a.owned.dims();
      a.count = a.owned.count();
      out.add(std::move(a));
    }
  }
  return out;
}

// Standard input as a file; its kind is told by its first bytes.
std::string spooled() {
  std::string path = (fs::temp_directory_path() / "ortrain-stdin-XXXXXX").string();
  const int fd = ::mkstemp(path.data());
  if (fd < 0) fail(ErrorCode::kIo, "cannot create a file for standard input: ", path);
  std::vector<char> buffer(1 << 20);
  std::string head;
  bool good = true;
  for (ssize_t n; good && (n = ::read(0, buffer.data(), buffer.size())) > 0;) {
    if (head.size() < 16) head.append(buffer.data(), static_cast<size_t>(std::min<ssize_t>(n, 16)));
    for (ssize_t done = 0, w = 0; good && done < n; done += w)
      good = (w = ::write(fd, buffer.data() + done, static_cast<size_t>(n - done))) > 0;
  }
  ::close(fd);
  if (!good || head.empty()) {
    ::unlink(path.c_str());
    fail(ErrorCode::kIo,
         good ? "standard input is empty" : "cannot keep standard input in " + path);
  }
  const char* kind = head.starts_with("PK")          ? ".npz"
                     : head.starts_with("\x93NUMPY") ? ".npy"
                                                     : ".csv";
  const std::string named = path + kind;
  fs::rename(path, named);
  return named;
}

// "a.npz:0.7" gives 0.7 and takes it off; -1: there is none.
double take_weight(std::string& part) {
  const size_t colon = part.rfind(':');
  double weight = -1;
  if (colon == std::string::npos || exists(part)) return weight;
  const char* first = part.data() + colon + 1;
  const auto [end, error] = std::from_chars(first, part.data() + part.size(), weight);
  if (error != std::errc() || end != part.data() + part.size()) return -1;
  if (!(weight > 0 && weight < 1e9))
    fail(ErrorCode::kUsage, "data '", part, "': expected a weight above 0");
  part.resize(colon);
  return weight;
}

bool table_name(const std::string& path) {
  return path.ends_with(".csv") || path.ends_with(".tsv");
}

Dataset open_one(const std::string& text, OpenOptions& options) {
  std::string path = text, name;
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && !exists(text)) {
    name = text.substr(0, equals);
    path = text.substr(equals + 1);
  }
  Dataset out = Dataset::empty(path);
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    if (!name.empty())
      fail(ErrorCode::kData, "'", text, "': a name can be given to a .npy file, not to a folder");
    if (const auto folders = test_data_folders(path); !folders.empty()) {
      std::vector<Dataset> sets;
      for (const std::string& folder : folders) sets.push_back(open_test_data(folder, options));
      return sets.size() == 1 ? std::move(sets[0]) : joined(std::move(sets), {}, path);
    }
    if (!has_npy(path) && holds_pictures(path)) return open_pictures(path, options);
    for (ArrayFile& file : open_folder(path)) out.add(std::move(file));
    return out;
  }
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".npy") {
    out.add(open_npy(path, name.empty() ? fs::path(path).stem().string() : name));
    return out;
  }
  if (!name.empty())
    fail(ErrorCode::kData, "'", text, "': a name can only be given to a .npy file");
  if (exists(path)) {
    if (table_name(path)) return open_table({path}, options);
    if (extension == ".bin") return open_tokens(path, options);
    if (extension == ".txt") return open_text(path, options);
  }
  if (extension == ".npz") {
    out.add(open_npz(path));
  } else if (extension == ".safetensors") {
    out.add(open_safetensors(path));
  } else if (!exists(path)) {
    fail(ErrorCode::kIo, "data '", path, "' does not exist");
  } else {
    fail(ErrorCode::kData, "data '", path, "': unknown kind of file; ", kKinds);
  }
  return out;
}
}  // namespace

std::vector<std::string> expanded(const std::string& part) {
  if (part.find_first_of("*?[") == std::string::npos || exists(part)) return {part};
  glob_t found = {};
  std::vector<std::string> out;
  if (::glob(part.c_str(), 0, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (out.empty()) fail(ErrorCode::kIo, "data '", part, "' matches no file");
  return out;
}

DataKind kind_of(const std::string& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    if (!test_data_folders(path).empty()) return DataKind::kTestData;
    if (has_npy(path)) return DataKind::kArrays;
    return holds_pictures(path) ? DataKind::kPictures : DataKind::kNone;
  }
  const std::string extension = fs::path(path).extension().string();
  if (table_name(path)) return DataKind::kTable;
  if (extension == ".bin") return DataKind::kTokens;
  if (extension == ".txt") return DataKind::kText;
  const bool arrays = extension == ".npz" || extension == ".npy" || extension == ".safetensors";
  return arrays ? DataKind::kArrays : DataKind::kNone;
}

Dataset Dataset::open(const std::string& paths, const OpenOptions& asked) {
  OpenOptions options = asked;
  const std::vector<std::string> parts =
      exists(paths) ? std::vector<std::string>{paths} : split(paths, ',');
  std::vector<Dataset> sets;
  std::vector<double> weights;
  // What the first file says of its classes holds for the others.
  const auto learn = [&](const Dataset& d) {
    for (const auto& [name, words] : d.vocabularies) options.vocabularies.try_emplace(name, words);
  };
  for (std::string part : parts) {
    if (part.empty()) fail(ErrorCode::kUsage, "data '", paths, "': an empty path; ", kKinds);
    weights.push_back(take_weight(part));
    const bool piped = part == "-";
    if (piped) part = spooled();
    const std::vector<std::string> files = expanded(part);
    if (files.size() > 1 && std::all_of(files.begin(), files.end(), table_name)) {
      sets.push_back(open_table(files, options));
    } else {
      std::vector<Dataset> these;
      for (const std::string& file : files) {
        these.push_back(open_one(file, options));
        learn(these.back());
      }
      sets.push_back(these.size() == 1 ? std::move(these[0]) : joined(std::move(these), {}, part));
    }
    learn(sets.back());
    if (piped) fs::remove(part);  // what is mapped stays
  }
  const auto weighted = static_cast<size_t>(
      std::count_if(weights.begin(), weights.end(), [](double w) { return w >= 0; }));
  if (weighted > 0 && weighted < weights.size())
    fail(ErrorCode::kUsage, "data '", paths, "': some of the paths have a weight, some have none");
  const auto names_of = [](const Dataset& d) {
    return std::set<std::string>(d.names().begin(), d.names().end());
  };
  const bool alike =
      sets.size() > 1 && std::all_of(sets.begin(), sets.end(), [&](const Dataset& d) {
        return names_of(d) == names_of(sets[0]);
      });
  Dataset out = empty(paths);
  if (weighted > 0 || alike) {
    out = joined(std::move(sets), weighted ? weights : std::vector<double>{}, paths);
  } else {
    for (Dataset& set : sets) out.absorb(std::move(set));
  }
  out.strict = options.strict;
  if (out.names_.empty()) fail(ErrorCode::kData, "data '", paths, "' holds no array");
  prepare_arrays(out, options, false);
  out.match(options);
  prepare_arrays(out, options, true);
  out.match(options);
  return out;
}

}  // namespace ortrain::data
