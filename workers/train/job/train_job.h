// One rank's attempt at a training job, from its spec to its end: once all is open (setup/job_setup.h), trains step
// after step, evaluates, saves, and reports how it ended.
//
// At a control point before each step the ranks exchange who was asked to stop, who cannot go on and whose files are
// written, so that they stop, save and fail at the same step.  A job's place follows from its seed and step alone
// (data_source.h, lr_schedule.h): an interrupted attempt goes on to the bits of an undisturbed one, given as many ranks
// of the same instruction set.  Run belongs to one thread; Stop may come from any.  To end it at once, abort the
// communicator.  Where the stream's pool is behind a gate (yield_point.h) all that it computes goes through the gate;
// limits of time go on meanwhile.  CPU only.  Does not do: limits of time, retries, packing of text (the server's).
#pragma once

#include <cstdint>
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

namespace switchyard::train {

// Tokens and seconds of the steps so far, older ones weighing less by the step (0.95, as llm.c's).
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
  // All that computes: inside of the pool's gate.
  absl::Status RunInside();
  absl::Status Train();
  absl::StatusOr<jobs::StopKind> Control(const absl::Status& mine);
  absl::Status LoadStep(std::vector<TrainRows>* micro_batches) const;
  absl::Status RunStep(absl::Span<const TrainRows> micro_batches, double data_seconds);
  void ReportSkipped();
  // Whether it came to its end; false: somebody wants to stop.
  absl::StatusOr<bool> Evaluate();
  absl::Status Save();
  // Until it counts; or, `written`, until all ranks have written.
  absl::Status AwaitSave(bool written = false);
  // Where the files have changed: what was trained is kept.
  absl::Status SaveBlocked(absl::Status why);

  JobContext context_;
  const TrainJobInput& input_;
  const jobs::JobSpec& spec_;
  comm::Communicator* const comm_;
  TrainListener* const listener_;
  OpenedJob job_;
  int64_t step_ = 0;           // done
  int64_t tokens_ = 0;         // trained
  int64_t saved_step_ = 0;     // the newest that was begun to be saved, or restored
  int64_t noted_written_ = 0;  // bytes of the save under way
  jobs::StopKind stopped_ = jobs::StopKind::kNone;
  StepMeter meter_;
};

}  // namespace switchyard::train
