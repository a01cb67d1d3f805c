// Arrays by name, and the start-up check against what the model wants.
#include "runtime/data/dataset.h"

#include <algorithm>
#include <optional>

#include "graph/error.h"
#include "graph/spelling.h"
#include "runtime/data/convert.h"

namespace ortrain::data {
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

Dataset::Dataset() : skips_(std::make_unique<Skips>()) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Dataset Dataset::empty(std::string where) {
  Dataset out;
  out.where_ = std::move(where);
  return out;
}

void Dataset::list(StoredArray& array) {
  if (has(array.name))
    fail(ErrorCode::kData, where_, ": the array '", array.name, "' is in two of the files");
  arrays_.push_back(&array);
  names_.push_back(array.name);
  tensors_.emplace_back();
}

void Dataset::add(ArrayFile file) {
  files_.push_back(std::make_unique<ArrayFile>(std::move(file)));
  for (StoredArray& array : files_.back()->arrays) list(array);
}

void Dataset::add(StoredArray array) {
  ArrayFile file;
  if (!array.rows && array.owned.raw())
    array.data = static_cast<const std::byte*>(array.owned.raw());
  file.arrays.push_back(std::move(array));
  add(std::move(file));
}

void Dataset::add_rows(std::string name, DType dtype, Dims dims, std::unique_ptr<RowSource> rows) {
  StoredArray array;
  array.name = std::move(name);
  array.dtype = dtype;
  array.count = element_count(dims);
  array.dims = std::move(dims);
  array.rows = rows.get();
  rows_.push_back(std::move(rows));
  add(std::move(array));
}

void Dataset::replace_rows(const std::string& name, DType dtype, Dims dims,
                           std::unique_ptr<RowSource> rows) {
  const auto it = std::find(names_.begin(), names_.end(), name);
  ORTRAIN_CHECK(it != names_.end(), "no array " + name);
  const auto at = it - names_.begin();
  names_.erase(it);
  arrays_.erase(arrays_.begin() + at);
  tensors_.erase(tensors_.begin() + at);
  add_rows(name, dtype, std::move(dims), std::move(rows));
  std::rotate(names_.begin() + at, names_.end() - 1, names_.end());
  std::rotate(arrays_.begin() + at, arrays_.end() - 1, arrays_.end());
  std::rotate(tensors_.begin() + at, tensors_.end() - 1, tensors_.end());
}

void Dataset::rename(const std::string& from, const std::string& to) {
  if (from == to) return;
  stored(from);
  if (has(to))
    fail(ErrorCode::kData, where_, ": '", from, "' cannot be called '", to,
         "', there is an array of that name");
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i] == from) arrays_[i]->name = names_[i] = to;
}

void Dataset::absorb(Dataset other) {
  const std::vector<StoredArray*> arrays = other.arrays_;
  for (const std::string& name : other.shared_) shared_.insert(name);
  if (keys.empty()) keys = std::move(other.keys);
  keep(std::move(other), true);
  for (StoredArray* array : arrays) list(*array);
}

void Dataset::keep(Dataset other, bool all) {
  for (auto& file : other.files_) files_.push_back(std::move(file));
  for (auto& rows : other.rows_) rows_.push_back(std::move(rows));
  for (const std::string& text : other.skips().list()) skips().add(text);
  if (!all) return;
  for (Prepare& p : other.prepared) prepared.push_back(std::move(p));
  for (auto& [name, words] : other.vocabularies) vocabularies[name] = std::move(words);
  for (std::string& note : other.notes) notes.push_back(std::move(note));
}

Dataset Dataset::from_arrays(std::vector<std::pair<std::string, HostTensor>> arrays,
                             std::string where) {
  Dataset out = empty(std::move(where));
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

bool Dataset::heavy() const {
  return std::any_of(arrays_.begin(), arrays_.end(),
                     [](const StoredArray* a) { return a->rows && a->rows->heavy(); });
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
  std::string problems, missing;
  std::vector<std::string> used;
  Fit fit;
  for (const ArraySpec& spec : wanted) {
    const StoredArray* array = find(spec.name);
    if (!array) {
      const std::string nearest = nearest_name(spec.name, names_);
      problems += cat("\n  '", spec.name, "': expected ", describe(spec.dtype, spec.dims),
                      ", got no such array; the data has ", summary());
      if (!nearest.empty()) problems += cat("; nearest name: '", nearest, "'");
      if (missing.empty()) missing = spec.name;
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
    fail(ErrorCode::kData, "the data '", where_, "' does not fit the model:", problems,
         missing.empty() ? "" : cat("\nname the array of an input: --map \"", missing, ":ARRAY\""));
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
  if (!array.rows) return check_array(array, array, classes, ignore_index);
  if (const auto parts = array.rows->parts(); !parts.empty()) {
    for (const StoredArray* part : parts) check_array(array, *part, classes, ignore_index);
    return;
  }
  StoredArray all = StoredArray{.name = name, .dtype = array.dtype, .dims = array.dims};
  all.count = array.count;
  all.data = static_cast<const std::byte*>(this->array(name).raw());
  check_array(array, all, classes, ignore_index);
}

// `values`: the array, or one that its rows are taken from.
void Dataset::check_array(const StoredArray& array, const StoredArray& values, int64_t classes,
                          int64_t ignore_index) const {
  if (values.rows) {
    for (const StoredArray* part : values.rows->parts())
      check_array(array, *part, classes, ignore_index);
    return;
  }
  const int64_t n = values.dims.empty() ? 1 : values.dims[0];
  const int64_t per_sample = n > 0 ? values.count / n : 0;
  for (int64_t i = 0; i < values.count; ++i) {
    const int64_t value = integer_at(values.dtype, values.data, i);
    if ((value >= 0 && value < classes) || value == ignore_index) continue;
    const std::string position =
        per_sample > 1 ? cat(", position ", i % per_sample) : std::string();
    const std::string whose = values.name == array.name ? cat(", array '", array.name, "', sample ",
                                                              i / per_sample, position)
                                                        : cat(", ", values.name, " number ", i);
    fail(ErrorCode::kData, where_, whose, ": label ", value, "; expected 0 to ", classes - 1, " (",
         classes, " classes) or the ignored ", ignore_index);
  }
}

}  // namespace ortrain::data
