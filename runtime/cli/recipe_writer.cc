// See recipe_writer.h.
#include "runtime/cli/recipe_writer.h"

#include <algorithm>
#include <filesystem>

#include "graph/error.h"
#include "runtime/cli/flags.h"
#include "runtime/cli/words.h"
#include "runtime/data/tokens.h"

namespace ortrain::cli {
namespace fs = std::filesystem;
namespace {

constexpr size_t kColumn = 34, kWide = 100;
constexpr const char* kInit = "init";

// Text of files (names of classes, columns) as TOML takes it in a comment: UTF-8 on one line.
std::string plain(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    uint32_t code = 0;
    if (!data::next_character(text, at, code) || code < 0x20 || code == 0x7f) {
      at = std::max(at, start + 1);
      out += '?';
    } else {
      out += text.substr(start, at - start);
    }
  }
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escape[8];
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A part of --prepare: a number, a list of numbers, true, or text.
std::string part_value(const std::string& value) {
  double v = 0;
  if (value == "true" || parse_number(value, v)) return value;
  std::string list;
  for (const std::string& word : split(value, '/')) {
    if (!parse_number(word, v)) return quoted(value);
    list += (list.empty() ? "" : ", ") + word;
  }
  return "[" + list + "]";
}

std::string setting_value(const Flag& flag, const std::string& value) {
  const bool bare = flag.type == FlagType::kInt || flag.type == FlagType::kNumber ||
                    flag.type == FlagType::kSwitch;
  return bare ? value : quoted(value);
}

// Comment lines of at most kWide columns.
std::string comment(const std::string& text, const std::string& before, const std::string& more) {
  std::string out, line = before;
  bool empty = true;
  for (const std::string& word : split(plain(text), ' ')) {
    if (!empty && line.size() + 1 + word.size() > kWide) {
      out += line + "\n";
      line = more;
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return out + line + "\n";
}

std::string line_of(const std::string& setting, const std::string& why) {
  if (why.empty()) return setting + "\n";
  const size_t pad = setting.size() < kColumn ? kColumn - setting.size() : 2;
  if (setting.size() + pad + 2 + why.size() <= kWide)
    return setting + std::string(pad, ' ') + "# " + plain(why) + "\n";
  return comment(why, "# ", "# ") + setting + "\n";
}

// Paths of the working folder as the recipe in `folder` names them.
std::string seen_from(const fs::path& folder, const std::string& paths) {
  std::string out;
  for (const std::string& part : split(paths, ',')) {
    const size_t equals = part.find('=');
    const std::string name = equals == std::string::npos ? "" : part.substr(0, equals + 1);
    const fs::path path = equals == std::string::npos ? part : part.substr(equals + 1);
    const fs::path here = fs::absolute(folder.empty() ? "." : folder).lexically_normal();
    out += (out.empty() ? "" : ",") + name +
           (path.is_absolute() ? path
                               : fs::absolute(path).lexically_normal().lexically_proximate(here))
               .string();
  }
  return out;
}

}  // namespace

bool RecipeWriter::choose(const std::string& key, const std::string& value,
                          const std::string& why) {
  if (!c_.config.is_default(key) && c_.config.origin(key) != kInit) return false;
  c_.config.set(key, value, kInit);
  why_[key] = why;
  return true;
}

void RecipeWriter::offer(const std::string& key, const std::string& value, const std::string& why) {
  if (c_.config.is_default(key)) offers_.push_back({key, value, why, false});
}

RecipeWriter::Array& RecipeWriter::array(const std::string& name) {
  for (Array& a : prepared_)
    if (a.name == name) return a;
  return prepared_.emplace_back(Array{name, {}});
}

void RecipeWriter::prepare(const std::string& name, const std::string& part,
                           const std::string& value, const std::string& why) {
  if (!c_.config.is_default("prepare") && c_.config.origin("prepare") != kInit) return;
  array(name).parts.push_back({part, value, why});
  apply_prepare();
}

void RecipeWriter::offer_prepare(const std::string& name, const std::string& part,
                                 const std::string& value, const std::string& why) {
  if (!c_.config.is_default("prepare") && c_.config.origin("prepare") != kInit) return;
  array(name).parts.push_back({part, value, why, false});
}

void RecipeWriter::apply_prepare() {
  std::string text;
  for (const Array& a : prepared_) {
    std::string parts;
    for (const Line& l : a.parts)
      if (l.on) parts += cat(parts.empty() ? "" : ",", l.key, "=", l.value);
    if (!parts.empty()) text += cat(text.empty() ? "" : "; ", a.name, ":", parts);
  }
  c_.config.set("prepare", text, kInit);
}

std::string RecipeWriter::facts(const std::string& before) const {
  std::string out;
  for (const auto& [topic, text] : told_) {
    const std::string head = topic + std::string(topic.size() < 9 ? 9 - topic.size() : 1, ' ');
    out += comment(text, before + head, before + std::string(9, ' '));
  }
  return out;
}

std::string RecipeWriter::print() const {
  const fs::path folder = fs::path(file_).parent_path();
  std::string out =
      comment(cat("Recipe of ", c_.model_path,
                  ", written by ortrain init. \"#key = value\" (no blank) is "
                  "a setting that is switched off; ortrain --help lists all of them."),
              "# ", "# ");
  out += "#\n" + facts("# ");
  std::string group;
  const auto head = [&](const Flag& f) {
    if (group != f.group) out += cat("\n# --- ", group = f.group, "\n");
  };
  for (const Flag& f : flag_table()) {
    if (!f.in_recipe) continue;
    const std::string key = f.name;
    const std::string& value = c_.config.text(key);
    const std::string& origin = c_.config.origin(key);
    if (!c_.config.is_default(key) && !value.empty() && !(key == "prepare" && origin == kInit)) {
      head(f);
      const auto why = why_.find(key);
      out += line_of(
          cat(key, " = ",
              setting_value(f, f.type == FlagType::kPath ? seen_from(folder, value) : value)),
          origin == kInit && why != why_.end() ? why->second : "given: " + origin);
    }
    for (const Line& l : offers_)
      if (l.key == key) {
        head(f);
        out += line_of(cat("#", key, " = ", setting_value(f, l.value)), l.why);
      }
  }
  if (!prepared_.empty())
    out += "\n# --- Preparation; tables come last, other settings belong above this line\n";
  for (const Array& a : prepared_) {
    const bool on = std::any_of(a.parts.begin(), a.parts.end(), [](const Line& l) { return l.on; });
    const char* off = on ? "" : "#";
    out += cat(off, "[[prepare]]\n", off, "input = ", quoted(a.name), "\n");
    for (const Line& l : a.parts)
      out += line_of(cat(l.on ? "" : "#", l.key, " = ", part_value(l.value)), l.why);
  }
  return out;
}

}  // namespace ortrain::cli
