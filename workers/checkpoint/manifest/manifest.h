// MANIFEST.json, which names a checkpoint's files, and LATEST, which names the checkpoint to use.  FORMAT.md defines
// both byte by byte.  Pure: texts in, texts out.  Decoding compares a text with its own checksum first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  bool operator==(const FileRecord& other) const = default;
};

// As ranks send them to the leader.  InvalidArgument: not such a text.
std::string EncodeFileRecords(absl::Span<const FileRecord> records);
absl::StatusOr<std::vector<FileRecord>> DecodeFileRecords(absl::string_view text);

// The facts that a bit-exact resume compares; not interpreted here.
struct SavedBy {
  int64_t world = 1;           // ranks
  int64_t threads = 1;         // of each
  std::string isa = {};        // "avx512_amx" …
  std::string software = {};   // version
  std::string data_type = {};  // the model's: "bf16" …
};

struct Manifest {
  int64_t step = 0;
  int64_t attempt = 0;  // of the job: earlier attempts that still run are refused
  SavedBy saved_by = {};
  std::vector<FileRecord> files = {};  // by name, each once
};

std::string EncodeManifest(const Manifest& manifest);
// Errors: DataLoss for a text that is cut or changed, FailedPrecondition "format version V, this program reads version
// 1" for another version, InvalidArgument for invalid contents.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view text);

struct Latest {
  std::string folder;
  std::string manifest_sha256;
};
std::string EncodeLatest(const Latest& latest);
absl::StatusOr<Latest> DecodeLatest(absl::string_view text);  // DataLoss

// scheduler/jobs/checkpoint_names.h: "step-00001000"; at least eight digits.
std::string StepFolder(int64_t step);
// -1: not a step's folder, or one that is being written ("step-00001000.tmp-…").
int64_t StepOfFolder(absl::string_view name);

}  // namespace switchyard::checkpoint
