#include "workers/train/step/train_outcome.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::train {
namespace {

constexpr char kMark[] = "switchyard/train_outcome";

absl::Status Marked(absl::Status status, const char* mark) {
  SY_CHECK(!status.ok());
  status.SetPayload(kMark, absl::Cord(mark));
  return status;
}

}  // namespace

absl::Status Lost(absl::Status status) { return Marked(std::move(status), "lost"); }
absl::Status Failed(absl::Status status) { return Marked(std::move(status), "failed"); }
absl::Status Blocked(absl::Status status) { return Marked(std::move(status), "blocked"); }

absl::Status LostIfNot(const absl::Status& status) { return status.ok() ? status : Lost(status); }

absl::Status In(absl::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(where, ": ", status.message()));
  if (const auto mark = status.GetPayload(kMark); mark.has_value()) out.SetPayload(kMark, *mark);
  return out;
}

jobs::TrainOutcome OutcomeOf(const absl::Status& status) {
  SY_CHECK(!status.ok());
  if (const auto mark = status.GetPayload(kMark); mark.has_value()) {
    return *mark == "lost"      ? jobs::TrainOutcome::kLost
           : *mark == "blocked" ? jobs::TrainOutcome::kBlocked
                                : jobs::TrainOutcome::kFailed;
  }
  constexpr absl::StatusCode kFaults[] = {
      absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,   absl::StatusCode::kFailedPrecondition,
      absl::StatusCode::kUnimplemented,   absl::StatusCode::kOutOfRange, absl::StatusCode::kPermissionDenied,
      absl::StatusCode::kDataLoss};
  const bool fault = std::find(std::begin(kFaults), std::end(kFaults), status.code()) != std::end(kFaults);
  return fault ? jobs::TrainOutcome::kFailed : jobs::TrainOutcome::kLost;
}

}  // namespace switchyard::train
