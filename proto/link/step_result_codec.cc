#include "proto/link/step_result_codec.h"

#include <utility>

#include "proto/link/step_part_codec.h"

namespace switchyard::link {
namespace {

v1::StepTimings ToProto(const batching::StepTimings& timings) {
  v1::StepTimings message;
  message.set_total_seconds(timings.total_seconds);
  message.set_attention_seconds(timings.attention_seconds);
  message.set_expert_seconds(timings.expert_seconds);
  message.set_exchange_seconds(timings.exchange_seconds);
  message.set_head_seconds(timings.head_seconds);
  message.set_gather_seconds(timings.gather_seconds);
  message.set_decide_seconds(timings.decide_seconds);
  return message;
}

batching::StepTimings FromProto(const v1::StepTimings& message) {
  return {.total_seconds = message.total_seconds(),
          .attention_seconds = message.attention_seconds(),
          .expert_seconds = message.expert_seconds(),
          .exchange_seconds = message.exchange_seconds(),
          .head_seconds = message.head_seconds(),
          .gather_seconds = message.gather_seconds(),
          .decide_seconds = message.decide_seconds()};
}

v1::ItemResult ToProto(const batching::ItemResult& item) {
  v1::ItemResult message;
  message.set_status(static_cast<int32_t>(item.status));
  message.mutable_tokens()->Add(item.tokens.begin(), item.tokens.end());
  AppendPositions(item.logprobs, message.mutable_logprobs());
  AppendPositions(item.prompt_logprobs, message.mutable_prompt_logprobs());
  message.set_expert_paths(BytesOfPaths(item.expert_paths));
  return message;
}

batching::ItemResult FromProto(const v1::ItemResult& message) {
  batching::ItemResult item;
  item.status = message.status() == 0 ? batching::ItemStatus::kOk : batching::ItemStatus::kNonFinite;
  item.tokens.assign(message.tokens().begin(), message.tokens().end());
  AppendPositions(message.logprobs(), &item.logprobs);
  AppendPositions(message.prompt_logprobs(), &item.prompt_logprobs);
  AppendPaths(message.expert_paths(), &item.expert_paths);
  return item;
}

}  // namespace

v1::StepResult ToProto(const batching::StepPlan& head, const batching::RankResult& result) {
  v1::StepResult message;
  message.set_step(head.step);
  message.set_group_epoch(head.group_epoch);
  for (const batching::ItemResult& item : result.items) *message.add_items() = ToProto(item);
  message.mutable_expert_counts()->Add(result.expert_counts.begin(), result.expert_counts.end());
  message.mutable_decode_expert_counts()->Add(result.decode_expert_counts.begin(), result.decode_expert_counts.end());
  message.set_rows(result.rows);
  message.set_rows_sent(result.rows_sent);
  message.set_rows_received(result.rows_received);
  message.set_expert_rows(result.expert_rows);
  message.mutable_layer_rows()->Add(result.layer_rows.begin(), result.layer_rows.end());
  message.set_fine_tuned_layers(result.fine_tuned_layers);
  message.set_ledger_hash(result.ledger_hash);
  *message.mutable_timings() = ToProto(result.timings);
  return message;
}

batching::RankResult FromProto(const v1::StepResult& message) {
  batching::RankResult result;
  result.items.reserve(message.items_size());
  for (const v1::ItemResult& item : message.items()) result.items.push_back(FromProto(item));
  result.expert_counts.assign(message.expert_counts().begin(), message.expert_counts().end());
  result.decode_expert_counts.assign(message.decode_expert_counts().begin(), message.decode_expert_counts().end());
  result.rows = message.rows();
  result.rows_sent = message.rows_sent();
  result.rows_received = message.rows_received();
  result.expert_rows = message.expert_rows();
  result.layer_rows.assign(message.layer_rows().begin(), message.layer_rows().end());
  result.fine_tuned_layers = message.fine_tuned_layers();
  result.ledger_hash = message.ledger_hash();
  result.timings = FromProto(message.timings());
  return result;
}

}  // namespace switchyard::link
