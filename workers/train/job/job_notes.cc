#include "workers/train/job/job_notes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"

namespace switchyard::train {

JobNotes::JobNotes(std::string job_id, absl::Duration interval, TrainListener* listener)
    : job_id_(std::move(job_id)), interval_(interval), listener_(listener) {}

bool JobNotes::due() const { return absl::Now() - last_ >= interval_; }

void JobNotes::Stage(const std::string& text) {
  last_ = absl::Now();
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

}  // namespace switchyard::train
