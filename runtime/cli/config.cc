// TOML recipes, the command line (through CLI11) and --print-config.
#include "runtime/cli/config.h"

// Without NDEBUG toml++ asserts where it goes on to report malformed input ("[[=").
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/impl/preprocessor.h>
// Letters beyond ASCII outside of strings reach a point that toml++ 3 believes unreachable
// (is_non_ascii_horizontal_whitespace, U+00A1 to U+0499): the answer there is no.
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE return {}
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/error.h"
#include "runtime/cli/flags.h"

namespace ortrain::cli {

Config::Config() {
  for (const Flag& f : flag_table()) settings_[f.name] = {f.fallback, "default"};
}

const Config::Setting& Config::at(const std::string& key) const {
  const auto it = settings_.find(key);
  ORTRAIN_CHECK(it != settings_.end(), "no flag called " + key);
  return it->second;
}

void Config::set(const std::string& key, const std::string& value, const std::string& origin) {
  const Flag* flag = find_flag(key);
  if (!flag) {
    const std::string nearest = nearest_flag(key);
    fail(ErrorCode::kUsage, origin, ": unknown setting '", key, "'",
         nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
  }
  const std::string wrong = value.empty() ? "" : check_value(*flag, value);
  if (!wrong.empty()) fail(ErrorCode::kUsage, origin, ": ", key, " = '", value, "': ", wrong);
  settings_[key] = {value, origin};
}

namespace {
// Comma-separated paths, each taken from `folder` when relative; NAME=PATH keeps its name.
std::string relative_to(const std::string& folder, const std::string& paths) {
  std::string out;
  std::istringstream in(paths);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t eq = part.find('=');
    const std::string name = eq == std::string::npos ? "" : part.substr(0, eq + 1);
    const std::filesystem::path path = eq == std::string::npos ? part : part.substr(eq + 1);
    const bool as_is = path.is_absolute() || folder.empty() || path == "-";
    out += (out.empty() ? "" : ",") + name +
           (as_is ? path : (folder / path).lexically_normal()).string();
  }
  return out;
}

std::string text_of(const toml::node& node, const std::string& where, const std::string& key) {
  if (const auto* s = node.as_string()) return s->get();
  if (const auto* i = node.as_integer()) return std::to_string(i->get());
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  if (const auto* f = node.as_floating_point()) {
    char buffer[64];
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, f->get()).ptr);
  }
  if (const auto* list = node.as_array()) {
    std::string out;
    for (const toml::node& item : *list) {
      if (item.is_array() || item.is_table()) break;
      out += (out.empty() ? "" : ",") + text_of(item, where, key);
    }
    return out;
  }
  fail(ErrorCode::kUsage, where, ": ", key,
       " should be a string, a number, true/false or a list of them");
}

// A value of such a table; lists are written a/b/c there, but for groups.
std::string part_of(const toml::node& node, const std::string& where, const std::string& key,
                    bool group) {
  std::string text = text_of(node, where, key);
  if (!group && node.is_array()) std::replace(text.begin(), text.end(), ',', '/');
  return text;
}

// Parts of a repeatable setting: a string each, or a table: [[group]] params = "REGEX", lr = 1e-4.
std::string parts_of(const toml::node& node, const std::string& where, const std::string& key) {
  const toml::array* list = node.as_array();
  if (!list) return text_of(node, where, key);
  std::string out;
  for (const toml::node& item : *list) {
    out += out.empty() ? "" : ";";
    const toml::table* table = item.as_table();
    if (!table) {
      out += text_of(item, where, key);
      continue;
    }
    const bool group = key == "group";
    const char* head = group ? "params" : "input";
    const toml::node* params = table->get(head);
    if (!params || !params->is_string())
      fail(ErrorCode::kUsage, where, ": a table of '", key, "' needs ", head, " = \"",
           group ? "REGEX" : "NAME", "\"");
    out += text_of(*params, where, key);
    char before = ':';
    for (const auto& [name, value] : *table) {
      if (name == head) continue;
      out += cat(std::string(1, before), name.str(), "=", part_of(value, where, key, group));
      before = ',';
    }
  }
  return out;
}
}  // namespace

void Config::read_toml(const std::string& text, const std::string& where,
                       const std::string& folder) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& e) {
    fail(ErrorCode::kUsage, where, ", line ", e.source().begin.line, ": ", e.description());
  }
  for (const auto& [k, node] : table) {
    std::string key(k.str());
    std::replace(key.begin(), key.end(), '_', '-');
    const Flag* flag = find_flag(key);
    std::string value = flag && flag->type == FlagType::kParts ? parts_of(node, where, key)
                                                               : text_of(node, where, key);
    if (flag && !flag->in_recipe)
      fail(ErrorCode::kUsage, where, ": '", key, "' belongs on the command line, not in a recipe");
    if (flag && flag->type == FlagType::kPath) value = relative_to(folder, value);
    set(key, value, where);
  }
}

void Config::read_toml_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::kUsage, "cannot read the recipe ", path);
  std::stringstream text;
  text << in.rdbuf();
  read_toml(text.str(), path, std::filesystem::path(path).parent_path().string());
}

