#include "workers/session/serving_role.h"

#include <utility>

#include "proto/link/step_plan_codec.h"
#include "scheduler/base/check.h"
#include "scheduler/base/memory_share.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/runner/token_rebalancer.h"
#include "workers/model/weights/weights.h"
#include "workers/session/serving_handler.h"

namespace switchyard::worker {
namespace {

void DescribeModel(const Worker& worker, fleet::WorkerInfo* out) {
  const model::ModelConfig& config = worker.config();
  out->architecture = config.architecture;
  out->dtype = DTypeName(worker.dtype());
  if (const ops::WeightFormats format = worker.weight_type().format; format != ops::WeightFormats()) {
    out->quantization = ops::ToString(format);
  }
  if (worker.kv_format() != ops::KvFormat::kPlain) out->kv_cache_dtype = ops::KvFormatName(worker.kv_format());
  out->vocab_size = static_cast<int32_t>(config.vocab_size);
  out->context = static_cast<int32_t>(config.context);
  out->num_layers = static_cast<int32_t>(config.num_layers());
  out->num_moe_layers = static_cast<int32_t>(config.num_moe_layers());
  out->num_experts = static_cast<int32_t>(config.num_experts);
  out->experts_per_token = static_cast<int32_t>(config.top_k);
  out->eos_token_ids.assign(config.eos_token_ids.begin(), config.eos_token_ids.end());
  out->long_rope_above = static_cast<int32_t>(config.rope.LongAbove(config.context));
  // Devices keep their rows: what would travel is in their memory, and they have rows to spare.
  const bool gives = worker.device().is_cpu();
  out->min_rebalance_rows =
      gives ? model::MinRebalanceRows(config, worker.dtype(), ops::CurrentIsa(), worker.threads()) : 0;
  if (config.num_experts > 0) {
    const DeviceKind kind = worker.device().kind;
    out->expert_bytes = model::ExpertFormsOf(config, worker.weight_type(), kind).bytes();
    out->row_bytes = static_cast<int32_t>(config.hidden * DTypeBytes(worker.dtype()));
  }
}

}  // namespace

void ServingRole::Describe(fleet::WorkerInfo* out) const {
  const Worker& worker = *worker_;
  out->device = worker.device().ToString();
  out->isa = worker.isa();
  out->weights_hash = worker.weights_hash();
  out->adapters = worker.adapter_names();
  DescribeModel(worker, out);
  if (worker.expert_budget().empty() || worker.expert_budget().automatic()) return;
  const absl::StatusOr<MemoryShare> share = ParseMemoryShare(worker.expert_budget().budget);
  SY_CHECK(share.ok());  // the flags were checked
  out->expert_budget = *share;
}

void ServingRole::Arrived(const v1::LinkResponse& command) {
  if (!command.has_step_masks()) return;
  batching::StepMasks head;
  batching::RankMasks masks = link::FromProto(command.step_masks(), &head);
  worker_->PutMasks(head.group_epoch, head.step, std::move(masks));
}

std::unique_ptr<LinkHandler> ServingRole::Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) {
  worker_->ForgetEpochs();
  auto handler =
      std::make_unique<Handler>(worker_, metrics_, std::move(channel), std::move(place), &served_, std::move(send));
  handler->Share(share_);
  return handler;
}

}  // namespace switchyard::worker
