#include "server/api/admin_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/status_macros.h"
#include "server/api/profile_call.h"
#include "server/api/unary_call.h"
#include "server/balancer/expert_view.h"
#include "server/clock.h"

namespace switchyard::server {

grpc::ServerUnaryReactor* AdminServiceImpl::GetExperts(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response);
  v1::GetExpertsRequest message;
  std::shared_ptr<const ServedModel> model;
  const absl::Status status = [&] {
    RETURN_IF_ERROR(rpc::ParseRaw(*request, &message));
    RETURN_IF_ERROR(request_context_->Args(*context, &model).status());
    RETURN_IF_ERROR(CheckModelName(message.model(), *model));
    if (model->num_moe_layers == 0) {
      return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_EXPERTS,
                            absl::StrCat("model ", model->name, " has no MoE layers"));
    }
    return CheckExpertsRequest(message, model->num_moe_layers, model->num_experts);
  }();
  if (!status.ok()) {
    call->Fail(status);
    return call;
  }
  request_context_->engine->CopyExperts([call, message, model](std::unique_ptr<const ExpertsCopy> experts) {
    if (experts == nullptr) {  // the model is known, so it was: the server stops
      return call->Fail(rpc::MakeError(absl::StatusCode::kUnavailable, v1::DRAINING, "the server is stopping"));
    }
    // Off the engine's thread.
    call->Start([message, model, experts = std::shared_ptr<const ExpertsCopy>(std::move(experts))](UnaryCall* call) {
      v1::GetExpertsResponse answer = DescribeExperts(message, *experts, MonotonicNow());
      answer.set_model(model->name);
      call->Reply(answer);
    });
  });
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* AdminServiceImpl::GetProfile(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer* request) {
  auto* call = new ProfileCall(request_context_, context);
  call->Start(*request);
  return call;
}

}  // namespace switchyard::server
