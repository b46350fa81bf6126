#include "proto/link/step_plan_codec.h"

#include <algorithm>

#include "proto/link/field_table.h"

namespace switchyard::link {
namespace {

constexpr auto SamplingFields() {
  using M = v1::SamplingPlan;
  using S = batching::SamplingParams;
  return FieldTable(Field(&M::temperature, &M::set_temperature, &S::temperature),
                    Field(&M::top_p, &M::set_top_p, &S::top_p), Field(&M::top_k, &M::set_top_k, &S::top_k),
                    Field(&M::min_p, &M::set_min_p, &S::min_p),
                    Field(&M::presence_penalty, &M::set_presence_penalty, &S::presence_penalty),
                    Field(&M::frequency_penalty, &M::set_frequency_penalty, &S::frequency_penalty),
                    Field(&M::repetition_penalty, &M::set_repetition_penalty, &S::repetition_penalty),
                    Field(&M::seed, &M::set_seed, &S::seed), Field(&M::choice, &M::set_choice, &S::choice),
                    Field(&M::min_tokens, &M::set_min_tokens, &S::min_tokens),
                    Field(&M::stop_ids, &M::mutable_stop_ids, &S::stop_ids),
                    Field(&M::num_logprobs, &M::set_num_logprobs, &S::num_logprobs),
                    Field(&M::num_prompt_logprobs, &M::set_num_prompt_logprobs, &S::num_prompt_logprobs),
                    Field(&M::constrained, &M::set_constrained, &S::constrained));
}

constexpr auto InitFields() {
  using M = v1::SlotInit;
  using S = batching::SlotInit;
  return FieldTable(Field(&M::tokens, &M::mutable_tokens, &S::tokens),
                    Field(&M::num_prompt_tokens, &M::set_num_prompt_tokens, &S::num_prompt_tokens),
                    Field(&M::adapter, &M::set_adapter, &S::adapter));
}

constexpr auto ItemFields() {
  using M = v1::StepItem;
  using S = batching::StepItem;
  return FieldTable(Field(&M::slot, &M::set_slot, &S::slot), Field(&M::start_pos, &M::set_start_pos, &S::start_pos),
                    Field(&M::num_query, &M::set_num_query, &S::num_query),
                    Field(&M::new_blocks, &M::mutable_new_blocks, &S::new_blocks),
                    Field(&M::sample, &M::set_sample, &S::sample), Field(&M::masked, &M::set_masked, &S::masked));
}

constexpr auto MaskFields() {
  using M = v1::TokenMask;
  using S = grammar::TokenMask;
  return FieldTable(Field(&M::ids, &M::mutable_ids, &S::ids), Field(&M::bits, &M::mutable_bits, &S::bits));
}

constexpr auto MasksHeadFields() {
  using M = v1::StepMasks;
  using S = batching::StepMasks;
  return FieldTable(Field(&M::step, &M::set_step, &S::step),
                    Field(&M::group_epoch, &M::set_group_epoch, &S::group_epoch));
}

constexpr auto TransferFields() {
  using M = v1::RowTransfer;
  using S = batching::RowTransfer;
  return FieldTable(Field(&M::from, &M::set_from, &S::from), Field(&M::to, &M::set_to, &S::to),
                    Field(&M::rows, &M::set_rows, &S::rows));
}

constexpr auto CostFields() {
  using M = v1::LayerCosts;
  using S = placement::LayerCosts;
  return FieldTable(Field(&M::copy_ps, &M::set_copy_ps, &S::copy_ps), Field(&M::row_ps, &M::set_row_ps, &S::row_ps),
                    Field(&M::weights_ps, &M::set_weights_ps, &S::weights_ps));
}

constexpr auto HeadFields() {
  using M = v1::StepPlan;
  using S = batching::StepPlan;
  return FieldTable(
      Field(&M::step, &M::set_step, &S::step), Field(&M::group_epoch, &M::set_group_epoch, &S::group_epoch),
      Field(&M::exchange_version, &M::set_exchange_version, &S::exchange_version),
      Field(&M::micro_batches, &M::set_micro_batches, &S::micro_batches),
      Field(&M::rank_rows, &M::mutable_rank_rows, &S::rank_rows), Field(&M::decides, &M::set_decides, &S::decides),
      Field(&M::train_slice_ms, &M::set_train_slice_ms, &S::train_slice_ms));
}

v1::StepItem ItemToProto(const batching::StepItem& item) {
  v1::StepItem message = ItemFields().ToProto(item);
  if (item.init) {
    *message.mutable_init() = InitFields().ToProto(*item.init);
    *message.mutable_init()->mutable_sampling() = ToProto(item.init->sampling);
  }
  return message;
}

batching::StepItem ItemFromProto(const v1::StepItem& message) {
  batching::StepItem item = ItemFields().FromProto(message);
  if (message.has_init()) {
    item.init = InitFields().FromProto(message.init());
    item.init->sampling = FromProto(message.init().sampling());
  }
  return item;
}

}  // namespace

v1::SamplingPlan ToProto(const batching::SamplingParams& params) {
  v1::SamplingPlan message = SamplingFields().ToProto(params);
  for (const auto& [token, bias] : params.logit_bias) {
    message.add_bias_ids(token);
    message.add_bias_values(bias);
  }
  if (params.expert_paths_from >= 0) message.set_expert_paths_from(params.expert_paths_from);
  return message;
}

batching::SamplingParams FromProto(const v1::SamplingPlan& message) {
  batching::SamplingParams params = SamplingFields().FromProto(message);
  const int num_biases = std::min(message.bias_ids_size(), message.bias_values_size());
  for (int i = 0; i < num_biases; ++i) params.logit_bias.emplace_back(message.bias_ids(i), message.bias_values(i));
  if (message.has_expert_paths_from()) params.expert_paths_from = message.expert_paths_from();
  return params;
}

v1::StepPlan ToProto(const batching::StepPlan& plan, int rank, absl::Duration limit) {
  v1::StepPlan message = HeadFields().ToProto(plan);
  for (const batching::RowTransfer& transfer : plan.transfers) {
    TransferFields().Put(transfer, message.add_transfers());
  }
  CostFields().Put(plan.layer_costs, message.mutable_layer_costs());
  const batching::RankPlan& part = plan.ranks[rank];
  message.mutable_freed_slots()->Add(part.freed_slots.begin(), part.freed_slots.end());
  for (const batching::StepItem& item : part.items) *message.add_items() = ItemToProto(item);
  message.set_timeout_ms(std::max<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1))), 1));
  return message;
}

