// What a checkpoint consists of: MANIFEST.json, and LATEST, which says which checkpoint is to be used.  FORMAT.md has
// both byte by byte.  Pure: texts in, texts out.
//
// Neither text is believed before its own checksum was compared, so a flipped bit in one is found, not read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/file_sums.h"

namespace switchyard::checkpoint {

inline constexpr char kManifestName[] = "MANIFEST.json";
inline constexpr char kLatestName[] = "LATEST";
inline constexpr int kCheckpointVersion = 1;
inline constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxLatestBytes = 4096;

struct FileRecord {
  std::string name;
  FileSums sums;
  bool operator==(const FileRecord& other) const { return name == other.name && sums == other.sums; }
};

// As ranks send them to the leader.  InvalidArgument for a text that is none.
std::string EncodeFileRecords(absl::Span<const FileRecord> records);
absl::StatusOr<std::vector<FileRecord>> DecodeFileRecords(absl::string_view text);

// What a resume that is to be bit-exact compares; in words, not interpreted here.
struct SavedBy {
  int64_t world = 1;           // ranks
  int64_t threads = 1;         // of each
  std::string isa = {};        // "avx512_amx" …
  std::string software = {};   // version
  std::string data_type = {};  // the model's: "bf16" …
};

struct Manifest {
  int64_t step = 0;
  int64_t attempt = 0;  // of the job: fences an earlier one that still runs
  SavedBy saved_by = {};
  std::vector<FileRecord> files = {};  // by name, each once
};

std::string EncodeManifest(const Manifest& manifest);
// Errors: DataLoss for a text that is cut or changed, FailedPrecondition "format version V, this program reads 1" for
// a newer one, InvalidArgument for one that is whole but says what it may not.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view text);

struct Latest {
  std::string folder;
  std::string manifest_sha256;
};
std::string EncodeLatest(const Latest& latest);
absl::StatusOr<Latest> DecodeLatest(absl::string_view text);  // DataLoss

// "step-00001000"; at least eight digits.
std::string StepFolder(int64_t step);
// -1 for what is no step's folder, as for one that is being written ("step-00001000.tmp-…").
int64_t StepOfFolder(absl::string_view name);

}  // namespace switchyard::checkpoint
