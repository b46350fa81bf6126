// GetExperts beneath its transport: for gRPC, and for HTTP's page.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/request_context.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::server {

// FAILED_PRECONDITION, NO_EXPERTS, for a model without MoE layers.
absl::Status CheckHasExperts(const ServedModel& model);

// Checks the request against the model and calls `done` once with the answer, on the front pool in the turn of
// `client`; with an error at once, or on the engine's thread.  Returns at once.  Any thread.
void QueryExperts(const RequestContext* context, const v1::GetExpertsRequest& request,
                  const std::shared_ptr<const ServedModel>& model, const std::string& client,
                  std::function<void(const absl::StatusOr<v1::GetExpertsResponse>& experts)> done);

}  // namespace switchyard::server
