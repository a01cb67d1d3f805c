// A data set: named arrays whose first axis counts samples.
//
// Opened from .npz, .npy (named by the file, or NAME=PATH), .safetensors or a folder of .npy;
// several paths separated by commas are merged. Files are memory-mapped, nothing is read before it
// is used. Promises: check_fits() reports every misfit at once, both sides shown. Refuses (kData):
// malformed files, one name in two files, unknown kinds of file.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/tensor.h"
#include "runtime/data/stored_array.h"

namespace ortrain::data {

// What a graph input (or the loss's target) wants. dims[0] is the batch axis and is not compared,
// except for shared arrays; -1 fits every size.
struct ArraySpec {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
};

struct Fit {
  int64_t samples = 0;
  std::vector<std::string> notes;  // said once to the user: conversions, arrays left unused
};

class Dataset {
 public:
  static Dataset open(const std::string& paths);
  // From memory; `where` stands for the path in messages.
  static Dataset from_arrays(std::vector<std::pair<std::string, HostTensor>> arrays,
                             std::string where = "data");
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;
  ~Dataset();

  const std::string& where() const { return where_; }
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return find(name) != nullptr; }
  // The bytes as they lie in the file, possibly unaligned; nullptr if there is no such array.
  const StoredArray* find(const std::string& name) const;
  // The same or an Error kData that lists the names and the nearest one.
  const StoredArray& stored(const std::string& name) const;
  // Aligned; a copy is made (and kept) on the first call where the file's bytes are not. Not to be
  // called from two threads at once.
  const HostTensor& array(const std::string& name) const;

  // A shared array is the same in every batch, whole: an initial state, a sampling rate. It has no
  // sample axis.
  void share(const std::string& name) { shared_.insert(name); }
  bool shared(const std::string& name) const { return shared_.contains(name); }

  // Size of the first axis, common to all arrays (or to those named) that are not shared. Error
  // kData listing the sizes if they differ, if there is no sample or an array is a scalar.
  int64_t samples() const { return samples(names_); }
  int64_t samples(std::span<const std::string> names) const;

  // Throws one Error kData listing everything that does not fit.
  Fit check_fits(std::span<const ArraySpec> wanted) const;

  // Integer labels: every value must be in [0, classes) or equal `ignore_index`. Error kData with
  // array, sample, position in the sample, value and allowed range. Reads the whole array.
  void check_labels(const std::string& name, int64_t classes, int64_t ignore_index = -100) const;

  // "x f32[320,1,8,8], labels i64[320]"
  std::string summary() const;

 private:
  Dataset();
  void add(ArrayFile file);
  std::string where_;
  std::vector<std::unique_ptr<ArrayFile>> files_;
  std::vector<const StoredArray*> arrays_;
  std::vector<std::string> names_;
  std::set<std::string> shared_;
  mutable std::vector<std::unique_ptr<HostTensor>> tensors_;  // filled by array()
};

}  // namespace ortrain::data
