#include "server/engine/profile_collector.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/check.h"

namespace switchyard::server {

void ProfileCollector::Start(int num_ranks, Call call, absl::Time now) {
  SY_CHECK(!busy());
  SY_CHECK_GE(num_ranks, 1);
  call_ = std::make_unique<Call>(std::move(call));
  ++request_;
  num_ranks_ = num_ranks;
  profiles_.assign(1, "");
  bytes_ = 0;
  Ask(now);
}

void ProfileCollector::Ask(absl::Time now) {
  answer_by_ = now + kPatience;
  ask_(static_cast<int>(profiles_.size()) - 1, request_, static_cast<int64_t>(profiles_.back().size()));
}

void ProfileCollector::OnPart(int rank, ProfilePart part, absl::Time now) {
  const int asked = static_cast<int>(profiles_.size()) - 1;
  if (!busy() || rank != asked || part.request != request_) return;
  if (!part.error.empty()) {
    return Fail(rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_PROFILE,
                               absl::StrCat("worker ", rank, ": ", part.error)));
  }
  std::string& profile = profiles_.back();
  const auto held = static_cast<int64_t>(profile.size()), came = static_cast<int64_t>(part.data.size());
  if (part.offset != held) return;
  const bool fits = part.total_bytes > 0 && came > 0 && came <= part.total_bytes - held;
  if (!fits) {
    return Fail(absl::InternalError(absl::StrCat("worker ", rank, ": a part of ", came, " bytes at ", held,
                                                 " of a profile of ", part.total_bytes)));
  }
  // Known with the first part, before there is memory for the others.
  if (part.total_bytes > kMostBytes - (bytes_ - held)) {
    return Fail(
        absl::ResourceExhaustedError(absl::StrCat("worker ", rank, ": a profile of ", part.total_bytes, " bytes after ",
                                                  bytes_ - held, " of other workers: limit ", kMostBytes)));
  }
  profile += part.data;
  bytes_ += came;
  if (call_->on_progress != nullptr) call_->on_progress({.rank = rank, .num_ranks = num_ranks_, .bytes = bytes_});
  if (held + came == part.total_bytes) {
    if (asked + 1 == num_ranks_) return End(std::exchange(profiles_, {}));
    profiles_.emplace_back();
  }
  Ask(now);
}

void ProfileCollector::Fail(const absl::Status& status) {
  if (busy()) End(status);
}

void ProfileCollector::Tick(absl::Time now) {
  if (!busy() || now < answer_by_) return;
  Fail(absl::DeadlineExceededError(absl::StrCat(
      "worker ", profiles_.size() - 1, " did not tell what it learned within ", absl::FormatDuration(kPatience))));
}

void ProfileCollector::End(absl::StatusOr<std::vector<std::string>> profiles) {
  const std::unique_ptr<Call> call = std::exchange(call_, nullptr);
  profiles_.clear();
  call->done(std::move(profiles));
}

}  // namespace switchyard::server
