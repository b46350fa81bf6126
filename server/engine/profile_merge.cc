#include "server/engine/profile_merge.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/popularity/profile_bundle.h"

namespace switchyard::server {

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
