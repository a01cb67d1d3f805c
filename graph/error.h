// Errors of ortrain.
//
// Error is thrown for everything that the user, the files or the machine can cause; it is caught
// once, in main. The message says what, where, expected, got and what to do. ORTRAIN_CHECK is for
// broken invariants of our own and is never reachable from input bytes. A kernel or pattern that
// does not apply returns a reason, it does not throw.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace ortrain {

enum class ErrorCode : uint8_t {
  kUsage,        // command line or recipe (exit 2)
  kModel,        // the ONNX file is malformed
  kUnsupported,  // a well-formed model asks for what we cannot do
  kShape,        // shapes or dtypes do not fit
  kData,         // the data set is malformed or does not fit the model
  kIo,           // files, disks, permissions
  kMemory,       // does not fit in memory (exit 3)
  kNumeric,      // NaN or infinite loss
};

// Exit status of the process for an error code (docs: README, section "Exit codes").
constexpr int exit_status(ErrorCode code) {
  return code == ErrorCode::kUsage ? 2 : code == ErrorCode::kMemory ? 3 : 1;
}

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }
  // The same error with "context: " put before the message; used on the way up.
  Error within(std::string_view context) const {
    return Error(code_, std::string(context) + ": " + what());
  }

 private:
  ErrorCode code_;
};

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
template <class T>
requires std::is_arithmetic_v<T>
void append(std::string& out, T number) { out += std::to_string(number); }

// cat("dim ", 3, " of ", name): the pieces as one string.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, cat(parts...));
}

// Prints file, line and text, then aborts. `text` may be any string expression.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& text);

#define ORTRAIN_CHECK(condition, text) \
  ((condition) ? (void)0 : ::ortrain::check_failed(__FILE__, __LINE__, #condition, text))

}  // namespace ortrain
