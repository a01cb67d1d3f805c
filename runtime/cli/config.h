// Config: the value of every flag and where it came from.
//
// Read in this order, later wins: built-in defaults, the model's `ortrain.recipe` metadata,
// MODEL.toml beside the model (for a run that goes on, its recipe.toml instead of these two),
// --config FILE, the command line. Paths in a file are relative to
// that file, paths on the command line to the working folder. Unknown keys, wrong types and
// out-of-range values are Error(kUsage) that name the source and the nearest key.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ortrain::cli {

class Config {
 public:
  Config();  // defaults of the flag table
  // One setting; `origin` is shown by print() ("--lr", "model.toml", "default").
  void set(const std::string& key, const std::string& value, const std::string& origin);
  // TOML text; relative paths in it are taken from `folder`.
  void read_toml(const std::string& text, const std::string& where, const std::string& folder);
  void read_toml_file(const std::string& path);

  bool has(const std::string& key) const { return !text(key).empty(); }
  const std::string& text(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool on(const std::string& key) const { return text(key) == "true"; }
  // Comma separated; commas inside brackets belong to the part (a{1,2}).
  std::vector<std::string> list(const std::string& key) const;
  const std::string& origin(const std::string& key) const;
  bool is_default(const std::string& key) const { return origin(key) == "default"; }

  // All recipe settings as TOML with the origin of each in a comment.
  std::string print() const;
  // The same as a recipe that can be read anywhere on this machine: paths are absolute, what is
  // default stands in comments (some defaults depend on other settings).
  std::string recipe() const;
  // Only what differs from the defaults and names no file of this machine: what a model may carry.
  std::string print_portable() const;

 private:
  std::string listing(bool as_file) const;
  struct Setting {
    std::string value, origin;
  };
  const Setting& at(const std::string& key) const;
  std::map<std::string, Setting> settings_;
};

// What the command line said, before any file is read.
struct CommandLine {
  std::string command;                                     // "train", "inspect", ...; "" = none
  std::vector<std::string> positional;                     // MODEL, or a checkpoint
  std::vector<std::pair<std::string, std::string>> flags;  // name, value
  bool help = false, version = false;
};
// Throws Error(kUsage) with the nearest flag for an unknown one.
CommandLine parse_command_line(int argc, const char* const* argv,
                               const std::vector<std::string>& commands);

}  // namespace ortrain::cli
