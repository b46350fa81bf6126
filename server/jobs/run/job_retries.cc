#include "server/jobs/run/job_retries.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"

namespace switchyard::server {

void JobRetries::Lose(Job* job, const absl::Status& why) {
  ++counts_->losses;
  // A full disk, which alone has this code, is no fault of the job, which retries for a while until there is room
  // again.
  const bool full = why.code() == absl::StatusCode::kResourceExhausted;
  if (full) {
    const int64_t now = host_->UnixMs();
    // (A clock may have been set back.)
    if (job->full_since_unix_ms == 0 || job->full_since_unix_ms > now) job->full_since_unix_ms = now;
    if (now - job->full_since_unix_ms >= absl::ToInt64Milliseconds(options_.full_disk)) {
      job->full_since_unix_ms = 0;
      return Block(job, rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DISK_FULL, why.message()));
    }
  } else {
    ++job->losses;
  }
  if (job->losses >= options_.max_losses) {
    return Fail(job, absl::Status(why.code(), absl::StrCat("lost ", job->losses,
                                                           " times without getting ahead; at last: ", why.message())));
  }
  const absl::Duration doubled = options_.first_pause * (1 << std::clamp(job->losses - 1, 0, 20));
  const absl::Duration pause = full ? options_.longest_pause : std::min(doubled, options_.longest_pause);
  not_before_[job->sequence] = host_->Now() + pause;
  book_->Happen(job, jobs::JobEvent::kLose,
                absl::StrCat("lost, tries again in ", absl::FormatDuration(pause), ": ", why.message()),
                host_->UnixMs());
}

void JobRetries::Fail(Job* job, const absl::Status& why) {
  job->error = why;
  book_->Happen(job, jobs::JobEvent::kFail, std::string(why.message()), host_->UnixMs());
}

void JobRetries::Block(Job* job, const absl::Status& error) {
  ++counts_->blocks;
  job->error = error;
  book_->Happen(job, jobs::JobEvent::kBlock,
                absl::StrCat(v1::ErrorReason_Name(rpc::ReasonOf(error)), ": ", error.message()), host_->UnixMs());
}

bool JobRetries::Pauses(const Job& job) const {
  const auto pause = not_before_.find(job.sequence);
  return pause != not_before_.end() && host_->Now() < pause->second;
}

}  // namespace switchyard::server
