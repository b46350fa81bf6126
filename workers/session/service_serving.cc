#include "workers/session/service_serving.h"

#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/memory_share.h"
#include "workers/process/convert.h"
#include "workers/session/service_duty.h"

namespace switchyard {

void ServingRole::Describe(v1::Register* out) const {
  const Worker& worker = *worker_;
  out->set_device(worker.device().ToString());
  out->set_isa(worker.isa());
  out->set_memory_bytes(worker.memory_bytes());
  for (const char* dtype : {"fp32", "bf16", "fp16", "fp64"}) out->add_dtypes(dtype);
  out->set_weights_hash(worker.weights_hash());
  *out->mutable_model() = FactsToProto(worker);
  if (worker.expert_budget().empty()) return;
  const absl::StatusOr<MemoryShare> share = ParseMemoryShare(worker.expert_budget().budget);
  SY_CHECK(share.ok());  // the flags were checked
  out->set_expert_budget_percent(share->percent);
  out->set_expert_budget_bytes(share->bytes);
}

std::unique_ptr<LinkDuty> ServingRole::Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) {
  worker_->ForgetEpochs();
  auto duty =
      std::make_unique<Duty>(worker_, metrics_, std::move(channel), std::move(place), &served_, std::move(send));
  duty->Share(share_);
  return duty;
}

}  // namespace switchyard
