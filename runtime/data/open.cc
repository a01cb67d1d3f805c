// Opening a data set by the kind of each path; see dataset.h.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "graph/error.h"
#include "runtime/data/dataset.h"
#include "runtime/data/npz.h"
#include "runtime/data/picture_rows.h"
#include "runtime/data/prepared_rows.h"
#include "runtime/data/safetensors.h"

namespace ortrain::data {
namespace {
namespace fs = std::filesystem;
constexpr const char* kKinds =
    "expected .npz, .npy (or NAME=file.npy), .safetensors, or a folder of .npy files or of "
    "pictures";

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

Dataset open_one(const std::string& text, const OpenOptions& options) {
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

Dataset Dataset::open(const std::string& paths, const OpenOptions& options) {
  Dataset out = empty(paths);
  out.strict = options.strict;
  const std::vector<std::string> parts =
      exists(paths) ? std::vector<std::string>{paths} : split(paths, ',');
  for (const std::string& part : parts) {
    if (part.empty()) fail(ErrorCode::kUsage, "data '", paths, "': an empty path; ", kKinds);
    out.absorb(open_one(part, options));
  }
  if (out.names_.empty()) fail(ErrorCode::kData, "data '", paths, "' holds no array");
  out.match(options);
  prepare_arrays(out, options);
  out.match(options);
  return out;
}

}  // namespace ortrain::data
