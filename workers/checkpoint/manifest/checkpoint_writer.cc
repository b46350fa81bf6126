#include "workers/checkpoint/manifest/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/manifest/find_checkpoint.h"
#include "workers/checkpoint/safetensors/shard_table.h"

namespace switchyard::checkpoint {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr int64_t kMaxStep = 999'999'999'999;

std::string InFolder(const std::string& folder, absl::string_view name) { return absl::StrCat(folder, "/", name); }

}  // namespace

absl::StatusOr<std::unique_ptr<File>> LockCheckpoints(FileSystem* files, const std::string& holder) {
  ASSIGN_OR_RETURN(std::unique_ptr<File> lock, files->Open(kLockName, OpenMode::kLock));
  RETURN_IF_ERROR(lock->Append(holder));
  return lock;
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Open(FileSystem* files,
                                                                         const CheckpointWriterOptions& options,
                                                                         std::unique_ptr<File> lock) {
  if (options.keep_last < 1 || options.keep_every < 0 || options.attempt < 0) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoints: keep_last=", options.keep_last,
                                                   " must be from 1 on, keep_every=", options.keep_every,
                                                   " and attempt=", options.attempt, " from 0 on"));
  }
  if (!options.resumed_from.empty() && StepOfFolder(options.resumed_from) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.resumed_from, ": not the folder of a step"));
  }
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(files, options));
  writer->lock_ = std::move(lock);
  if (writer->lock_ == nullptr) {
    ASSIGN_OR_RETURN(writer->lock_, LockCheckpoints(files, options.holder));
  }
  RETURN_IF_ERROR(writer->Prepare());
  return writer;
}

absl::Status CheckpointWriter::Prepare() {
  RETURN_IF_ERROR(RemoveUnfinished());
  RETURN_IF_ERROR(CheckAttempt());
  const absl::StatusOr<Latest> latest = ReadLatest(files_);
  if (options_.resumed_from.empty()) {
    if (absl::IsNotFound(latest.status())) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(kLatestName, ": there are checkpoints here: go on from one of them, or give another directory"));
  }
  ASSIGN_OR_RETURN(std::string text,
                   ReadWholeFile(files_, InFolder(options_.resumed_from, kManifestName), kMaxManifestBytes));
  RETURN_IF_ERROR(DecodeManifest(text).status());
  const Latest wanted = {options_.resumed_from, Sha256Hex(text)};
  if (latest.ok() && EncodeLatest(*latest) == EncodeLatest(wanted)) return absl::OkStatus();
  return WriteLatest(wanted);
}

// A LATEST that cannot be read refuses no one; the lock does.
absl::Status CheckpointWriter::CheckAttempt() const {
  const absl::StatusOr<Latest> latest = ReadLatest(files_);
  if (!latest.ok()) return absl::OkStatus();
  const absl::StatusOr<Manifest> manifest = ReadManifest(files_, latest->folder, latest->manifest_sha256);
  if (!manifest.ok() || manifest->attempt <= options_.attempt) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoints: attempt ", options_.attempt, " is over: ", latest->folder, " is of attempt ", manifest->attempt));
}

absl::Status CheckpointWriter::RemoveUnfinished() const {
  ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, files_->List(""));
  for (const FolderEntry& entry : entries) {
    if (!absl::StrContains(entry.name, kUnfinished)) continue;
    RETURN_IF_ERROR(entry.is_folder ? RemoveFolder(entry.name) : files_->Remove(entry.name));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::RemoveFolder(const std::string& folder) const {
  ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, files_->List(folder));
  for (const FolderEntry& entry : entries) RETURN_IF_ERROR(files_->Remove(InFolder(folder, entry.name)));
  return files_->Remove(folder);
}

absl::StatusOr<std::string> CheckpointWriter::MoveAway(const std::string& folder) const {
  std::string away = absl::StrCat(folder, kUnfinished, "old-", options_.attempt);
  RETURN_IF_ERROR(files_->Rename(folder, away));
  RETURN_IF_ERROR(files_->SyncFolder(""));  // else a crash could keep the folder's name without its files
  return away;
}

absl::Status CheckpointWriter::Discard(const std::string& folder) const {
  ASSIGN_OR_RETURN(const bool kept, IsKept(folder));
  if (kept) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string away, MoveAway(folder));
  // Who keeps a checkpoint then looks whether it still has its name (server/jobs/job_folder.h).
  ASSIGN_OR_RETURN(const bool kept_meanwhile, IsKept(away));
  return kept_meanwhile ? files_->Rename(away, folder) : RemoveFolder(away);
}

absl::StatusOr<std::string> CheckpointWriter::Begin(int64_t step, int64_t needed_bytes) {
  if (step < 0 || step > kMaxStep) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoints: step ", step, " is not in [0, ", kMaxStep, "]"));
  }
  // Reads LATEST from the disk: after a failed Commit it may name that step.
  const absl::StatusOr<Latest> latest = ReadLatest(files_);
  if (!latest.ok() && !absl::IsNotFound(latest.status())) return latest.status();
  if (latest.ok() && StepOfFolder(latest->folder) >= step) {
    return absl::AlreadyExistsError(
        absl::StrCat("checkpoints: step ", step, ": ", kLatestName, " names ", latest->folder, " already"));
  }
  Abandon();
  RETURN_IF_ERROR(RemoveUnfinished());
  RETURN_IF_ERROR(CheckRoom(files_, StepFolder(step), needed_bytes));
  const std::string folder = absl::StrCat(StepFolder(step), kUnfinished, options_.attempt);
  RETURN_IF_ERROR(files_->MakeFolder(folder));
  step_ = step;
  folder_ = folder;
  return folder;
}

