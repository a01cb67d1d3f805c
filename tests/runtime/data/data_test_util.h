// Shared by the tests of runtime/data: a scratch folder, whole files as strings, the Python that
// has numpy (for outside witnesses), and running one of the reader's error tables.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "graph/error.h"

namespace ortrain::test {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ortrain-XXXXXX").string();
    if (!mkdtemp(pattern.data())) std::abort();
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::span<const std::byte> as_span(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

// The message of the Error that f() throws; "" if it throws none. Any other exception passes.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Runs `script` (Python source) with the arguments; true if it exits with 0.
inline bool run_python(const ScratchFolder& folder, const std::string& script,
                       const std::string& arguments) {
  const char* python = std::getenv("ORTRAIN_PYTHON");
  write_file(folder / "script.py", script);
  const std::string command =
      std::string(python ? python : "python3") + " " + folder / "script.py" + " " + arguments;
  return std::system(command.c_str()) == 0;
}
// Is `module` importable? Tests skip with a reason where it is not.
inline bool python_has(const ScratchFolder& folder, const std::string& module) {
  return run_python(folder, "import " + module, "2>/dev/null");
}

}  // namespace ortrain::test
