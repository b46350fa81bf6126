#include "server/engine/profile_collector.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/check.h"
#include "scheduler/popularity/profile_bundle.h"
#include "switchyard/v1/admin.pb.h"

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
  // The first part has the total size, so a profile that is too large is refused before memory is allocated.
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

absl::Status CheckProfileRequest(const v1::GetProfileRequest& request, absl::string_view served_hash) {
  if (request.weights_hash().empty() || request.weights_hash() == served_hash) return absl::OkStatus();
  return rpc::MakeError(
      absl::StatusCode::kFailedPrecondition, v1::OTHER_WEIGHTS,
      absl::StrCat("weights_hash: is ", Quote(request.weights_hash()), ", the served model's is ", served_hash),
      {{"field", "weights_hash"}, {"limit", std::string(served_hash)}, {"actual", request.weights_hash()}});
}

absl::StatusOr<std::string> MergeProfiles(const std::vector<std::string>& bundles, absl::string_view served_hash) {
  std::optional<popularity::ProfileBundle> merged;
  for (size_t rank = 0; rank < bundles.size(); ++rank) {
    const auto refuse = [rank](absl::string_view why) {
      return rpc::MakeError(absl::StatusCode::kInternal, v1::ENGINE_ERROR,
                            absl::StrCat("worker ", rank, "'s profile: ", why));
    };
    absl::StatusOr<popularity::ProfileBundle> bundle = popularity::ProfileBundle::Parse(bundles[rank]);
    if (!bundle.ok()) return refuse(bundle.status().message());
    if (bundle->model != served_hash) {
      return refuse(absl::StrCat("it is of the weights ", bundle->model, ", the served model's are ", served_hash));
    }
    if (!merged.has_value()) {
      merged = *std::move(bundle);
    } else if (const absl::Status status = merged->Merge(*bundle); !status.ok()) {
      return refuse(status.message());
    }
  }
  if (merged.has_value() && !merged->profiles.empty()) return merged->Serialize();
  return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_PROFILE,
                        "no worker has learned anything of the routing yet: no token was routed");
}

}  // namespace switchyard::server
