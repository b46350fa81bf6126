#include "proto/link/step_plan_codec.h"

#include <algorithm>
#include <utility>

#include "proto/link/sampling_codec.h"

namespace switchyard::link {
namespace {

v1::SlotInit InitToProto(const batching::SlotInit& init) {
  v1::SlotInit message;
  message.mutable_tokens()->Add(init.tokens.begin(), init.tokens.end());
  message.set_num_prompt_tokens(init.num_prompt_tokens);
  *message.mutable_sampling() = ToProto(init.sampling);
  return message;
}

batching::SlotInit InitFromProto(const v1::SlotInit& message) {
  batching::SlotInit init;
  init.tokens.assign(message.tokens().begin(), message.tokens().end());
  init.num_prompt_tokens = message.num_prompt_tokens();
  init.sampling = FromProto(message.sampling());
  return init;
}

v1::StepItem ItemToProto(const batching::StepItem& item) {
  v1::StepItem message;
  message.set_slot(item.slot);
  message.set_start_pos(item.start_pos);
  message.set_num_query(item.num_query);
  if (item.init) *message.mutable_init() = InitToProto(*item.init);
  message.mutable_new_blocks()->Add(item.new_blocks.begin(), item.new_blocks.end());
  message.set_sample(item.sample);
  return message;
}

batching::StepItem ItemFromProto(const v1::StepItem& message) {
  batching::StepItem item;
  item.slot = message.slot();
  item.start_pos = message.start_pos();
  item.num_query = message.num_query();
  if (message.has_init()) item.init = InitFromProto(message.init());
  item.new_blocks.assign(message.new_blocks().begin(), message.new_blocks().end());
  item.sample = message.sample();
  return item;
}

}  // namespace

v1::StepPlan ToProto(const batching::StepPlan& plan, int rank, absl::Duration limit) {
  v1::StepPlan message;
  message.set_step(plan.step);
  message.set_group_epoch(plan.group_epoch);
  message.set_placement_epoch(plan.placement_epoch);
  message.set_exchange_version(plan.exchange_version);
  message.set_micro_batches(plan.micro_batches);
  message.set_padded_rows(plan.padded_rows);
  for (const batching::RowTransfer& transfer : plan.transfers) {
    v1::RowTransfer* to = message.add_transfers();
    to->set_from(transfer.from);
    to->set_to(transfer.to);
    to->set_rows(transfer.rows);
  }
  const batching::RankPlan& part = plan.ranks[rank];
  message.mutable_freed_slots()->Add(part.freed_slots.begin(), part.freed_slots.end());
  for (const batching::StepItem& item : part.items) *message.add_items() = ItemToProto(item);
  message.set_train_slice_ms(plan.train_slice_ms);
  message.set_timeout_ms(std::max<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1))), 1));
  return message;
}

batching::RankPlan FromProto(const v1::StepPlan& message, batching::StepPlan* head, absl::Duration* limit) {
  head->step = message.step();
  head->group_epoch = message.group_epoch();
  head->placement_epoch = message.placement_epoch();
  head->exchange_version = message.exchange_version();
  head->micro_batches = message.micro_batches();
  head->padded_rows = message.padded_rows();
  head->train_slice_ms = message.train_slice_ms();
  head->transfers.clear();
  for (const v1::RowTransfer& transfer : message.transfers()) {
    head->transfers.push_back({.from = transfer.from(), .to = transfer.to(), .rows = transfer.rows()});
  }
  *limit = absl::Milliseconds(message.timeout_ms());
  batching::RankPlan part;
  part.freed_slots.assign(message.freed_slots().begin(), message.freed_slots().end());
  for (const v1::StepItem& item : message.items()) part.items.push_back(ItemFromProto(item));
  return part;
}

}  // namespace switchyard::link
