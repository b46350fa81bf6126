// How the bytes of an expert file lie (expert_file.h says what it is): its header, where its experts are, its name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/moe/experts/expert_file.h"

namespace switchyard::moe {

inline constexpr char kExpertFilePrefix[] = "switchyard-experts-";
inline constexpr int64_t kExpertTableAt = 4096;  // the checksums of experts and their pieces

struct ExpertFileHeader {
  static constexpr char kMagic[9] = "SYEXPT02";
  static constexpr uint64_t kComplete = 0x6574656c706d6f43u;  // "Complete"

  char magic[8];
  uint64_t state;
  std::atomic<int64_t> done;  // read by those who wait
  std::atomic<int64_t> builder;
  uint64_t checksum;
  // The checksum covers these fields and the table.
  int64_t file_bytes, data, stride, experts, identity_bytes;
  char identity[kExpertTableAt - 80];
};
static_assert(sizeof(ExpertFileHeader) == kExpertTableAt && offsetof(ExpertFileHeader, file_bytes) == 40 &&
              offsetof(ExpertFileHeader, identity) == 80);

// What follows from the options.
struct ExpertFileFormat {
  explicit ExpertFileFormat(const ExpertFileOptions& options);

  // Why a header, and the table behind it, are not this file's; empty if they are.
  std::string Problem(const char* memory) const;
  // Writes all of the header but its state.
  void WriteHeader(char* memory) const;
  // Writes the checksums of the expert of this index into the table.
  void WriteSums(int64_t index, const char* expert, char* memory) const;
  // Whether the table has the expert's checksum.
  bool HasSum(int64_t index, const char* expert, const char* memory) const;
  const char* Expert(int64_t index, const char* memory) const { return memory + layout.data + index * layout.stride; }

  ExpertFileLayout layout;
  int64_t experts = 0;       // of all layers
  int64_t mapped_bytes = 0;  // all of the file, or what is before its experts
  std::string identity, path;

 private:
  int64_t BytesOf(int64_t index) const { return forms_.of(static_cast<int>(index / layout.num_experts)).bytes; }
  int64_t table_bytes() const { return experts * (1 + layout.pieces) * 8; }
  uint64_t HeaderChecksum(const char* memory) const;

  ExpertForms forms_;
};

// The mapped part of a file.
class ExpertFileMapping {
 public:
  static absl::StatusOr<ExpertFileMapping> Map(const ExpertFileFormat& format, int fd, bool writable);
  ExpertFileMapping() = default;
  ExpertFileMapping(ExpertFileMapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
  ExpertFileMapping& operator=(ExpertFileMapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ExpertFileMapping();

  char* get() const { return memory_; }
  int64_t bytes() const { return bytes_; }
  ExpertFileHeader* header() const { return reinterpret_cast<ExpertFileHeader*>(memory_); }

 private:
  char* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// The error of a system call on an expert file, by errno.
absl::Status ExpertFileError(const std::string& path, const std::string& what);
// Building or waiting was ended by the caller's Progress.
absl::Status ExpertFileStopped(const std::string& path, int64_t bytes_done);

}  // namespace switchyard::moe
