#include "workers/checkpoint/manifest/base_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/files/posix_file_system.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/checkpoint/manifest/find_checkpoint.h"
#include "workers/checkpoint/safetensors/block_check.h"

namespace switchyard::checkpoint {
namespace {

constexpr int kMaxForeignDepth = 1024;

bool IsRead(absl::string_view name) { return !absl::StartsWith(name, "optimizer-") && name != "trainer_state.json"; }

absl::Status CheckFile(const ModelDir& dir, const FileRecord& record, const OnRead& on_read) {
  const absl::StatusOr<int> fd = dir.OpenFile(record.name);
  if (absl::IsNotFound(fd.status())) {
    return absl::DataLossError(
        absl::StrCat(record.name, ": is not there, the manifest says ", record.sums.bytes, " bytes"));
  }
  RETURN_IF_ERROR(fd.status());
  return CheckSums(*FileOfDescriptor(*fd, record.name), record.name, record.sums, on_read);
}

// Other programs write files of that name, too; a damaged one of ours must not pass as foreign.
bool IsForeign(absl::string_view manifest) {
  return !absl::StrContains(manifest, "\"switchyard-checkpoint\"") &&
         !absl::StrContains(manifest, "\"manifest_sha256\"") &&
         ParseStrictJson(kManifestName, manifest, LenientJson(kMaxForeignDepth)).ok();
}

bool IsWeights(absl::string_view name) { return absl::EndsWith(name, ".safetensors"); }

// The records of the files that are read; none if the manifest is not ours.
absl::StatusOr<std::optional<Manifest>> ReadOwnManifest(const ModelDir& dir) {
  const absl::StatusOr<std::string> text = dir.ReadSmallFile(kManifestName, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  RETURN_IF_ERROR(text.status());
  if (IsForeign(*text)) return std::nullopt;
  absl::StatusOr<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok()) return InFile(kManifestName, manifest.status());
  const auto is_single = [](const FileRecord& record) { return record.name == kSingleFile; };
  if (dir.Exists(kSingleFile) && std::none_of(manifest->files.begin(), manifest->files.end(), is_single)) {
    return absl::DataLossError(absl::StrCat(kSingleFile, ": is there, the manifest does not name it"));
  }
  std::erase_if(manifest->files, [](const FileRecord& record) { return !IsRead(record.name); });
  return *std::move(manifest);
}

absl::Status CheckFiles(const ModelDir& dir, const OnRead& on_read) {
  ASSIGN_OR_RETURN(const std::optional<Manifest> manifest, ReadOwnManifest(dir));
  if (!manifest.has_value()) return absl::OkStatus();
  for (const FileRecord& record : manifest->files) RETURN_IF_ERROR(CheckFile(dir, record, on_read));
  return absl::OkStatus();
}

// The newest complete step before that of `path`, judged by the sizes of its files; "": none, or the path is no step's.
// A hint: contents are not read.
std::string OlderComplete(const RootDir& root, absl::string_view path) {
  const size_t slash = path.rfind('/');
  const int64_t step = StepOfFolder(slash == absl::string_view::npos ? path : path.substr(slash + 1));
  if (step < 0) return "";
  const std::string job(slash == absl::string_view::npos ? "." : path.substr(0, slash));
  // Refuses a link to a place outside the root.
  const absl::StatusOr<int> fd = root.OpenFolder(job);
  if (!fd.ok()) return "";
  close(*fd);
  const absl::StatusOr<std::unique_ptr<FileSystem>> files = OpenPosixFileSystem(absl::StrCat(root.path(), "/", job));
  if (!files.ok()) return "";
  const absl::StatusOr<std::vector<int64_t>> steps = ListSteps(files->get());
  if (!steps.ok()) return "";
  for (const int64_t other : *steps) {
    if (other >= step) continue;
    if (OpenCheckpoint(files->get(), StepFolder(other)).ok()) return StepFolder(other);
  }
  return "";
}

absl::StatusOr<std::string> SumOf(const WeightsFile& file, const OnRead& on_read) {
  SumBlocks sums;
  std::string block;
  for (int64_t begin = 0; begin < file.size(); begin += kSummedBlockBytes) {
    block.resize(static_cast<size_t>(std::min(kSummedBlockBytes, file.size() - begin)));
    RETURN_IF_ERROR(file.Read(begin, static_cast<int64_t>(block.size()), block.data()));
    sums.Add(block);
    if (on_read) RETURN_IF_ERROR(on_read(static_cast<int64_t>(block.size())));
  }
  return sums.Finish().sha256;
}

}  // namespace

absl::Status CheckFinished(absl::string_view path) {
  for (const absl::string_view folder : absl::StrSplit(path, '/')) {
    const size_t end = folder.find(kUnfinished);
    if (end == absl::string_view::npos || StepOfFolder(folder.substr(0, end)) < 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", folder, " is of a save that is not finished, or of a checkpoint that is being removed; a whole one",
        " is in a folder named as ", folder.substr(0, end)));
  }
  return absl::OkStatus();
}

