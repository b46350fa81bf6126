// Loss logs, in each job's folder beneath the checkpoint root:
//   log/steps.csv          a line a step; the first line names the columns
//   log/evaluations.csv    a line an evaluation
//   log/events.out.tfevents.TIME.HOST.ATTEMPT   the same curves for TensorBoard, a file an attempt
// A step that was skipped for want of a target has empty losses and norm there, and none in the events.  Each row is
// one write (no fsync).  An attempt that goes on from step k cuts off the CSVs' later rows and a torn last line, and
// tells TensorBoard that events of later steps are void; it logs step k's evaluation no second time.  A CSV with other
// columns is renamed to NAME.old.  What cannot be written (a full disk) is left out and logged once a job and file.
// Thread-compatible, as its interface says.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/io/unique_fd.h"
#include "server/jobs/training_host.h"
#include "switchyard/tensorboard/event.pb.h"

namespace switchyard::server {

// An event of a TensorBoard file as a TFRecord: u64 length, u32 masked CRC-32C of these 8 bytes, the message, u32
// masked CRC-32C of it; all little-endian.
std::string EventRecord(const tensorboard::Event& event);

// A file that rows are appended to, each whole or not at all.
class RowFile {
 public:
  // Writes behind the first `end` bytes; what follows them is cut off.
  RowFile(UniqueFd fd, std::string name, int64_t end);

  void Append(absl::string_view row);

 private:
  void Complain(absl::string_view what);

  UniqueFd fd_;
  std::string name_;
  int64_t end_;
  bool complained_ = false;
};

class LossLog final : public ProgressSink {
 public:
  // `now`: what events say when they were.
  LossLog(RootDir checkpoint_root, std::function<absl::Time()> now)
      : root_(std::move(checkpoint_root)), now_(std::move(now)) {}

  void OnStarted(const Job& job, int64_t step) override;
  void OnStep(const Job& job, const jobs::TrainProgress& progress) override;
  void OnEvaluated(const Job& job, const jobs::EvaluationResult& result) override;
  void OnEnded(const Job& job) override;

 private:
  struct Files {
    RowFile steps, evaluations, events;
    int64_t evaluated = -1;  // the newest evaluation that an earlier attempt has logged; later ones are cut off
  };
  absl::StatusOr<Files> Open(const Job& job, int64_t step) const;
  // last_step: becomes the step of the last row that is kept; -1 = there is none.
  absl::StatusOr<RowFile> OpenCsv(const std::string& name, absl::string_view header, int64_t step,
                                  int64_t* last_step) const;
  absl::StatusOr<RowFile> OpenEvents(const Job& job, const std::string& folder, int64_t step) const;
  tensorboard::Event NewEvent(int64_t step) const;

  const RootDir root_;
  const std::function<absl::Time()> now_;
  std::map<std::string, Files> jobs_;  // by id: those that run
};

}  // namespace switchyard::server
