// One rank's attempt at a training job, from its spec to its end: after the setup (setup/job_setup.h) it trains step
// after step, evaluates, saves, and reports how it ended.
//
// At a control point before each step the ranks exchange stop requests, errors and the progress of their files, so that
// they stop, save and fail at the same step.  A job's data and learning rate follow from its seed and step alone
// (data_source.h, lr_schedule.h): an interrupted attempt continues to the bits of an undisturbed one, given as many
// ranks of the same instruction set.  Run belongs to one thread; any thread may call Stop.  To end it at once, abort
// the communicator.  If the stream's pool has a gate (yield_point.h), the attempt begins when it is open, and time
// limits continue while it is shut.  CPU only.  Does not do: a job's time limit, retries, packing of text (the server
// does).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/train/data/data_source.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/setup/job_setup.h"
#include "workers/train/job/train_job_input.h"
#include "workers/train/job/train_listener.h"
#include "workers/train/step/evaluation_record.h"
#include "workers/train/step/evaluation_sums.h"

namespace switchyard::train {

// Tokens and seconds of the steps so far; each step multiplies the weight of older ones by 0.95, as in llm.c.
class StepMeter {
 public:
  double TokensPerSecond(int64_t tokens, double seconds) {
    constexpr double kKept = 0.95;
    tokens_ = kKept * tokens_ + static_cast<double>(tokens);
    seconds_ = kKept * seconds_ + seconds;
    return seconds_ > 0 ? tokens_ / seconds_ : 0;
  }

 private:
  double tokens_ = 0, seconds_ = 0;
};

class TrainJob {
 public:
  // Borrowed: comm, listener and what the stream borrows.
  TrainJob(TrainJobInput input, const Stream& stream, comm::Communicator* comm, TrainListener* listener);

  // Blocks until the attempt has ended; once.  On an error of this rank alone the communicator is aborted.
  jobs::TrainEnd Run();
  // Any thread, also before Run.
  void Stop(jobs::StopKind kind) { context_.Stop(kind); }

 private:
  // Run, but its end.
  absl::Status RunToEnd();
  absl::Status Train();
  absl::StatusOr<jobs::StopKind> Control(const absl::Status& mine);
  int64_t NextSample() const;
  absl::Status LoadStep(std::vector<TrainRows>* micro_batches) const;
  absl::Status RunStep(absl::Span<const TrainRows> micro_batches, double data_seconds);
  void ReportSkipped();
  // Returns whether the evaluation ended; false: a stop was requested.
  absl::StatusOr<bool> Evaluate();
  // The same for one set.
  absl::StatusOr<bool> EvaluateSet(const EvaluationData& set, EvaluationSums* sums);
  // Saves what the rules of the spec want after an evaluation.  Returns whether the job ends.
  absl::StatusOr<bool> DecideByEvaluations();
  absl::Status Save();
  // Blocks until the save is committed or, with `written`, until all ranks have written.
  absl::Status AwaitSave(bool written = false);
  // Saves the steps so far when the data files have changed.
  absl::Status SaveBlocked(absl::Status why);

  JobContext context_;
  const TrainJobInput& input_;
  const jobs::JobSpec& spec_;
  comm::Communicator* const comm_;
  TrainListener* const listener_;
  OpenedJob job_;
  int64_t step_ = 0;                         // done
  int64_t tokens_ = 0;                       // trained
  int64_t saved_step_ = 0;                   // of the newest save, finished or not, or of the restored checkpoint
  int64_t noted_written_ = 0;                // bytes of the save under way
  int64_t evaluated_ = 0;                    // step of this attempt's last evaluation
  EvaluationRecord record_, record_before_;  // with that one, and without
  std::string early_stop_reason_;            // why the job ends before its last step
  jobs::StopKind stopped_ = jobs::StopKind::kNone;
  StepMeter meter_;
};

}  // namespace switchyard::train
