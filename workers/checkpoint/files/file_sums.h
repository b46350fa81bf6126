// Checksums of a file in a manifest: SHA-256 of all bytes (as sha256sum prints it) and CRC-32C of every block, which
// shows where damage is.  The SHA-256 is also hard to forge, but nothing here is signed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::checkpoint {

inline constexpr int64_t kSummedBlockBytes = 1 << 20;

std::string Sha256Hex(absl::string_view bytes);  // 64 digits
inline std::string CrcHex(uint32_t crc) { return absl::StrCat(absl::Hex(crc, absl::kZeroPad8)); }

struct FileSums {
  int64_t bytes = 0;
  std::string sha256;            // 64 hex digits
  std::vector<uint32_t> crc32c;  // of each block of kSummedBlockBytes; the last may be shorter

  bool operator==(const FileSums& other) const = default;
};

// Sums a file block by block, as it is written or read.
class SumBlocks {
 public:
  SumBlocks();
  ~SumBlocks();
  // REQUIRES: every block but the last has kSummedBlockBytes.
  void Add(absl::string_view block);
  FileSums Finish();  // once, at the end

 private:
  struct Sha;
  std::unique_ptr<Sha> sha_;
  FileSums sums_;
};

// Writes a new file through a buffer of one block and sums it.
class SummedFile {
 public:
  static absl::StatusOr<std::unique_ptr<SummedFile>> Create(FileSystem* files, const std::string& path);
  absl::Status Append(absl::string_view bytes);
  // Flushes and syncs.  Once.
  absl::StatusOr<FileSums> Finish();

 private:
  explicit SummedFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  absl::Status Flush();

  const std::unique_ptr<File> file_;
  std::string block_;
  SumBlocks sums_;
};

// Called between blocks of long reads, with the bytes read since the last call.  An error, which must be Cancelled,
// ends the read.
using OnRead = std::function<absl::Status(int64_t bytes)>;

// Reads the file and compares.  DataLoss "<path>: damaged at bytes [a, b): CRC-32C X, the manifest says Y", or "<path>:
// S bytes, the manifest says M".
absl::Status CheckSums(const File& file, const std::string& path, const FileSums& expected,
                       const OnRead& on_read = nullptr);

}  // namespace switchyard::checkpoint