batching::RankPlan FromProto(const v1::StepPlan& message, batching::StepPlan* head, absl::Duration* limit) {
  HeadFields().Take(message, head);
  head->layer_costs = CostFields().FromProto(message.layer_costs());
  head->transfers.clear();
  for (const v1::RowTransfer& transfer : message.transfers()) {
    head->transfers.push_back(TransferFields().FromProto(transfer));
  }
  *limit = absl::Milliseconds(message.timeout_ms());
  batching::RankPlan part;
  part.freed_slots.assign(message.freed_slots().begin(), message.freed_slots().end());
  for (const v1::StepItem& item : message.items()) part.items.push_back(ItemFromProto(item));
  return part;
}

v1::StepMasks ToProto(const batching::StepMasks& masks, int rank) {
  v1::StepMasks message = MasksHeadFields().ToProto(masks);
  for (const batching::ItemMask& item : masks.ranks[rank].items) {
    v1::ItemMask* added = message.add_items();
    added->set_item(item.item);
    MaskFields().Put(item.mask, added->mutable_mask());
  }
  return message;
}

batching::RankMasks FromProto(const v1::StepMasks& message, batching::StepMasks* head) {
  MasksHeadFields().Take(message, head);
  batching::RankMasks masks;
  for (const v1::ItemMask& item : message.items())
    masks.items.push_back({.item = item.item(), .mask = MaskFields().FromProto(item.mask())});
  return masks;
}

}  // namespace switchyard::link
