// TensorBoard's event file: scalars, histograms and pictures of a run.
//
// A file is a sequence of records (length, masked CRC-32C of it, payload, masked CRC-32C of that),
// each holding one tensorflow.Event in protobuf's wire format, of which only the few fields that
// are needed are written here. Promises: what flush() returned from is in the file; a killed run
// leaves whole records before a last one that readers skip. Errors: kIo.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace ortrain::cli {

class EventFile {
 public:
  // FOLDER/events.out.tfevents.SECONDS.HOST.PID. A run that goes on after `step` makes a new file,
  // which hides later steps of older ones.
  EventFile(const std::string& folder, int64_t step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void scalar(const std::string& tag, int64_t step, double value);
  void histogram(const std::string& tag, int64_t step, std::span<const float> values);
  void picture(const std::string& tag, int64_t step, int width, int height, int channels,
               const std::string& png);
  void text(const std::string& tag, int64_t step, const std::string& markdown);
  void flush();
  const std::string& path() const { return path_; }

 private:
  void summary(int64_t step, const std::string& value);
  void record(const std::string& event);
  std::string path_;
  std::FILE* file_ = nullptr;
};

// CRC-32C (Castagnoli), as RFC 3720 has it.
uint32_t crc32c(std::span<const uint8_t> bytes);

}  // namespace ortrain::cli
