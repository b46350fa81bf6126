// Loss logs, in each job's folder beneath the checkpoint root:
//   log/steps.csv          a line a step; the first line names the columns
//   log/evaluations.csv    a line an evaluation
//   log/evaluation_sets.csv   of jobs whose evaluation has named sets: a line for each set of an evaluation
//   log/events.out.tfevents.TIME.HOST.ATTEMPT   the same curves for TensorBoard, a file an attempt
// Of jobs with preferences the CSVs have two more columns, margin and accuracy, and the events train/margin,
// train/accuracy, eval/margin, eval/accuracy and those of sets; perplexities are left out, as losses are of pairs.
// A step that was skipped for want of a target has empty losses and norm there, and none in the events.  Each row is
// one write (no fsync).  An attempt that goes on from step k cuts off the CSVs' later rows and a torn last line, and
// writes an event that voids TensorBoard's later steps; it does not log step k's evaluation again.  A CSV with other
// columns is renamed to NAME.old.  Rows that cannot be written (a full disk) are left out; the server's log says so
// once for each job and file.  A fork's CSVs begin with its parent's rows, its events do not.  Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/io/unique_fd.h"
#include "server/jobs/training_host.h"
#include "switchyard/tensorboard/event.pb.h"

namespace switchyard::server {

// Encodes an event of a TensorBoard file as a TFRecord: u64 length, u32 masked CRC-32C of these 8 bytes, the message,
// u32 masked CRC-32C of the message; all little-endian.
std::string EventRecord(const tensorboard::Event& event);

// A file to which rows are appended, each whole or not at all.
class RowFile {
 public:
  // Appends after the first `end` bytes; cuts off the rest.
  RowFile(UniqueFd fd, std::string name, int64_t end);

  void Append(absl::string_view row);

 private:
  void Complain(absl::string_view what);

  UniqueFd fd_;
  std::string name_;
  int64_t end_;
  bool complained_ = false;
};

// Which of a job's CSVs there are, and with which columns.
struct LossRows {
  bool evaluations = false, named_sets = false;
  bool preferences = false;
};
// Gives a fork the rows of its parent's CSVs up to this step: of the steps and these.  A log that cannot be read or
// written is left out, with a line in the server's log.
void CopyLosses(const RootDir& checkpoint_root, const std::string& parent, const std::string& fork, int64_t step,
                const LossRows& rows);

class LossLog final : public ProgressSink {
 public:
  // `now`: the clock for the times of events.
  LossLog(RootDir checkpoint_root, std::function<absl::Time()> now)
      : root_(std::move(checkpoint_root)), now_(std::move(now)) {}

  void OnStarted(const Job& job, int64_t step) override;
  void OnStep(const Job& job, const jobs::TrainProgress& progress) override;
  void OnEvaluated(const Job& job, const jobs::EvaluationResult& result) override;
  void OnEnded(const Job& job) override;

 private:
  struct Files {
    RowFile steps, evaluations, events;
    std::optional<RowFile> sets;  // unset: the job's evaluation has no named sets
    // Steps of the newest evaluation that an earlier attempt has logged, and of the newest one with its sets.
    int64_t evaluated = -1, sets_evaluated = -1;
  };
  absl::StatusOr<Files> Open(const Job& job, int64_t step) const;
  // Sets *last_step to the step of the last row that is kept; -1 = none is.
  absl::StatusOr<RowFile> OpenCsv(const std::string& name, absl::string_view header, int64_t step,
                                  int64_t* last_step) const;
  absl::StatusOr<RowFile> OpenEvents(const Job& job, const std::string& folder, int64_t step) const;
  tensorboard::Event NewEvent(int64_t step) const;

  const RootDir root_;
  const std::function<absl::Time()> now_;
  std::map<std::string, Files> jobs_;  // by id: those that run
};

}  // namespace switchyard::server
