// See prepared_rows.h. One RowSource does a row's whole chain, in the order of prepare.h.
#include "runtime/data/prepared_rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "graph/error.h"
#include "graph/spelling.h"
#include "runtime/data/convert.h"
#include "runtime/data/picture_rows.h"

namespace ortrain::data {
namespace {

size_t row_bytes(DType dtype, const Dims& dims) {
  size_t bytes = size_of(dtype);
  for (size_t i = 1; i < dims.size(); ++i) bytes *= static_cast<size_t>(dims[i]);
  return bytes;
}

void read_row(const StoredArray& a, const RowRequest& row, std::byte* out) {
  if (a.rows) return a.rows->read(row, out);
  const size_t bytes = row_bytes(a.dtype, a.dims);
  if (bytes) std::memcpy(out, a.data + static_cast<size_t>(row.sample) * bytes, bytes);
}

double number_at(DType dtype, const std::byte* data, size_t i) {
  if (dtype == DType::kF32) {
    float v;
    std::memcpy(&v, data + 4 * i, 4);
    return v;
  }
  if (dtype == DType::kF64) {
    double v;
    std::memcpy(&v, data + 8 * i, 8);
    return v;
  }
  return static_cast<double>(integer_at(dtype, data, static_cast<int64_t>(i)));
}

class PreparedRows : public RowSource {
 public:
  PreparedRows(const StoredArray& from, const Prepare& p, const std::string& where)
      : from_(from), p_(p), where_(where), dtype_(from.dtype), dims_(from.dims) {
    if (dims_.empty()) refuse("a scalar");
    if (is_float(dtype_) && dtype_ != DType::kF32 && dtype_ != DType::kF64)
      refuse(cat("values of ", name_of(dtype_)));
    for (const auto& [a, b] : p.map) map_[whole(a)] = whole(b);
    if (!map_.empty()) {
      if (is_float(dtype_)) refuse("a map of labels, but the values are floats");
      dtype_ = DType::kI64;
    }
    if (p.length) {
      if (dims_.size() < 2) refuse("length=, but a row is one value");
      dims_[1] = p.length;
    }
    for (size_t i = 2; i < from.dims.size(); ++i) step_ *= static_cast<size_t>(from.dims[i]);
    if (p.scale || !p.mean.empty() || !p.std.empty()) {
      dtype_ = DType::kF32;
      const size_t n = std::max(p.mean.size(), p.std.size());
      // One number, or one per entry of axis 1 of pictures [N,C,H,W], else of the last axis.
      const size_t axis = dims_.size() == 4 ? 1 : dims_.size() - 1;
      if (n > 1 && (dims_.size() < 2 || static_cast<int64_t>(n) != dims_[axis]))
        refuse(cat(n, " numbers in mean or std"));
      for (size_t i = axis + 1; i < dims_.size(); ++i) inner_ *= static_cast<size_t>(dims_[i]);
    }
    plain_ = row_bytes(DType::kU8, dims_);
    if (p.one_hot) {
      if (is_float(dtype_)) refuse("one-hot=, but the values are floats");
      dtype_ = DType::kF32;
      dims_.push_back(p.one_hot);
    }
  }
  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  bool heavy() const override { return from_.rows && from_.rows->heavy(); }
  int64_t length(int64_t sample) const override {
    const int64_t had = dims_.size() < 2 ? -1 : from_.rows ? from_.rows->length(sample) : -1;
    const int64_t n = had >= 0 ? had : from_.dims.size() < 2 ? 1 : from_.dims[1];
    return p_.length ? std::min(n, p_.length) : had;
  }

  void read(const RowRequest& row, std::byte* out) const override {
    std::vector<std::byte> raw(row_bytes(from_.dtype, from_.dims));
    read_row(from_, row, raw.data());
    size_t skip = 0, have = row_bytes(DType::kU8, from_.dims);
    if (p_.length) {
      const int64_t known = from_.rows ? from_.rows->length(row.sample) : -1;
      const auto real = static_cast<size_t>(known >= 0 ? known : from_.dims[1]);
      const size_t keep = std::min(real, static_cast<size_t>(p_.length));
      if (p_.keep_end) skip = (real - keep) * step_;
      have = keep * step_;
    }
    for (size_t i = 0; i < plain_; ++i) {
      const bool padding = i >= have;
      double v = padding ? p_.pad : number_at(from_.dtype, raw.data(), i + skip);
      if (!map_.empty() && !padding) v = mapped(v, row.sample);
      put(i, v, row.sample, padding, out);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::kUsage, "--prepare ", p_.name, ": the array is ",
         describe(from_.dtype, from_.dims), "; this cannot be done to it: ", what);
  }
  int64_t whole(const std::string& text) const {
    int64_t v = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(cat("map= with '", text, "'; expected whole numbers for labels that are numbers"));
    return v;
  }
  double mapped(double v, int64_t sample) const {
    const auto it = map_.find(static_cast<int64_t>(v));
    if (it == map_.end())
      fail(ErrorCode::kData, where_, ", array '", p_.name, "', sample ", sample, ": value ",
           static_cast<int64_t>(v), " is not in map=");
    return static_cast<double>(it->second);
  }
  void put(size_t i, double v, int64_t sample, bool padding, std::byte* out) const {
    if (p_.one_hot) {
      const auto n = static_cast<size_t>(p_.one_hot);
      if (!padding && !(v >= 0 && v < static_cast<double>(n)))
        fail(ErrorCode::kData, where_, ", array '", p_.name, "', sample ", sample, ": label ",
             static_cast<int64_t>(v), "; expected 0 to ", n - 1, " (one-hot)");
      for (size_t k = 0; k < n; ++k) {
        const float one = v == static_cast<double>(k) ? 1 : 0;
        std::memcpy(out + 4 * (i * n + k), &one, 4);
      }
      return;
    }
    if (p_.scale || !p_.mean.empty() || !p_.std.empty()) {
      const auto pick = [&](const std::vector<double>& list, double missing) {
        return static_cast<float>(list.empty()       ? missing
                                  : list.size() == 1 ? list[0]
                                                     : list[i / inner_ % list.size()]);
      };
      float x = static_cast<float>(v);
      if (!padding && p_.scale) x /= static_cast<float>(*p_.scale);
      if (!padding && (!p_.mean.empty() || !p_.std.empty()))
        x = (x - pick(p_.mean, 0)) / pick(p_.std, 1);
      std::memcpy(out + 4 * i, &x, 4);
      return;
    }
    store(i, v, out);
  }
  void store(size_t i, double v, std::byte* out) const {
    const auto write = [&](auto value) {
      std::memcpy(out + i * sizeof value, &value, sizeof value);
    };
    switch (dtype_) {
      case DType::kF32: return write(static_cast<float>(v));
      case DType::kF64: return write(v);
      case DType::kI64: return write(static_cast<int64_t>(v));
      case DType::kI32: return write(static_cast<int32_t>(v));
      case DType::kI16: return write(static_cast<int16_t>(v));
      case DType::kI8: return write(static_cast<int8_t>(v));
      case DType::kU64: return write(static_cast<uint64_t>(v));
      case DType::kU32: return write(static_cast<uint32_t>(v));
      case DType::kU16: return write(static_cast<uint16_t>(v));
      default: return write(static_cast<uint8_t>(v));
    }
  }

