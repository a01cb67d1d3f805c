// See param_store.h.
#include "runtime/param_store.h"

#include <cstring>
#include <string_view>

#include "graph/error.h"

namespace ortrain {
namespace {

// How a value lies in memory relative to the file. A state "P/what" with the rank of parameter P
// follows P's layout, because the optimizer made it from P.
std::vector<int64_t> perm_of(const Graph& g, ValueId v,
                             const std::map<std::string_view, ValueId>& params) {
  if (const auto it = g.params.find(v); it != g.params.end()) return it->second.perm;
  const Value& x = g.value(v);
  if (x.source != Source::kState) return {};
  const size_t slash = x.name.rfind('/');
  if (slash == std::string::npos) return {};
  const auto owner = params.find(std::string_view(x.name).substr(0, slash));
  if (owner == params.end() || g.value(owner->second).shape.rank() != x.shape.rank()) return {};
  const auto it = g.params.find(owner->second);
  return it == g.params.end() ? std::vector<int64_t>{} : it->second.perm;
}

bool identity(std::span<const int64_t> perm) {
  for (size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i)) return false;
  return true;
}

std::vector<int64_t> inverse(std::span<const int64_t> perm) {
  std::vector<int64_t> out(perm.size());
  for (size_t i = 0; i < perm.size(); ++i)
    out[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return out;
}

bool zero_bytes(const HostTensor& t) {
  const auto* p = static_cast<const char*>(t.raw());
  return t.bytes() == 0 || (*p == 0 && std::memcmp(p, p + 1, t.bytes() - 1) == 0);
}

std::string text(const Dims& dims) { return Shape(dims).str(); }

}  // namespace

Dims StoreEntry::file_dims() const {
  if (perm.empty()) return dims;
  Dims out(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) out[static_cast<size_t>(perm[i])] = dims[i];
  return out;
}

void permute(const void* in, std::span<const int64_t> in_dims, std::span<const int64_t> perm,
             size_t size, void* out) {
  const size_t rank = perm.size();
  if (element_count(in_dims) == 0) return;
  std::vector<size_t> stride(rank, size);  // of the input, bytes
  for (size_t i = rank; i-- > 1;) stride[i - 1] = stride[i] * static_cast<size_t>(in_dims[i]);
  std::vector<int64_t> at(rank, 0);
  const std::byte* from = static_cast<const std::byte*>(in);
  std::byte* to = static_cast<std::byte*>(out);
  for (;;) {
    std::memcpy(to, from, size);
    to += size;
    size_t axis = rank;
    while (axis-- > 0) {
      const size_t source = static_cast<size_t>(perm[axis]);
      from += stride[source];
      if (++at[axis] < in_dims[source]) break;
      from -= stride[source] * static_cast<size_t>(in_dims[source]);
      at[axis] = 0;
    }
    if (axis == SIZE_MAX) return;
  }
}

void ParamStore::add(const Graph& g, const Copied& copied) {
  std::map<std::string_view, ValueId> params;
  for (ValueId v : g.sources(Source::kParam)) params.emplace(g.value(v).name, v);
  for (Source kind : {Source::kParam, Source::kState}) {
    struct New {
      ValueId v;
      size_t offset;
    };
    std::vector<New> fresh;
    size_t total = 0;
    for (ValueId v : g.sources(kind)) {
      const Value& x = g.value(v);
      ORTRAIN_CHECK(!x.name.empty(), "a parameter or state has no name");
      StoreEntry e{.name = x.name, .kind = kind, .dtype = x.dtype, .dims = x.shape.values()};
      e.perm = perm_of(g, v, params);
      if (identity(e.perm)) e.perm.clear();
      if (const auto it = g.params.find(v); it != g.params.end())
        e.trainable = it->second.trainable;
      if (const auto known = by_name_.find(x.name); known != by_name_.end()) {
        const StoreEntry& old = entries_[known->second];
        if (old.dtype != e.dtype || old.dims != e.dims || old.perm != e.perm)
          fail(ErrorCode::kShape, "'", x.name, "' is ", name_of(old.dtype), text(old.dims),
               " in one plan and ", name_of(e.dtype), text(e.dims),
               old.perm != e.perm ? " (another layout)" : "", " in another");
        continue;
      }
      e.bytes = static_cast<size_t>(element_count(e.dims)) * size_of(e.dtype);
      fresh.push_back({v, total});
      total += align_up(e.bytes);
      by_name_.emplace(e.name, entries_.size());
      entries_.push_back(std::move(e));
    }
    if (fresh.empty()) continue;
    Buffer buffer(total);
    if (kind == Source::kParam)
      buffer.prefault();
    else
      untouched_.push_back(buffers_.size());
    size_t entry = entries_.size() - fresh.size();
    for (const New& f : fresh) {
      StoreEntry& e = entries_[entry++];
      e.data = buffer.data() + f.offset;
      const HostTensor* initial = g.tensor(f.v);
      if (initial == nullptr) continue;  // fresh memory is zero
      ORTRAIN_CHECK(initial->bytes() == e.bytes, "initial contents of '" + e.name + "' do not fit");
      if (kind == Source::kParam || !zero_bytes(*initial))
        if (e.bytes) std::memcpy(e.data, initial->raw(), e.bytes);
      if (copied) copied(*initial);
    }
    bytes_[kind == Source::kState] += total;
    buffers_.push_back(std::move(buffer));
  }
}

std::vector<const void*> ParamStore::add_constants(std::span<const HostTensor* const> tensors) {
  std::vector<const void*> where(tensors.size(), nullptr);
  struct New {
    const HostTensor* tensor;
    size_t hash, offset;
    std::vector<size_t> wanted_by;
  };
  std::vector<New> fresh;
  std::unordered_multimap<size_t, size_t> fresh_by_hash;
  const auto same = [](const HostTensor& t, DType dtype, const Dims& dims, const void* data) {
    return t.dtype() == dtype && t.dims() == dims &&
           (t.bytes() == 0 || std::memcmp(t.raw(), data, t.bytes()) == 0);
  };
  size_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const HostTensor& t = *tensors[i];
    const size_t hash = std::hash<std::string_view>()(
        std::string_view(static_cast<const char*>(t.raw()), t.bytes()));
    bool found = false;
    const auto [begin, end] = constants_.equal_range(hash);
    for (auto it = begin; it != end && !found; ++it)
      if (same(t, it->second.dtype, it->second.dims, it->second.data))
        where[i] = it->second.data, found = true;
    const auto [fresh_begin, fresh_end] = fresh_by_hash.equal_range(hash);
    for (auto it = fresh_begin; it != fresh_end && !found; ++it) {
      New& n = fresh[it->second];
      if (same(t, n.tensor->dtype(), n.tensor->dims(), n.tensor->raw()))
        n.wanted_by.push_back(i), found = true;
    }
    if (found) continue;
    fresh_by_hash.emplace(hash, fresh.size());
    fresh.push_back({&t, hash, total, {i}});
    total += align_up(t.bytes() ? t.bytes() : 1);
  }
  if (fresh.empty()) return where;
  Buffer buffer(total);
  for (const New& n : fresh) {
    std::byte* data = buffer.data() + n.offset;
    if (n.tensor->bytes()) std::memcpy(data, n.tensor->raw(), n.tensor->bytes());
    for (size_t i : n.wanted_by) where[i] = data;
    constants_.emplace(n.hash, Constant{n.tensor->dtype(), n.tensor->dims(), data});
  }
  constant_bytes_ += total;
  buffers_.push_back(std::move(buffer));
  return where;
}

