#include "server/api/expert_query.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "server/balancer/expert_view.h"
#include "server/engine/live_requests.h"

namespace switchyard::server {

absl::Status CheckHasExperts(const ServedModel& model) {
  if (model.num_moe_layers > 0) return absl::OkStatus();
  return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_EXPERTS,
                        absl::StrCat("model ", model.name, " has no MoE layers"));
}

void QueryExperts(const RequestContext* context, const v1::GetExpertsRequest& request,
                  const std::shared_ptr<const ServedModel>& model, const std::string& client,
                  std::function<void(const absl::StatusOr<v1::GetExpertsResponse>& experts)> done) {
  const absl::Status status = [&] {
    RETURN_IF_ERROR(CheckHasExperts(*model));
    return CheckExpertsRequest(request, model->num_moe_layers, model->num_experts);
  }();
  if (!status.ok()) return done(status);
  context->engine->CopyExperts([context, request, model, client, done](std::unique_ptr<const ExpertsCopy> experts) {
    if (experts == nullptr) return done(ServerStops());  // as the model is known
    // On the pool, as the engine's thread must not wait for it.
    context->pool->Post({.client = client,
                         .bytes = static_cast<int64_t>(request.ByteSizeLong()),
                         .run =
                             [request, model, done, experts = std::shared_ptr<const ExpertsCopy>(std::move(experts))] {
                               v1::GetExpertsResponse answer = DescribeExperts(request, *experts, MonotonicNow());
                               answer.set_model(model->name);
                               done(answer);
                             },
                         .refuse = [done](const absl::Status& why) { done(why); }});
  });
}

}  // namespace switchyard::server
