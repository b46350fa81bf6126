// The state that the parts of one rank's attempt at a job share: the spec, the group, whether it is still wanted, and
// whether all ranks know of its error.  Belongs to one thread; any thread may call Stop, stop and wanted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/tensor/dtype.h"
#include "workers/train/job/train_job_input.h"
#include "workers/train/job/train_listener.h"

namespace switchyard::train {

// Reports what an attempt is doing, to the log and, through its listener, to the server; on rank 0 alone.
// Thread-compatible: while Run's thread waits for threads that load, one of them may call.
class JobNotes {
 public:
  // listener: borrowed; null: this rank reports nothing.
  JobNotes(std::string job_id, absl::Duration interval, TrainListener* listener);

  // Reports at once that another part of the work begins.
  void Stage(const std::string& text);
  // Reports the progress of long work, unless the last note is younger than the interval.
  void Note(const std::string& text);
  bool due() const;
  // Starts a count of bytes that are read; a note gives all of them so far.
  void StartCount() { bytes_ = 0; }
  void Count(absl::string_view what, int64_t bytes);

 private:
  const std::string job_id_;
  const absl::Duration interval_;
  TrainListener* const listener_;
  absl::Time last_ = absl::InfinitePast();
  int64_t bytes_ = 0;
};

DType DTypeOfJob(jobs::TrainDType dtype);
// Sequences that a rank computes at a time.
int64_t MicroBatchSequences(const jobs::JobSpec& spec, int world);

class JobContext {
 public:
  // Borrowed: comm, listener and what the stream borrows.
  JobContext(TrainJobInput input, const Stream& stream, comm::Communicator* comm, TrainListener* listener);

  const TrainJobInput& input() const { return input_; }
  // Its balance_weight is set when the model's config.json has been read.
  const jobs::JobSpec& spec() const { return spec_; }
  void set_balance_weight(double weight) { spec_.balance_weight = weight; }
  // Likewise its rates of dropout and jitter.
  void set_noise(const jobs::JobSpec& from) {
    spec_.dropout = from.dropout;
    spec_.router_jitter = from.router_jitter;
  }
  // Likewise its steps, when the data of a job of epochs has been opened.
  void set_steps(int64_t steps) { spec_.steps = spec_.optimizer.schedule.total_steps = steps; }
  const Stream& stream() const { return stream_; }
  comm::Communicator* comm() const { return comm_; }
  DType dtype() const { return dtype_; }
  bool leads() const { return comm_->rank() == 0; }
  // Sequences of a step on each rank, and of a micro-batch.
  int64_t own_sequences() const { return spec_.batch_sequences / comm_->world(); }
  int64_t micro_batch_sequences() const { return MicroBatchSequences(spec_, comm_->world()); }
  // Whether an earlier attempt of the job, or its parent before the fork, has trained on these data.
  bool had_data() const;
  // "attempt 2 of job …": the holder's name in the folder's lock.
  std::string Holder() const;

  // Requests a stop; the greatest kind counts.  Any thread.
  void Stop(jobs::StopKind kind);
  jobs::StopKind stop() const { return stop_.load(); }
  // Whether long work is still needed: the group has no error, and no stop at once was requested.
  bool wanted() const { return comm_->status().ok() && stop() != jobs::StopKind::kNow; }

  JobNotes& notes() { return notes_; }
  // Both are called now and then in long work, and wait while the pool's gate is shut.
  // Notes how much was read; Cancelled if it is no longer wanted.
  absl::Status NoteRead(absl::string_view what, int64_t bytes);
  // Notes "what: 3 of 7 MiB".  Returns wanted().
  bool NotePart(absl::string_view what, int64_t done_bytes, int64_t total_bytes);
  void Warn(std::string warning) { warnings_.push_back(std::move(warning)); }
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Collective (rank_agreement.h).  Its error is agreed(): all ranks know it, so the group need not be aborted.
  absl::Status AgreeOn(const absl::Status& mine);
  absl::StatusOr<std::string> AgreeOnText(const absl::StatusOr<std::string>& mine);
  // Records an error that all ranks have, unless the group has ended.
  void SetAgreed(const absl::Status& status) { agreed_ = !status.ok() && comm_->status().ok(); }
  void set_agreed(bool agreed) { agreed_ = agreed; }
  bool agreed() const { return agreed_; }

 private:
  const TrainJobInput input_;
  jobs::JobSpec spec_;
  const Stream stream_;
  comm::Communicator* const comm_;
  const DType dtype_;
  std::atomic<jobs::StopKind> stop_ = jobs::StopKind::kNone;
  JobNotes notes_;
  std::vector<std::string> warnings_;
  bool agreed_ = false;
};

inline constexpr char kCheckpointRoot[] = "the checkpoint root";  // in messages

// Opens, or makes, a job's own folder of the checkpoint root, with its checkpoints and packed data.  All ranks may do
// so at once.  job_id: a plain name (model_dir.h).  Errors: InvalidArgument, NotFound, PermissionDenied; each names the
// root.
absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> OpenJobFolder(const std::string& checkpoint_root,
                                                                      const std::string& job_id);

}  // namespace switchyard::train