const std::string& Config::text(const std::string& key) const { return at(key).value; }
const std::string& Config::origin(const std::string& key) const { return at(key).origin; }

namespace {
template <class T>
T parsed(const std::string& text) {
  T v = 0;
  std::from_chars(text.data(), text.data() + text.size(), v);
  return v;
}
}  // namespace
int64_t Config::integer(const std::string& key) const { return parsed<int64_t>(text(key)); }
double Config::number(const std::string& key) const { return parsed<double>(text(key)); }

std::vector<std::string> Config::list(const std::string& key) const {
  std::vector<std::string> out(1);
  int inside = 0;  // brackets, of a regex
  for (char c : text(key)) {
    inside += c == '{' || c == '[' || c == '(' ? 1 : c == '}' || c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && inside <= 0)
      out.emplace_back();
    else
      out.back() += c;
  }
  std::erase(out, "");
  return out;
}

namespace {
// key = value, as TOML
std::string assignment(const std::string& key, const std::string& value) {
  const FlagType type = find_flag(key)->type;
  if (type == FlagType::kInt || type == FlagType::kNumber || type == FlagType::kSwitch)
    return key + " = " + value;
  std::string quoted = key + " = \"";
  for (char c : value)
    quoted += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
  return quoted + '"';
}
}  // namespace

std::string Config::print() const { return listing(false); }
std::string Config::recipe() const { return listing(true); }

std::string Config::listing(bool as_file) const {
  const std::string here = as_file ? std::filesystem::current_path().string() : "";
  std::string out;
  for (const Flag& f : flag_table()) {
    if (!f.in_recipe) continue;
    if (!has(f.name)) {
      out += cat("# ", f.name, " is not set\n");
      continue;
    }
    const bool path = f.type == FlagType::kPath;
    const std::string line =
        (as_file && is_default(f.name) ? "# " : "") +
        assignment(f.name, path ? relative_to(here, text(f.name)) : text(f.name));
    out += line + std::string(line.size() < 40 ? 40 - line.size() : 1, ' ') + "# " +
           origin(f.name) + "\n";
  }
  return out;
}

std::string Config::print_portable() const {
  std::string out;
  for (const Flag& f : flag_table())
    if (f.in_recipe && f.lasting && f.type != FlagType::kPath && has(f.name) && !is_default(f.name))
      out += assignment(f.name, text(f.name)) + "\n";
  return out;
}

CommandLine parse_command_line(int argc, const char* const* argv,
                               const std::vector<std::string>& commands) {
  CommandLine out;
  CLI::App app("ortrain");
  app.set_help_flag();  // help is printed by us, from the flag table
  app.allow_extras();
  app.add_flag("-h,--help", out.help);
  app.add_flag("--version", out.version);
  std::map<std::string, std::string> values;
  std::map<std::string, bool> switches;
  std::map<std::string, CLI::Option*> options;
  for (const Flag& f : flag_table()) {
    const std::string name = cat("--", f.name);
    if (f.type == FlagType::kSwitch)
      options[f.name] = app.add_flag(name, switches[f.name]);
    else if (f.type == FlagType::kParts)
      options[f.name] = app.add_option(name, values[f.name])->join(';');
    else
      options[f.name] = app.add_option(name, values[f.name])
                            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  // Some flags may stand alone.
  std::vector<std::string> spelled;
  for (int i = 0; i < argc; ++i) {
    spelled.emplace_back(argv[i]);
    const Flag* f =
        spelled.back().starts_with("--") ? find_flag(spelled.back().substr(2)) : nullptr;
    if (!f || !*f->alone) continue;
    if (i + 1 == argc || !check_value(*f, argv[i + 1]).empty())
      spelled.back() += cat("=", f->alone);
  }
  std::vector<const char*> args;
  for (const std::string& s : spelled) args.push_back(s.c_str());
  try {
    app.parse(argc, args.data());
  } catch (const CLI::ParseError& e) {
    fail(ErrorCode::kUsage, e.what());
  }
  for (const Flag& f : flag_table())
    if (options[f.name]->count() > 0)
      out.flags.emplace_back(f.name, f.type == FlagType::kSwitch
                                         ? (switches[f.name] ? "true" : "false")
                                         : values[f.name]);
  for (const std::string& extra : app.remaining()) {
    if (extra.size() > 1 && extra[0] == '-') {
      const std::string name = extra.substr(0, extra.find('='));
      const size_t start = name.find_first_not_of('-');
      const std::string nearest =
          start == std::string::npos ? "" : nearest_flag(name.substr(start));
      fail(ErrorCode::kUsage, "unknown flag ", name,
           nearest.empty() ? "; see ortrain --help" : "; did you mean --" + nearest + "?");
    }
    out.positional.push_back(extra);
  }
  if (!out.positional.empty() &&
      std::find(commands.begin(), commands.end(), out.positional[0]) != commands.end()) {
    out.command = out.positional[0];
    out.positional.erase(out.positional.begin());
  }
  return out;
}

}  // namespace ortrain::cli
