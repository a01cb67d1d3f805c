// A data set: named arrays whose first axis counts samples.
//
// Opened (open.cc) from .npz, .npy (named by the file, or NAME=PATH), .safetensors, .csv, .tsv,
// token streams (.bin), text, a folder of .npy, of pictures or of ONNX test data; several of a kind
// follow each other, others are merged. Files are memory-mapped, nothing is read before it is used;
// pictures are decoded when a batch wants them. Promises: check_fits() reports every misfit at
// once, both sides shown. Refuses (kData): malformed files, unknown kinds of file.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/tensor.h"
#include "runtime/data/prepare.h"
#include "runtime/data/row_source.h"
#include "runtime/data/stored_array.h"

namespace ortrain::data {

// What a graph input (or the loss's target) wants. dims[0] is the batch axis and is not compared,
// except for shared arrays; -1 fits every size.
struct ArraySpec {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
};

using Vocabularies = std::map<std::string, std::vector<std::string>>;

struct OpenOptions {
  std::vector<ArraySpec> inputs;  // what the model's inputs take; empty: unknown
  std::vector<Prepare> prepare;
  // Graph input (or label) and the arrays or columns it is made of.
  std::vector<std::pair<std::string, std::vector<std::string>>> map;
  Vocabularies vocabularies;       // classes and symbols that are fixed already, by array
  std::string label;               // --label: the column or array that holds labels
  int64_t window = 0, stride = 0;  // token streams: 0 = what the model takes, = the window
  DType token = DType::kU16;       // of .bin files
  std::string text;                // of .txt files: bytes, chars; "": chars where the model says so
  std::function<HostTensor(const std::string& path)> read_pb;  // ONNX tensors; null: refused
  bool training = false;  // draws the random parts of preparations
  bool strict = false;    // refuse what would be left out
  uint64_t seed = 0;
};

// What a path of --data is; kNone: nothing that can be read.
enum class DataKind : uint8_t { kNone, kArrays, kPictures, kTestData, kTable, kTokens, kText };
DataKind kind_of(const std::string& path);
// The files that one path or glob stands for; Error kIo where there is none.
std::vector<std::string> expanded(const std::string& path);

// Why `array` cannot serve `spec`, or nothing.
std::optional<std::string> misfit(const StoredArray& array, const ArraySpec& spec, bool shared);

struct Fit {
  int64_t samples = 0;
  std::vector<std::string> notes;  // said once to the user: conversions, arrays left unused
};

class Dataset {
 public:
  static Dataset open(const std::string& paths, const OpenOptions& options = {});
  // From memory; `where` stands for the path in messages.
  static Dataset from_arrays(std::vector<std::pair<std::string, HostTensor>> arrays,
                             std::string where = "data");
  static Dataset empty(std::string where);
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

  // Building one. Errors: kData where there is an array of that name.
  void add(ArrayFile file);
  void add(StoredArray array);
  void add_rows(std::string name, DType dtype, Dims dims, std::unique_ptr<RowSource> rows);
  // What `name` gives from now on; the array it was stays, for `rows` to read.
  void replace_rows(const std::string& name, DType dtype, Dims dims,
                    std::unique_ptr<RowSource> rows);
  void rename(const std::string& from, const std::string& to);
  void absorb(Dataset other);  // all of its arrays
  // Its files and what it has to say (`all`), not its arrays: for rows that are made of them.
  void keep(Dataset other, bool all);
  // Gives arrays the names of graph inputs: by options.map, else by type and shape where exactly
  // one array fits exactly one input; notes say so.
  void match(const OpenOptions& options);

  // What was made of preparations and files, to be written down with the run.
  std::vector<Prepare> prepared;
  Vocabularies vocabularies;
  std::vector<std::string> notes;  // said once to the user
  std::vector<std::string> keys;   // a name per sample that outlives reordering; empty: its number
  bool strict = false;             // a sample that cannot be read stops the run

  // Is a row of some array work (pictures), rather than a copy?
  bool heavy() const;
  // Samples left out so far, with reasons. May be added to by any thread.
  Skips& skips() const { return *skips_; }

  // Throws one Error kData listing everything that does not fit.
  Fit check_fits(std::span<const ArraySpec> wanted) const;

  // Integer labels: every value must be in [0, classes) or equal `ignore_index`. Error kData with
  // array, sample, position in the sample, value and allowed range. Reads the whole array.
  void check_labels(const std::string& name, int64_t classes, int64_t ignore_index = -100) const;

  // "x f32[320,1,8,8], labels i64[320]"
  std::string summary() const;

 private:
  Dataset();
  void list(StoredArray& array);
  void check_array(const StoredArray& array, const StoredArray& values, int64_t classes,
                   int64_t ignore_index) const;
  std::string where_;
  std::unique_ptr<Skips> skips_;
  std::vector<std::unique_ptr<ArrayFile>> files_;  // addresses of their arrays are kept
  std::vector<std::unique_ptr<RowSource>> rows_;
  std::vector<StoredArray*> arrays_;
  std::vector<std::string> names_;
  std::set<std::string> shared_;
  mutable std::vector<std::unique_ptr<HostTensor>> tensors_;  // filled by array()
};

}  // namespace ortrain::data