void CheckpointWriter::Abandon() {
  if (folder_.empty()) return;
  if (const absl::Status status = RemoveFolder(folder_); !status.ok()) {
    LogWarn("checkpoints: ", folder_, " is given up, but stays for now: ", status.message());
  }
  folder_.clear();
}

absl::Status CheckpointWriter::CheckFiles(const Manifest& manifest) const {
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const FileRecord& record = manifest.files[i];
    RETURN_IF_ERROR(CheckPlainName(record.name));
    if (record.name == kManifestName || record.name == kIndexFile) {
      return absl::InvalidArgumentError(absl::StrCat(record.name, ": is written by the leader"));
    }
    if (i > 0 && manifest.files[i - 1].name == record.name) {
      return absl::InvalidArgumentError(absl::StrCat(record.name, ": written by two ranks"));
    }
  }
  const absl::Status status = CheckSizes(files_, folder_, manifest);
  if (!absl::IsNotFound(status)) return status;
  return absl::DataLossError(absl::StrCat(status.message(), ": do all ranks have the same directory?"));
}

// Makes the index from the files' own headers, so that they agree.
absl::Status CheckpointWriter::AddIndex(Manifest* manifest) const {
  ASSIGN_OR_RETURN(ShardTable table, ShardTable::Open(files_, folder_, *manifest, "model-"));
  if (table.names().empty()) return absl::OkStatus();
  nlohmann::json index;
  int64_t total = 0;
  for (const std::string& name : table.names()) {
    const ShardTable::Place place = *table.Find(name);
    total += place.entry.bytes;
    index["weight_map"][name] = table.file_name(place);
  }
  index["metadata"]["total_size"] = total;
  const CheckpointFile file = {kIndexFile, {}, index.dump(1)};
  ASSIGN_OR_RETURN(std::vector<FileRecord> records, WriteFiles(files_, folder_, {file}));
  manifest->files.push_back(records.front());
  return absl::OkStatus();
}

absl::Status CheckpointWriter::WriteLatest(const Latest& latest) const {
  return ReplaceFile(files_, kLatestName, absl::StrCat(kLatestName, kUnfinished, options_.attempt),
                     EncodeLatest(latest));
}

absl::Status CheckpointWriter::Commit(Manifest manifest, int64_t kept_step) {
  SY_CHECK(!folder_.empty() && manifest.step == step_);
  const auto by_name = [](const FileRecord& a, const FileRecord& b) { return a.name < b.name; };
  std::sort(manifest.files.begin(), manifest.files.end(), by_name);
  manifest.attempt = options_.attempt;
  RETURN_IF_ERROR(CheckFiles(manifest));
  RETURN_IF_ERROR(CheckAttempt());
  RETURN_IF_ERROR(AddIndex(&manifest));
  std::sort(manifest.files.begin(), manifest.files.end(), by_name);
  const CheckpointFile text = {kManifestName, {}, EncodeManifest(manifest)};
  RETURN_IF_ERROR(WriteFiles(files_, folder_, {text}).status());
  // A checkpoint of another line of training, which LATEST does not name, may have this folder's name.
  const std::string folder = StepFolder(step_);
  ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, files_->List(""));
  for (const FolderEntry& entry : entries) {
    if (entry.name != folder) continue;
    ASSIGN_OR_RETURN(const std::string away, MoveAway(folder));
    ASSIGN_OR_RETURN(const bool kept, IsKept(away));
    if (kept) RETURN_IF_ERROR(WriteFiles(files_, folder_, {{jobs::kKeptCheckpoint, {}, ""}}).status());
    RETURN_IF_ERROR(RemoveFolder(away));
  }
  RETURN_IF_ERROR(files_->Rename(folder_, folder));
  folder_.clear();
  RETURN_IF_ERROR(files_->SyncFolder(""));
  RETURN_IF_ERROR(WriteLatest({folder, Sha256Hex(text.text)}));
  if (const absl::Status status = RemoveOld(step_, kept_step); !status.ok()) {
    LogWarn("checkpoints: old ones stay for now: ", status.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckpointWriter::IsKept(const std::string& folder) const {
  ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_->List(folder));
  return std::any_of(entries.begin(), entries.end(),
                     [](const FolderEntry& entry) { return entry.name == jobs::kKeptCheckpoint; });
}

absl::Status CheckpointWriter::RemoveOld(int64_t step, int64_t kept_step) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(files_));
  const int64_t resumed = options_.resumed_from.empty() ? -1 : StepOfFolder(options_.resumed_from);
  int64_t kept = 0;
  for (const int64_t other : steps) {
    const bool beyond = other > step || (may_lie_beyond_ && other > resumed && other != step);
    const bool for_ever = options_.keep_every > 0 && other % options_.keep_every == 0;
    ASSIGN_OR_RETURN(const bool kept_by_file, IsKept(StepFolder(other)));
    if (kept_by_file) continue;  // nor does it count
    if (beyond || (++kept > options_.keep_last && !for_ever && other != kept_step))
      RETURN_IF_ERROR(Discard(StepFolder(other)));
  }
  may_lie_beyond_ = false;
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
