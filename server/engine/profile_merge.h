// One profile of what a group's workers learned: their bundles, as GetProfile tells them.  Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::server {

// FAILED_PRECONDITION (OTHER_WEIGHTS): the request names weights that are not the served ones.
absl::Status CheckProfileRequest(const v1::GetProfileRequest& request, absl::string_view served_hash);

// bundles [R]: of the ranks, each a profile_bundle.h file.  Counts add; maps are means weighted by their rows.
// FAILED_PRECONDITION (NO_PROFILE): nothing was routed yet.  INTERNAL: a worker's bundle cannot be read, or is of other
// weights.
absl::StatusOr<std::string> MergeProfiles(const std::vector<std::string>& bundles, absl::string_view served_hash);

}  // namespace switchyard::server