void ParamStore::prefault() {
  for (size_t i : untouched_) buffers_[i].prefault();
  untouched_.clear();
}

const StoreEntry* ParamStore::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

const StoreEntry& ParamStore::need(const std::string& name) const {
  const StoreEntry* e = find(name);
  ORTRAIN_CHECK(e != nullptr, "'" + name + "' is not in the parameter store");
  return *e;
}

std::byte* ParamStore::bind(const Graph& g, ValueId v) const { return need(g.value(v).name).data; }

HostTensor ParamStore::get(const std::string& name) const {
  const StoreEntry& e = need(name);
  if (e.perm.empty()) return HostTensor::view(e.dtype, e.dims, e.data);
  HostTensor out(e.dtype, e.file_dims());
  permute(e.data, e.dims, inverse(e.perm), size_of(e.dtype), out.mutable_raw());
  return out;
}

void ParamStore::set(const std::string& name, const HostTensor& contents) {
  const StoreEntry& e = need(name);
  const bool castable = is_float(contents.dtype()) && is_float(e.dtype);
  if (contents.dims() != e.file_dims() || (contents.dtype() != e.dtype && !castable))
    fail(ErrorCode::kShape, "'", name, "' is ", name_of(e.dtype), text(e.file_dims()), ", got ",
         name_of(contents.dtype()), text(contents.dims()));
  if (e.bytes == 0) return;
  const HostTensor source = contents.dtype() == e.dtype ? contents.share() : contents.cast(e.dtype);
  if (e.perm.empty())
    std::memcpy(e.data, source.raw(), e.bytes);
  else
    permute(source.raw(), source.dims(), e.perm, size_of(e.dtype), e.data);
}

}  // namespace ortrain
