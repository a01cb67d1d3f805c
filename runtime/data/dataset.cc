// Opening by kind of path, and the start-up check against what the model wants.
#include "runtime/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "graph/error.h"
#include "graph/spelling.h"
#include "runtime/data/convert.h"
#include "runtime/data/npz.h"
#include "runtime/data/safetensors.h"

namespace ortrain::data {
namespace {
namespace fs = std::filesystem;
constexpr const char* kKinds =
    "expected .npz, .npy (or NAME=file.npy), .safetensors or a folder of .npy files";

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

std::vector<ArrayFile> open_folder(const std::string& path) {
  std::vector<fs::path> paths;
  std::error_code ec;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".npy") paths.push_back(it->path());
  if (ec) fail(ErrorCode::kIo, "cannot read folder '", path, "': ", ec.message());
  if (paths.empty()) fail(ErrorCode::kData, "folder '", path, "' holds no .npy file; ", kKinds);
  std::sort(paths.begin(), paths.end());
  std::vector<ArrayFile> out;
  for (const fs::path& p : paths) out.push_back(open_npy(p.string(), p.stem().string()));
  return out;
}

std::vector<ArrayFile> open_one(const std::string& text) {
  std::string path = text, name;
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && !exists(text)) {
    name = text.substr(0, equals);
    path = text.substr(equals + 1);
  }
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    if (!name.empty())
      fail(ErrorCode::kData, "'", text, "': a name can be given to a .npy file, not to a folder");
    return open_folder(path);
  }
  const std::string extension = fs::path(path).extension().string();
  std::vector<ArrayFile> out;
  if (extension == ".npy") {
    out.push_back(open_npy(path, name.empty() ? fs::path(path).stem().string() : name));
    return out;
  }
  if (!name.empty())
    fail(ErrorCode::kData, "'", text, "': a name can only be given to a .npy file");
  if (extension == ".npz") {
    out.push_back(open_npz(path));
  } else if (extension == ".safetensors") {
    out.push_back(open_safetensors(path));
  } else if (!exists(path)) {
    fail(ErrorCode::kIo, "data '", path, "' does not exist");
  } else {
    fail(ErrorCode::kData, "data '", path, "': unknown kind of file; ", kKinds);
  }
  return out;
}

// Why `array` cannot serve `spec`, or nothing.
std::optional<std::string> misfit(const StoredArray& array, const ArraySpec& spec, bool shared) {
  std::string out;
  Dims wanted = spec.dims;
  if (!wanted.empty() && !shared) wanted[0] = -1;
  bool fits = wanted.size() == array.dims.size() && (shared || !wanted.empty());
  for (size_t i = 0; fits && i < wanted.size(); ++i)
    fits = wanted[i] == -1 || wanted[i] == array.dims[i];
  const bool convertible = conversion(array.dtype, spec.dtype) != Conversion::kRefused;
  if (fits && convertible) return std::nullopt;
  out = cat("expected ", describe(spec.dtype, wanted), ", got ", describe(array.dtype, array.dims));
  if (!fits) {
    if (shared) {
      out += "; this input has no batch axis: it is given once, whole";
    } else if (wanted.empty() || array.dims.empty()) {
      out += "; a scalar has no batch axis";
    } else if (wanted.size() != array.dims.size()) {
      out += cat("; rank differs (", wanted.size(), " and ", array.dims.size(), ")");
    } else {
      out += "; shape differs after the batch axis";
    }
  }
  if (!convertible)
    out += cat("; ", name_of(array.dtype), " does not convert to ", name_of(spec.dtype),
               " without loss of meaning, convert and scale the array when writing it");
  return out;
}
}  // namespace

Dataset::Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

void Dataset::add(ArrayFile file) {
  files_.push_back(std::make_unique<ArrayFile>(std::move(file)));
  for (const StoredArray& array : files_.back()->arrays) {
    if (has(array.name))
      fail(ErrorCode::kData, where_, ": the array '", array.name, "' is in two of the files");
    arrays_.push_back(&array);
    names_.push_back(array.name);
  }
  tensors_.resize(arrays_.size());
}

Dataset Dataset::open(const std::string& paths) {
  Dataset out;
  out.where_ = paths;
  const std::vector<std::string> parts =
      exists(paths) ? std::vector<std::string>{paths} : split(paths, ',');
  for (const std::string& part : parts) {
    if (part.empty()) fail(ErrorCode::kUsage, "data '", paths, "': an empty path; ", kKinds);
    for (ArrayFile& file : open_one(part)) out.add(std::move(file));
  }
  if (out.names_.empty()) fail(ErrorCode::kData, "data '", paths, "' holds no array");
  return out;
}

Dataset Dataset::from_arrays(std::vector<std::pair<std::string, HostTensor>> arrays,
                             std::string where) {
  Dataset out;
  out.where_ = std::move(where);
  ArrayFile file;
  for (auto& [name, tensor] : arrays) {
    StoredArray array;
    array.name = name;
    array.dtype = tensor.dtype();
    array.dims = tensor.dims();
    array.count = tensor.count();
    array.data = static_cast<const std::byte*>(tensor.raw());
    array.owned = std::move(tensor);
    file.arrays.push_back(std::move(array));
  }
  out.add(std::move(file));
  return out;
}

