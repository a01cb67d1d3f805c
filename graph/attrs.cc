// Lookup and typed access for Attrs.
#include "graph/attrs.h"

#include <algorithm>

#include "graph/error.h"

namespace ortrain {
namespace {
template <class T>
const T& get(const AttrValue& v, std::string_view name, const char* expected) {
  if (const T* t = std::get_if<T>(&v)) return *t;
  fail(ErrorCode::kModel, "attribute '", name, "' should be ", expected);
}
}  // namespace

void Attrs::set(const std::string& name, AttrValue value) {
  const auto it =
      std::lower_bound(items_.begin(), items_.end(), name,
                       [](const auto& item, const std::string& n) { return item.first < n; });
  if (it != items_.end() && it->first == name)
    it->second = std::move(value);
  else
    items_.insert(it, {name, std::move(value)});
}

void Attrs::erase(std::string_view name) {
  std::erase_if(items_, [&](const auto& item) { return item.first == name; });
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const auto& [k, v] : items_)
    if (k == name) return &v;
  return nullptr;
}

int64_t Attrs::i(std::string_view name, int64_t missing) const {
  const AttrValue* v = find(name);
  return v ? get<int64_t>(*v, name, "an integer") : missing;
}

double Attrs::f(std::string_view name, double missing) const {
  const AttrValue* v = find(name);
  if (!v) return missing;
  if (const auto* n = std::get_if<int64_t>(v)) return static_cast<double>(*n);
  return get<double>(*v, name, "a number");
}

std::string Attrs::s(std::string_view name, std::string_view missing) const {
  const AttrValue* v = find(name);
  return v ? get<std::string>(*v, name, "a string") : std::string(missing);
}

std::vector<int64_t> Attrs::ints(std::string_view name, std::vector<int64_t> missing) const {
  const AttrValue* v = find(name);
  return v ? get<std::vector<int64_t>>(*v, name, "a list of integers") : missing;
}

std::vector<double> Attrs::floats(std::string_view name, std::vector<double> missing) const {
  const AttrValue* v = find(name);
  return v ? get<std::vector<double>>(*v, name, "a list of numbers") : missing;
}

std::vector<std::string> Attrs::strings(std::string_view name) const {
  const AttrValue* v = find(name);
  return v ? get<std::vector<std::string>>(*v, name, "a list of strings")
           : std::vector<std::string>{};
}

}  // namespace ortrain
