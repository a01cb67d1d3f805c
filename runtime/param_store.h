// ParamStore: the memory that lives as long as a training run: parameters, states (moments, running
// statistics, counters) and constants, found by name when plans are made.
//
// Several plans (full batch, short last batch, evaluation) bind to one store, so they see the same
// weights. Each tensor is 64-byte aligned in an arena of its kind; addresses never change. get/set
// speak the file's layout: a parameter that the layout pass keeps transposed is turned back. Throws
// Error(kShape) when two graphs want one name with another dtype, shape or layout.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "runtime/buffer.h"

namespace ortrain {

struct StoreEntry {
  std::string name;
  Source kind = Source::kParam;  // kParam or kState
  DType dtype = DType::kUndefined;
  Dims dims;                  // as it lies in memory
  std::vector<int64_t> perm;  // memory axis i is file axis perm[i]; empty = the same
  bool trainable = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  Dims file_dims() const;
};

class ParamStore {
 public:
  // Called with each initial tensor after it was copied; the owner of a mapped file may then drop
  // its pages.
  using Copied = std::function<void(const HostTensor&)>;

  // Adds every parameter and state of g that the store lacks, with its initial contents (zeros
  // where there are none); checks those that it has.
  void add(const Graph& g, const Copied& copied = {});
  // Touches the memory of the states. Until then what is zero in them takes none, so that it need
  // not fit beside what only planning needs.
  void prefault();
  // Adds constants (equal ones once) and returns where they lie, in the order given.
  std::vector<const void*> add_constants(std::span<const HostTensor* const> tensors);

  const std::vector<StoreEntry>& entries() const { return entries_; }  // in order of addition
  const StoreEntry* find(const std::string& name) const;
  // The memory of a parameter or state of g. Aborts when add(g) was not called.
  std::byte* bind(const Graph& g, ValueId v) const;

  // Contents in the file's layout: a view while the layouts agree, else a copy.
  HostTensor get(const std::string& name) const;
  // Replaces the contents; the dtype may differ between float types. Throws Error(kShape).
  void set(const std::string& name, const HostTensor& contents);

  size_t param_bytes() const { return bytes_[0]; }
  size_t state_bytes() const { return bytes_[1]; }
  size_t constant_bytes() const { return constant_bytes_; }
  size_t bytes() const { return bytes_[0] + bytes_[1] + constant_bytes_; }

 private:
  const StoreEntry& need(const std::string& name) const;
  std::vector<StoreEntry> entries_;
  std::map<std::string, size_t> by_name_;
  std::vector<Buffer> buffers_;
  std::vector<size_t> untouched_;  // of them
  size_t bytes_[2] = {0, 0};       // params, states
  struct Constant {
    DType dtype;
    Dims dims;
    const std::byte* data;
  };
  std::unordered_multimap<size_t, Constant> constants_;  // by hash of the contents
  size_t constant_bytes_ = 0;
};

// out[i0, i1, ...] = in[...] with out axis i = in axis perm[i]; out is dense. Elements of `size`
// bytes.
void permute(const void* in, std::span<const int64_t> in_dims, std::span<const int64_t> perm,
             size_t size, void* out);

}  // namespace ortrain
