// Attrs: the attributes of a node by name: int, float, string, or a list of them. Kept sorted, so
// that two equal sets compare equal and print the same. Numbers keep full precision (floats are
// held as double).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ortrain {

using AttrValue = std::variant<int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items) {
    for (const auto& [k, v] : items) set(k, v);
  }
  void set(const std::string& name, AttrValue value);
  void erase(std::string_view name);
  const AttrValue* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // The value, or the default when absent. Throws Error(kModel) when the attribute has another type
  // (an int is accepted where a float is asked for).
  int64_t i(std::string_view name, int64_t missing) const;
  double f(std::string_view name, double missing) const;
  std::string s(std::string_view name, std::string_view missing) const;
  std::vector<int64_t> ints(std::string_view name, std::vector<int64_t> missing = {}) const;
  std::vector<double> floats(std::string_view name, std::vector<double> missing = {}) const;
  std::vector<std::string> strings(std::string_view name) const;
  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }
  bool empty() const { return items_.empty(); }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, AttrValue>> items_;  // sorted by name
};

}  // namespace ortrain
