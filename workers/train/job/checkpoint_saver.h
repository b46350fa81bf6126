// Saves a job's checkpoints while it trains: a step waits for a copy of parameters and moments in memory; writing runs
// beside the next steps.
//
//   Begin      all ranks, at the same step: rank 0 makes the folder, each copies what it writes
//   …          each rank writes its files, in a thread of its own
//   Advance    at each control point, with all ranks' words: when all have written, rank 0 gets their records and
//              commits, in that thread; when it has, the checkpoint counts
// If any rank has no memory for the copy, or offloaded experts, no rank makes one, and training waits until all have
// written (copied()).  Ranks send each other what the writer lacks: sharded dense state (shard_stream.h), and adapters
// of experts, which rank 0 writes (expert_adapter_tensors.h).  With a copy they do so in Begin, so a step waits for
// that, too, for adapters at most disk_limit in all; without one, while files are written.  One save at a time.  Any
// failure ends the job's attempt (status, marked Lost); earlier checkpoints stay.  Thread-compatible: the trainer's
// thread calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/tensor/dtype.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/parameters/expert_adapter_tensors.h"
#include "workers/train/parameters/parameter_files.h"
#include "workers/train/parameters/parameter_snapshot.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/shard_stream.h"

namespace switchyard::train {

// A rank's progress with the save under way; ranks exchange it as RankWord::saving.
enum class SavePhase : int32_t { kIdle, kWriting, kWritten, kCommitting, kCommitted };

struct SaverOptions {
  checkpoint::CheckpointWriterOptions writer = {};
  checkpoint::SavedBy saved_by = {};
  WeightsForm weights = DType::kF32;                        // of model-….safetensors, or adapters
  std::vector<checkpoint::CheckpointFile> side_files = {};  // config and tokenizer
  std::function<int64_t()> available_memory;                // bytes that this rank may still use
  absl::Duration disk_limit = absl::Hours(1);               // the longest that ranks wait for each other's disks
};

struct SavedStep {
  int64_t step = 0;
  std::string folder = {};
  int64_t bytes = 0;          // of all ranks' files
  double seconds = 0;         // from Begin until it was committed
  double waited_seconds = 0;  // in Begin: the delay of the step
};

class CheckpointSaver {
 public:
  // files and comm: borrowed.  lock: rank 0's.  Errors: CheckpointWriter::Open's; Lost where another attempt has saved.
  static absl::StatusOr<std::unique_ptr<CheckpointSaver>> Open(checkpoint::FileSystem* files, comm::Communicator* comm,
                                                               SaverOptions options,
                                                               std::unique_ptr<checkpoint::File> lock);
  // Abandons a save under way.  Blocks until calls to the disk return.
  ~CheckpointSaver();

  // Collective.  REQUIRES: !busy().  kept_step: of a checkpoint that this one must not remove; 0: none.  trainer_state:
  // of trainer_state.json; rank 0's is written.
  absl::Status Begin(const Stream& stream, const Parameters& parameters, int64_t step, int64_t kept_step,
                     std::string trainer_state);
  // Whether a save is under way on some rank; the same on all.
  bool busy() const { return busy_; }
  // The same on all ranks.  False: the parameters are written without a copy and must not change until all_written().
  bool copied() const { return copied_; }
  // Whether the save does not read the parameters any more; the same on all ranks.
  bool all_written() const { return collected_; }
  // Whether a save reads the parameters, which then must not change; the same on all ranks.
  bool reads_parameters() const { return busy_ && !copied_ && !collected_; }
  // Bytes that this rank has written of the save under way.  Any thread.
  int64_t written_bytes() const { return written_bytes_; }
  int64_t total_bytes() const { return saving_.bytes; }  // of all ranks
  SavePhase phase() const;
  // Not OK: the save under way has failed on this rank.
  absl::Status status() const;
  // Blocks until this rank's phase changes, the group ends, it waits for others alone, or `most` has passed.
  void AwaitNews(absl::Duration most) const;
  // Collective.  words: all ranks', of one control point, without an error.  Returns the step that was committed, if
  // any.
  absl::StatusOr<std::optional<SavedStep>> Advance(absl::Span<const RankWord> words);

 private:
  CheckpointSaver(checkpoint::FileSystem* files, comm::Communicator* comm, SaverOptions options);
  absl::StatusOr<std::vector<checkpoint::CheckpointFile>> FilesOf(absl::Span<const ParameterBlock> blocks,
                                                                  std::string trainer_state);
  // Makes what ranks exchange values by; exchanges nothing.
  void MakeExchanges(const Parameters& parameters);
  // Bytes that a copy takes which is not there yet.
  int64_t BytesToCopy(const Parameters& parameters) const;
  // Collective.
  absl::Status Copy(const Stream& stream, const Parameters& parameters);
  // Writes this rank's files, in the thread.
  absl::Status Write(const std::vector<checkpoint::CheckpointFile>& files);
  // Rank 0 makes the folder when it knows how many bytes all ranks will write; all ranks set the same copied_.
  absl::Status MakeFolder(const absl::StatusOr<int64_t>& own_bytes, bool has_room);
  absl::Status Collect();
  // Runs the work in the thread, which then sets phase or status.
  void Do(absl::AnyInvocable<absl::Status()> work, SavePhase then);
  void Join();

  checkpoint::FileSystem* const files_;
  comm::Communicator* const comm_;
  const SaverOptions options_;
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;  // rank 0's
  ParameterSnapshot snapshot_;
  // Of a save without a copy, if dense state is sharded; the thread's until it is joined.
  std::unique_ptr<ShardStream> shards_;
  // Of a model with adapters, until they are written: rank 0 has a copy of all experts', or they arrive as it writes.
  std::unique_ptr<ExpertAdapterTensors> expert_adapters_;
  std::vector<checkpoint::FileRecord> records_;  // that this rank wrote; the thread's until it is joined
  std::thread thread_;
  std::atomic<bool> given_up_ = false;
  std::atomic<int64_t> written_bytes_ = 0;
  bool busy_ = false;
  bool copied_ = true;
  bool collected_ = false;  // rank 0 has all records
  absl::Time began_;
  SavedStep saving_;
  std::string folder_;  // that is written
  int64_t kept_step_ = 0;

  mutable absl::Mutex mu_;
  SavePhase phase_ ABSL_GUARDED_BY(mu_) = SavePhase::kIdle;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::train
