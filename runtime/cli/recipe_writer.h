// The recipe that `ortrain init` writes: settings with reasons, alternatives switched off, text.
//
// Every choice is a setting of the context at once, so that what is looked at next sees it; what
// the command line or the model's own recipe says stands. Promises: print() is TOML that
// read_toml() accepts, paths relative to the recipe's folder; a line "#key = value" (no blank) is a
// setting that is accepted when the '#' is taken away.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cli/commands.h"

namespace ortrain::cli {

class RecipeWriter {
 public:
  RecipeWriter(Context& c, std::string file) : c_(c), file_(std::move(file)) {}
  Context& context() { return c_; }

  // A setting; false where it is given already, and that stands.
  bool choose(const std::string& key, const std::string& value, const std::string& why);
  // An alternative, switched off.
  void offer(const std::string& key, const std::string& value, const std::string& why);
  // The same for a part of --prepare; nothing where --prepare is given.
  void prepare(const std::string& array, const std::string& part, const std::string& value,
               const std::string& why);
  void offer_prepare(const std::string& array, const std::string& part, const std::string& value,
                     const std::string& why);
  // One fact for the terminal and the head of the recipe.
  void tell(const std::string& topic, const std::string& text) { told_.emplace_back(topic, text); }

  std::string facts(const std::string& before) const;  // what was told, a line each
  std::string print() const;

 private:
  struct Line {
    std::string key, value, why;
    bool on = true;
  };
  struct Array {
    std::string name;
    std::vector<Line> parts;
  };
  Array& array(const std::string& name);
  void apply_prepare();
  Context& c_;
  const std::string file_;
  std::map<std::string, std::string> why_;
  std::vector<Line> offers_;
  std::vector<Array> prepared_;
  std::vector<std::pair<std::string, std::string>> told_;
};

}  // namespace ortrain::cli
