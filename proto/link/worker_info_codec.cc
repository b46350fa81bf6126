#include "proto/link/worker_info_codec.h"

#include <algorithm>

#include "proto/link/link_protocol.h"

namespace switchyard::link {
namespace {

v1::ModelFacts ModelToProto(const fleet::WorkerInfo& info) {
  v1::ModelFacts message;
  message.set_architecture(info.architecture);
  message.set_dtype(info.dtype);
  message.set_vocab_size(info.vocab_size);
  message.set_context(info.context);
  message.set_num_layers(info.num_layers);
  message.set_num_moe_layers(info.num_moe_layers);
  message.set_num_experts(info.num_experts);
  message.set_experts_per_token(info.experts_per_token);
  message.mutable_eos_token_ids()->Add(info.eos_token_ids.begin(), info.eos_token_ids.end());
  message.set_long_rope_above(info.long_rope_above);
  message.set_min_rebalance_rows(info.min_rebalance_rows);
  message.set_expert_bytes(info.expert_bytes);
  return message;
}

void ModelFromProto(const v1::ModelFacts& message, fleet::WorkerInfo* info) {
  info->architecture = message.architecture();
  info->dtype = message.dtype();
  info->vocab_size = message.vocab_size();
  info->context = message.context();
  info->num_layers = message.num_layers();
  info->num_moe_layers = message.num_moe_layers();
  info->num_experts = message.num_experts();
  info->experts_per_token = message.experts_per_token();
  info->eos_token_ids.assign(message.eos_token_ids().begin(), message.eos_token_ids().end());
  info->long_rope_above = message.long_rope_above();
  info->min_rebalance_rows = message.min_rebalance_rows();
  info->expert_bytes = message.expert_bytes();
}

}  // namespace

v1::Register ToProto(const fleet::WorkerInfo& info) {
  v1::Register message;
  message.set_protocol_version(kProtocolVersion);
  message.set_incarnation(info.incarnation);
  message.set_host(info.host);
  message.set_pid(info.pid);
  message.set_role(info.role);
  message.set_device(info.device);
  message.set_isa(info.isa);
  message.set_weights_hash(info.weights_hash);
  message.set_join_token(info.join_token);
  message.set_local_index(info.local_index);
  message.set_collective_address(info.collective_address);
  message.set_metrics_address(info.metrics_address);
  if (!info.architecture.empty()) *message.mutable_model() = ModelToProto(info);
  if (info.expert_budget.has_value()) {
    message.set_expert_budget_percent(info.expert_budget->percent);
    message.set_expert_budget_bytes(info.expert_budget->bytes);
  }
  return message;
}

fleet::WorkerInfo FromProto(const v1::Register& message) {
  fleet::WorkerInfo info;
  info.incarnation = message.incarnation();
  info.host = message.host();
  info.pid = message.pid();
  info.role = message.role();
  info.device = message.device();
  info.isa = message.isa();
  info.weights_hash = message.weights_hash();
  info.join_token = message.join_token();
  info.local_index = message.local_index();
  info.collective_address = message.collective_address();
  info.metrics_address = message.metrics_address();
  ModelFromProto(message.model(), &info);
  if (message.expert_budget_percent() > 0 || message.expert_budget_bytes() > 0) {
    info.expert_budget = MemoryShare{.percent = std::min(100.0, message.expert_budget_percent()),
                                     .bytes = message.expert_budget_bytes()};
  }
  return info;
}

}  // namespace switchyard::link
