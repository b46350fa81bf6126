// Saves checkpoints in one root: the leader's part, which begins and commits them and removes old ones.  FORMAT.md
// describes the files and the order in which they are written.
//
//   folder = writer->Begin(step, bytes of all ranks)     the leader
//   WriteFiles(file_system, folder, …) → records         every rank, in a thread of its own if training is to go on
//   writer->Commit(manifest with all records)            the leader, when it has all of them
//
// Whatever fails or crashes, the checkpoint that LATEST names stays whole until another one is, and a later Begin
// works.  One writer at a time holds the root's lock, which ends with its process; a writer of an older attempt commits
// nothing.  Thread-compatible; every call blocks on the disk.  Does not do: gathering records or waiting for ranks,
// snapshots of tensors, repair of damaged checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::checkpoint {

// Part of the names of unfinished folders and files, which readers ignore; a writer removes them when it opens.
inline constexpr char kUnfinished[] = ".tmp-";

struct CheckpointWriterOptions {
  int64_t attempt = 0;      // of the job; rises with each start of its trainer
  std::string holder = {};  // names this writer to others that find the root locked
  // The folder from which training continues; "": none.  Open makes LATEST name it (a newer one may have been damaged);
  // the first Commit removes later steps, which are of another line of training.
  std::string resumed_from = {};
  int64_t keep_last = 3;   // at least 1
  int64_t keep_every = 0;  // multiples of this step stay for ever; 0: none
};

// The root's lock, until it is destroyed or its process ends.  Its holder may choose a checkpoint to continue from, as
// no one else commits.  holder: this process's name in errors of others.  FailedPrecondition: locked (names the
// holder).
absl::StatusOr<std::unique_ptr<File>> LockCheckpoints(FileSystem* files, const std::string& holder);

class CheckpointWriter {
 public:
  // Acquires the lock unless it is given, and removes what earlier writers left unfinished.
  // Errors: FailedPrecondition: locked (names the holder), LATEST belongs to a later attempt, or there is a LATEST and
  // resumed_from is "".  NotFound, DataLoss: resumed_from or its manifest.  InvalidArgument: options.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(FileSystem* files,
                                                                const CheckpointWriterOptions& options,
                                                                std::unique_ptr<File> lock = nullptr);

  // Makes the folder to write into and returns its name.  Abandons a save that was not committed.
  // Errors: AlreadyExists if LATEST names this step or a later one, ResourceExhausted "needs N bytes, M are free".
  absl::StatusOr<std::string> Begin(int64_t step, int64_t needed_bytes);
  // Adds the index of model-*.safetensors, checks that every file has its size, writes the manifest, gives the folder
  // its name and makes LATEST name it; then removes what need not be kept, where a failure is only logged.  kept_step:
  // of an older checkpoint that stays in any case; 0: none.  One with the file KEEP stays and does not count.
  // REQUIRES: Begin(manifest.step).  manifest.attempt is set here; its files may come in any order.
  // Errors: InvalidArgument for a file twice or a name of our own; DataLoss for one that is missing (ranks must share
  // the root) or of another size; FailedPrecondition if a later attempt has committed meanwhile; the file system's.
  // After an error the save is void, but LATEST may name it.
  absl::Status Commit(Manifest manifest, int64_t kept_step = 0);
  // Gives up the save that Begin began.
  void Abandon();

 private:
  CheckpointWriter(FileSystem* files, const CheckpointWriterOptions& options) : files_(files), options_(options) {}
  absl::Status Prepare();
  absl::Status CheckAttempt() const;
  absl::Status RemoveUnfinished() const;
  absl::Status CheckFiles(const Manifest& manifest) const;
  absl::Status AddIndex(Manifest* manifest) const;
  absl::Status WriteLatest(const Latest& latest) const;
  // Renames the folder out of sight and returns its new name.
  absl::StatusOr<std::string> MoveAway(const std::string& folder) const;
  // Moves the folder away, then removes it, unless it is kept by then.
  absl::Status Discard(const std::string& folder) const;
  absl::Status RemoveFolder(const std::string& folder) const;
  absl::StatusOr<bool> IsKept(const std::string& folder) const;
  absl::Status RemoveOld(int64_t step, int64_t kept_step);

  FileSystem* const files_;
  const CheckpointWriterOptions options_;
  std::unique_ptr<File> lock_;
  std::string folder_;          // the folder that Begin made; "" = none
  int64_t step_ = -1;           // of it
  bool may_lie_beyond_ = true;  // no Commit yet: later steps of another line may be there
};

}  // namespace switchyard::checkpoint