absl::Status CheckBaseFolder(const RootDir& root, const std::string& path, const ModelDir& dir, const OnRead& on_read) {
  const absl::Status checked = CheckFiles(dir, on_read);
  if (!absl::IsDataLoss(checked)) return checked;
  const std::string older = OlderComplete(root, path);
  if (older.empty()) return checked;
  return absl::DataLossError(absl::StrCat(checked.message(), "; ", older, " of the same job is complete"));
}

absl::StatusOr<std::string> ChecksumOfWeights(const ModelDir& dir, const OnRead& on_read) {
  std::string sums;
  ASSIGN_OR_RETURN(const std::optional<Manifest> manifest, ReadOwnManifest(dir));
  if (manifest.has_value()) {
    for (const FileRecord& record : manifest->files) {
      if (IsWeights(record.name)) absl::StrAppend(&sums, record.name, " ", record.sums.sha256, "\n");
    }
    return Sha256Hex(sums);
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  for (const std::unique_ptr<WeightsFile>& file : checkpoint.files()) {
    ASSIGN_OR_RETURN(const std::string sum, SumOf(*file, on_read));
    absl::StrAppend(&sums, file->name(), " ", sum, "\n");
  }
  return Sha256Hex(sums);
}

absl::StatusOr<std::optional<Manifest>> CheckServedFolder(const ModelDir& dir) {
  ASSIGN_OR_RETURN(std::optional<Manifest> manifest, ReadOwnManifest(dir));
  if (!manifest.has_value()) return manifest;
  for (const FileRecord& record : manifest->files) {
    if (!IsWeights(record.name)) RETURN_IF_ERROR(CheckFile(dir, record, nullptr));
  }
  return manifest;
}

absl::Status ExpectManifest(const Manifest& manifest, const Checkpoint& checkpoint) {
  for (const std::unique_ptr<WeightsFile>& file : checkpoint.files()) {
    const auto record = std::find_if(manifest.files.begin(), manifest.files.end(),
                                     [&](const FileRecord& each) { return each.name == file->name(); });
    if (record == manifest.files.end()) {
      return absl::DataLossError(absl::StrCat(file->name(), ": has weights, the manifest does not name it"));
    }
    if (record->sums.bytes != file->size()) {
      return absl::DataLossError(
          absl::StrCat(file->name(), ": ", file->size(), " bytes, the manifest says ", record->sums.bytes));
    }
    file->set_block_sums(record->sums.crc32c);
    RETURN_IF_ERROR(BlockCheck(file.get()).CheckHeader());
  }
  for (const FileRecord& record : manifest.files) {
    const auto is_it = [&](const std::unique_ptr<WeightsFile>& file) { return file->name() == record.name; };
    if (!IsWeights(record.name) || std::any_of(checkpoint.files().begin(), checkpoint.files().end(), is_it)) continue;
    return absl::DataLossError(absl::StrCat(record.name, ": the manifest names it, the index of the weights does not"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
