// Saves checkpoints in one root: the leader's part, which begins one, makes it the one that counts, and removes old
// ones.  FORMAT.md says what is on the disk and in which order it gets there.
//
//   folder = writer->Begin(step, bytes of all ranks)     the leader
//   WriteFiles(file_system, folder, …) → records         every rank, in a thread of its own if training is to go on
//   writer->Commit(manifest with all records)            the leader, when it has all of them
//
// Whatever fails or crashes, and wherever: what LATEST named before stays whole until another one is, and a later
// Begin works.  One writer at a time holds the root (a lock that ends with its process), and one whose attempt is over
// commits nothing.  Thread-compatible; every call blocks on the disk.
// Does not do: gathering records or waiting for ranks (the caller's), snapshots of tensors, mending of damaged ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::checkpoint {

// In the name of every folder and file of a root that is not to be read; a writer that opens removes them.
inline constexpr char kUnfinished[] = ".tmp-";

struct CheckpointWriterOptions {
  int64_t attempt = 0;      // of the job, rising: each start of its trainer has another
  std::string holder = {};  // who, in words, for whoever finds the root locked
  // The folder that training goes on from ("" = from none).  LATEST is made to name it if it names another one, as
  // when that was found damaged; what lies beyond it, another line of training, is removed by the first Commit.
  std::string resumed_from = {};
  int64_t keep_last = 3;   // from 1 on
  int64_t keep_every = 0;  // steps that are a multiple of it stay for ever; 0 = none
};

// The root's lock, until it is destroyed or its process ends: whoever has it may choose a checkpoint to go on from, as
// nobody commits another.  holder: who, in words.  FailedPrecondition: locked (by whom).
absl::StatusOr<std::unique_ptr<File>> LockCheckpoints(FileSystem* files, const std::string& holder);

class CheckpointWriter {
 public:
  // Takes the lock, if it is not given, and removes what earlier writers left unfinished.
  // Errors: FailedPrecondition: locked (by whom), LATEST belongs to a later attempt, or there is a LATEST and
  // resumed_from is "".  NotFound, DataLoss: resumed_from or its manifest.  InvalidArgument: options.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(FileSystem* files,
                                                                const CheckpointWriterOptions& options,
                                                                std::unique_ptr<File> lock = nullptr);

  // Makes the folder to write into and returns its name.  A save that was not committed is given up.
  // Errors: AlreadyExists if LATEST names this step or a later one, ResourceExhausted "needs N bytes, M are free".
  absl::StatusOr<std::string> Begin(int64_t step, int64_t needed_bytes);
  // Adds the index of model-*.safetensors, checks that every file is there in its size, writes the manifest, gives the
  // folder its name and makes LATEST name it; then removes what need not be kept, of which a failure is logged only.
  // REQUIRES: Begin(manifest.step).  manifest.attempt is set here, its files may come in any order.
  // Errors: InvalidArgument for a file twice or a name of our own; DataLoss for one that is not there (ranks must share
  // the root) or of another size; FailedPrecondition if a later attempt has committed meanwhile; the file system's.
  // After an error the save is void; if it was the last step that failed LATEST may name it all the same.
  absl::Status Commit(Manifest manifest);
  // Gives up what Begin began.
  void Abandon();

 private:
  CheckpointWriter(FileSystem* files, const CheckpointWriterOptions& options) : files_(files), options_(options) {}
  absl::Status Prepare();
  absl::Status CheckAttempt() const;
  absl::Status RemoveUnfinished() const;
  absl::Status CheckFiles(const Manifest& manifest) const;
  absl::Status AddIndex(Manifest* manifest) const;
  absl::Status WriteLatest(const Latest& latest) const;
  // Out of sight at once, then away.
  absl::Status Discard(const std::string& folder) const;
  absl::Status RemoveFolder(const std::string& folder) const;
  absl::Status RemoveOld(int64_t step);

  FileSystem* const files_;
  const CheckpointWriterOptions options_;
  std::unique_ptr<File> lock_;
  std::string folder_;          // that Begin made; "" = none
  int64_t step_ = -1;           // of it
  bool may_lie_beyond_ = true;  // no Commit yet: steps of another line may be there
};

}  // namespace switchyard::checkpoint
