#include "workers/train/job/job_context.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/files/posix_file_system.h"
#include "workers/train/job/rank_agreement.h"

namespace switchyard::train {

DType DTypeOfJob(jobs::TrainDType dtype) {
  if (dtype == jobs::TrainDType::kBf16) return DType::kBf16;
  return dtype == jobs::TrainDType::kF64 ? DType::kF64 : DType::kF32;
}

JobNotes::JobNotes(std::string job_id, absl::Duration interval, TrainListener* listener)
    : job_id_(std::move(job_id)), interval_(interval), listener_(listener) {}

bool JobNotes::due() const { return MonotonicNow() - last_ >= interval_; }

void JobNotes::Stage(const std::string& text) {
  last_ = MonotonicNow();
  if (listener_ == nullptr) return;
  LogInfo("job ", job_id_, ": ", text);
  listener_->Note(text);
}

void JobNotes::Note(const std::string& text) {
  if (due()) Stage(text);
}

void JobNotes::Count(absl::string_view what, int64_t bytes) {
  bytes_ += bytes;
  Note(absl::StrCat(what, ": ", bytes_ >> 20, " MiB"));
}

JobContext::JobContext(TrainJobInput input, const Stream& stream, comm::Communicator* comm, TrainListener* listener)
    : input_(std::move(input)),
      spec_(input_.spec),
      stream_(stream),
      comm_(comm),
      dtype_(DTypeOfJob(spec_.dtype)),
      notes_(input_.job_id, input_.note_interval, leads() ? listener : nullptr) {}

int64_t MicroBatchSequences(const jobs::JobSpec& spec, int world) {
  return spec.micro_batch_sequences > 0 ? spec.micro_batch_sequences : spec.batch_sequences / world;
}

bool JobContext::had_data() const {
  const std::optional<jobs::ForkOrigin>& origin = input_.origin;
  if (!origin.has_value()) return input_.attempt > 1;
  return !origin->other_data || input_.attempt > origin->attempts + 1;
}

std::string JobContext::Holder() const { return absl::StrCat("attempt ", input_.attempt, " of job ", input_.job_id); }

void JobContext::Stop(jobs::StopKind kind) {
  jobs::StopKind before = stop_.load();
  while (before < kind && !stop_.compare_exchange_weak(before, kind)) {
  }
}

absl::Status JobContext::NoteRead(absl::string_view what, int64_t bytes) {
  notes_.Count(what, bytes);
  stream_.pool().AwaitGate();
  return wanted() ? absl::OkStatus() : absl::CancelledError("no longer wanted");
}

bool JobContext::NotePart(absl::string_view what, int64_t done_bytes, int64_t total_bytes) {
  notes_.Note(absl::StrCat(what, ": ", done_bytes >> 20, " of ", total_bytes >> 20, " MiB"));
  stream_.pool().AwaitGate();
  return wanted();
}

absl::Status JobContext::AgreeOn(const absl::Status& mine) {
  const absl::Status agreed = Agree(comm_, mine, input_.disk_limit);
  SetAgreed(agreed);
  return agreed;
}

absl::StatusOr<std::string> JobContext::AgreeOnText(const absl::StatusOr<std::string>& mine) {
  absl::StatusOr<std::string> text = FromLeader(comm_, mine, input_.disk_limit);
  SetAgreed(text.status());
  return text;
}

absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> OpenJobFolder(const std::string& checkpoint_root,
                                                                      const std::string& job_id) {
  RETURN_IF_ERROR(CheckPlainName(job_id));
  ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(checkpoint_root, kCheckpointRoot));
  RETURN_IF_ERROR(root.MakeFolders(job_id));
  // Refuses a link to a place outside the root.
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder(job_id));
  close(fd);
  // The folder's name must survive a crash, as its contents do.
  ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::FileSystem> above,
                   checkpoint::OpenPosixFileSystem(checkpoint_root));
  RETURN_IF_ERROR(above->SyncFolder(""));
  return checkpoint::OpenPosixFileSystem(absl::StrCat(checkpoint_root, "/", job_id));
}

}  // namespace switchyard::train