const StoredArray* Dataset::find(const std::string& name) const {
  for (const StoredArray* array : arrays_)
    if (array->name == name) return array;
  return nullptr;
}

const StoredArray& Dataset::stored(const std::string& name) const {
  if (const StoredArray* array = find(name)) return *array;
  const std::string nearest = nearest_name(name, names_);
  fail(ErrorCode::kData, where_, ": there is no array '", name, "'; it has ", summary(),
       nearest.empty() ? std::string() : cat("; nearest name: '", nearest, "'"));
}

const HostTensor& Dataset::array(const std::string& name) const {
  const StoredArray& wanted = stored(name);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    if (arrays_[i] != &wanted) continue;
    if (!tensors_[i]) tensors_[i] = std::make_unique<HostTensor>(wanted.tensor());
    return *tensors_[i];
  }
  ORTRAIN_CHECK(false, "array not listed: " + name);
}

std::string Dataset::summary() const {
  constexpr size_t kMost = 30;
  std::string out;
  for (size_t i = 0; i < arrays_.size() && i < kMost; ++i)
    out += cat(i ? ", " : "", arrays_[i]->name, " ", describe(arrays_[i]->dtype, arrays_[i]->dims));
  if (arrays_.size() > kMost) out += cat(" and ", arrays_.size() - kMost, " more");
  return out;
}

int64_t Dataset::samples(std::span<const std::string> names) const {
  int64_t common = -1;
  bool differ = false, scalar = false;
  std::string sizes;
  for (const std::string& name : names) {
    if (shared(name)) continue;
    const StoredArray& array = stored(name);
    scalar |= array.dims.empty();
    // [N, 0] has no values either, and its N is bounded by nothing.
    const int64_t n = array.dims.empty() ? -1 : array.count == 0 ? 0 : array.dims[0];
    differ |= common >= 0 && n >= 0 && n != common;
    if (common < 0) common = n;
    sizes += cat(sizes.empty() ? "" : ", ", name, " ", describe(array.dtype, array.dims));
  }
  if (differ || scalar)
    fail(ErrorCode::kData, where_, ": expected one number of samples (first axis) in ", sizes);
  if (common <= 0) fail(ErrorCode::kData, where_, ": there are no samples; got ", sizes);
  return common;
}

Fit Dataset::check_fits(std::span<const ArraySpec> wanted) const {
  std::string problems;
  std::vector<std::string> used;
  Fit fit;
  for (const ArraySpec& spec : wanted) {
    const StoredArray* array = find(spec.name);
    if (!array) {
      const std::string nearest = nearest_name(spec.name, names_);
      problems += cat("\n  '", spec.name, "': expected ", describe(spec.dtype, spec.dims),
                      ", got no such array; the data has ", summary());
      if (!nearest.empty()) problems += cat("; nearest name: '", nearest, "'");
      continue;
    }
    if (const auto why = misfit(*array, spec, shared(spec.name))) {
      problems += cat("\n  '", spec.name, "': ", *why);
      continue;
    }
    if (std::find(used.begin(), used.end(), spec.name) == used.end()) used.push_back(spec.name);
    const Conversion kind = conversion(array->dtype, spec.dtype);
    if (kind != Conversion::kNone)
      fit.notes.push_back(cat("'", spec.name, "' is converted from ", name_of(array->dtype), " to ",
                              name_of(spec.dtype),
                              kind == Conversion::kRounded   ? " (rounded)"
                              : kind == Conversion::kChecked ? " (every value checked)"
                                                             : ""));
  }
  if (!used.empty()) {
    try {
      fit.samples = samples(used);
    } catch (const Error& e) {
      problems += cat("\n  ", e.what());
    }
  }
  if (!problems.empty())
    fail(ErrorCode::kData, "the data '", where_, "' does not fit the model:", problems);
  for (const std::string& name : names_)
    if (std::find(used.begin(), used.end(), name) == used.end())
      fit.notes.push_back(cat("'", name, "' is not used"));
  return fit;
}

void Dataset::check_labels(const std::string& name, int64_t classes, int64_t ignore_index) const {
  const StoredArray& array = stored(name);
  if (!is_integer(array.dtype) && array.dtype != DType::kBool)
    fail(ErrorCode::kData, where_, ", array '", name, "': expected integer labels, got ",
         describe(array.dtype, array.dims));
  const int64_t n = array.dims.empty() ? 1 : array.dims[0];
  const int64_t per_sample = n > 0 ? array.count / n : 0;
  for (int64_t i = 0; i < array.count; ++i) {
    const int64_t value = integer_at(array.dtype, array.data, i);
    if ((value >= 0 && value < classes) || value == ignore_index) continue;
    const std::string position =
        per_sample > 1 ? cat(", position ", i % per_sample) : std::string();
    fail(ErrorCode::kData, where_, ", array '", name, "', sample ", i / per_sample, position,
         ": label ", value, "; expected 0 to ", classes - 1, " (", classes,
         " classes) or the ignored ", ignore_index);
  }
}

}  // namespace ortrain::data