  const StoredArray& from_;
  const Prepare p_;
  const std::string where_;
  DType dtype_;
  Dims dims_;
  std::map<int64_t, int64_t> map_;
  size_t step_ = 1;   // elements per position of axis 1
  size_t inner_ = 1;  // elements that share one mean
  size_t plain_ = 1;  // elements of a row before one-hot
};

// 1 where a prepared sequence has values, 0 where it is padding.
class MaskRows : public RowSource {
 public:
  MaskRows(const RowSource& of, int64_t length) : of_(of), length_(length) {}
  void read(const RowRequest& row, std::byte* out) const override {
    const int64_t real = of_.length(row.sample);
    for (int64_t i = 0; i < length_; ++i) {
      const int64_t v = i < real ? 1 : 0;
      std::memcpy(out + 8 * i, &v, 8);
    }
  }

 private:
  const RowSource& of_;
  const int64_t length_;
};

// u8 arrays that are to be treated as pictures.
bool prepare_picture_array(Dataset& data, const Prepare& asked, const OpenOptions& options) {
  const StoredArray& array = data.stored(asked.name);
  if (!asked.of_pictures()) return false;
  if (array.dtype != DType::kU8 || array.rows ||
      (array.dims.size() != 3 && array.dims.size() != 4)) {
    data.notes.push_back(cat("'", asked.name, "' is ", describe(array.dtype, array.dims),
                             ", no u8 pictures: taken as it is, without --prepare"));
    return true;
  }
  const bool hwc = array.dims.size() == 4 &&
                   (array.dims[3] == 1 || array.dims[3] == 3 || array.dims[3] == 4) &&
                   !(array.dims[1] == 1 || array.dims[1] == 3 || array.dims[1] == 4);
  const bool plain = array.dims.size() == 3;
  const ArraySpec* wanted = nullptr;
  for (const ArraySpec& s : options.inputs)
    if (s.name == asked.name) wanted = &s;
  Prepare p = asked;
  const PictureHead head{static_cast<int>(array.dims[hwc || plain ? 1 : 2]),
                         static_cast<int>(array.dims[hwc || plain ? 2 : 3]),
                         plain || array.dims[hwc ? 3 : 1] == 1};
  const PictureForm form = picture_form(wanted, p, head, true);
  const int64_t n = array.dims[0];
  data.replace_rows(
      asked.name, form.dtype, form.dims(n),
      picture_rows(pixels_of_array(array, hwc), p, form, options.training, options.seed));
  data.prepared.push_back(std::move(p));
  return true;
}

}  // namespace

void prepare_arrays(Dataset& data, const OpenOptions& options, bool last) {
  for (const Prepare& p : options.prepare) {
    if (p.name == "*" || find_prepare(data.prepared, p.name)) continue;
    if (!data.has(p.name) && (!last || !p.fill.empty())) continue;
    if (!data.has(p.name)) {  // evaluation data may come without labels
      const std::string nearest = nearest_name(p.name, data.names());
      data.notes.push_back(cat("--prepare ", p.name, ": there is no such array",
                               nearest.empty() ? "" : "; nearest name: '" + nearest + "'"));
      continue;
    }
    if (prepare_picture_array(data, p, options)) continue;
    if (!p.of_numbers()) continue;
    const StoredArray& from = data.stored(p.name);
    auto rows = std::make_unique<PreparedRows>(from, p, data.where());
    const DType dtype = rows->dtype();
    const Dims dims = rows->dims();
    const PreparedRows& made = *rows;
    data.replace_rows(p.name, dtype, dims, std::move(rows));
    if (!p.mask.empty()) {
      if (!p.length) fail(ErrorCode::kUsage, "--prepare ", p.name, ": mask= needs length=");
      data.add_rows(p.mask, DType::kI64, {dims[0], p.length},
                    std::make_unique<MaskRows>(made, p.length));
    }
    data.prepared.push_back(p);
  }
}

}  // namespace ortrain::data
