#include "server/fleet/worker_convert.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "server/api/placement_convert.h"

namespace switchyard {
namespace {

void FillSampling(const SamplingParams& params, v1::SamplingPlan* out) {
  out->set_temperature(params.temperature);
  out->set_top_p(params.top_p);
  out->set_top_k(params.top_k);
  out->set_min_p(params.min_p);
  out->set_presence_penalty(params.presence_penalty);
  out->set_frequency_penalty(params.frequency_penalty);
  out->set_repetition_penalty(params.repetition_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    out->add_bias_ids(token);
    out->add_bias_values(bias);
  }
  out->set_seed(params.seed);
  out->set_choice(params.choice);
  out->set_min_tokens(params.min_tokens);
  out->mutable_stop_ids()->Add(params.stop_ids.begin(), params.stop_ids.end());
  out->set_num_logprobs(params.num_logprobs);
  out->set_num_prompt_logprobs(params.num_prompt_logprobs);
  if (params.expert_paths_from >= 0) out->set_expert_paths_from(params.expert_paths_from);
}

void FillItem(const StepItem& item, v1::StepItem* out) {
  out->set_slot(item.slot);
  out->set_start_pos(item.start_pos);
  out->set_num_query(item.num_query);
  if (item.init) {
    v1::SlotInit* init = out->mutable_init();
    init->mutable_tokens()->Add(item.init->tokens.begin(), item.init->tokens.end());
    init->set_num_prompt_tokens(item.init->num_prompt_tokens);
    init->set_adapter(item.init->adapter);
    FillSampling(item.init->sampling, init->mutable_sampling());
  }
  out->mutable_new_blocks()->Add(item.new_blocks.begin(), item.new_blocks.end());
  out->set_sample(item.sample);
  out->mutable_draft_tokens()->Add(item.draft_tokens.begin(), item.draft_tokens.end());
  out->set_token_mask(item.token_mask);
}

TokenLogprob FromProto(const v1::StepLogprob& message) { return {message.token(), message.logprob(), message.rank()}; }

template <class Messages>
std::vector<PositionLogprobs> PositionsFromProto(const Messages& messages) {
  std::vector<PositionLogprobs> out;
  out.reserve(messages.size());
  for (const v1::StepPositionLogprobs& message : messages) {
    PositionLogprobs position;
    position.chosen = FromProto(message.chosen());
    for (const v1::StepLogprob& top : message.top()) position.top.push_back(FromProto(top));
    out.push_back(std::move(position));
  }
  return out;
}

void AppendPaths(const std::string& bytes, std::vector<int16_t>* to) {
  const size_t had = to->size(), more = bytes.size() / sizeof(int16_t);
  to->resize(had + more);
  if (more > 0) std::memcpy(to->data() + had, bytes.data(), more * sizeof(int16_t));  // takes no null, not even for 0
}

}  // namespace

WorkerInfo FromProto(const v1::Register& message) {
  WorkerInfo info;
  info.incarnation = message.incarnation();
  info.host = message.host();
  info.pid = message.pid();
  info.device = message.device();
  info.isa = message.isa();
  info.memory_bytes = message.memory_bytes();
  info.weights_hash = message.weights_hash();
  info.join_token = message.join_token();
  info.local_index = message.local_index();
  info.collective_address = message.collective_address();
  info.metrics_address = message.metrics_address();
  const v1::ModelFacts& model = message.model();
  info.architecture = model.architecture();
  info.dtype = model.dtype();
  info.vocab_size = model.vocab_size();
  info.context = model.context();
  info.num_layers = model.num_layers();
  info.num_moe_layers = model.num_moe_layers();
  info.num_experts = model.num_experts();
  info.experts_per_token = model.experts_per_token();
  info.hidden = model.hidden();
  info.eos_token_ids.assign(model.eos_token_ids().begin(), model.eos_token_ids().end());
  info.long_rope_above = model.long_rope_above();
  info.min_loan_rows = model.min_loan_rows();
  info.expert_bytes = model.expert_bytes();
  if (message.expert_budget_percent() > 0 || message.expert_budget_bytes() > 0) {
    info.expert_budget = MemoryShare{.percent = std::min(100.0, message.expert_budget_percent()),
                                     .bytes = message.expert_budget_bytes()};
  }
  return info;
}

v1::JoinGroup ToProto(const GroupSeat& seat) {
  v1::JoinGroup message;
  message.set_epoch(seat.epoch);
  message.set_rank(seat.rank);
  message.set_world(seat.world);
  v1::Mesh* mesh = message.mutable_mesh();
  mesh->set_dp(seat.world);
  mesh->set_ep(seat.world);
  mesh->set_tp(1);
  mesh->set_esp(1);
  mesh->set_pp(1);
  v1::NamedGroup* group = message.add_groups();
  group->set_name("world");
  for (int rank = 0; rank < seat.world; ++rank) group->add_members(rank);
  message.set_layer_end(seat.num_layers);
  message.set_store_token(seat.store_token);
  message.set_deadline_ms(seat.form_deadline_ms);
  message.set_reach(seat.reach);
  *message.mutable_placement() = ToProto(seat.placement);
  return message;
}

v1::StepPlan ToProto(const StepPlan& plan, int rank, absl::Duration limit) {
  v1::StepPlan message;
  message.set_step(plan.step);
  message.set_group_epoch(plan.group_epoch);
  message.set_placement_epoch(plan.placement_epoch);
  message.set_schedule_version(plan.schedule_version);
  message.set_exchange_version(plan.exchange_version);
  message.set_micro_batches(plan.micro_batches);
  message.set_padded_rows(plan.padded_rows);
  for (const RowLoan& loan : plan.loans) {
    v1::RowLoan* to = message.add_loans();
    to->set_from(loan.from);
    to->set_to(loan.to);
    to->set_rows(loan.rows);
  }
  const RankPlan& part = plan.ranks[rank];
  message.mutable_freed_slots()->Add(part.freed_slots.begin(), part.freed_slots.end());
  for (const BlockCopy& copy : part.copies) {
    message.add_copy_from(copy.from);
    message.add_copy_to(copy.to);
  }
  for (const StepItem& item : part.items) FillItem(item, message.add_items());
  message.set_train_slice_ms(plan.train_slice_ms);
  message.set_timeout_ms(std::max<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1))), 1));
  return message;
}

RankResult FromProto(const v1::StepResult& message) {
  RankResult result;
  result.items.reserve(message.items_size());
  for (const v1::ItemResult& item : message.items()) {
    ItemResult out;
    out.status = item.status() == 0 ? ItemStatus::kOk : ItemStatus::kNonFinite;
    out.tokens.assign(item.tokens().begin(), item.tokens().end());
    out.logprobs = PositionsFromProto(item.logprobs());
    out.prompt_logprobs = PositionsFromProto(item.prompt_logprobs());
    AppendPaths(item.expert_paths(), &out.expert_paths);
    result.items.push_back(std::move(out));
  }
  result.expert_counts.assign(message.expert_counts().begin(), message.expert_counts().end());
  result.decode_expert_counts.assign(message.decode_expert_counts().begin(), message.decode_expert_counts().end());
  result.rows = message.rows();
  result.rows_sent = message.rows_sent();
  result.rows_received = message.rows_received();
  result.expert_rows = message.expert_rows();
  result.layer_rows.assign(message.layer_rows().begin(), message.layer_rows().end());
  result.ledger_hash = message.ledger_hash();
  result.timings = {message.total_seconds(),    message.attention_seconds(), message.expert_seconds(),
                    message.exchange_seconds(), message.head_seconds(),      message.gather_seconds(),
                    message.decide_seconds()};
  result.fine_tuned_layers = message.fine_tuned_layers();
  return result;
}

bool AddPart(const v1::StepPart& message, RankResult* result) {
  if (message.item() < 0 || message.item() >= static_cast<int64_t>(result->items.size())) return false;
  ItemResult& item = result->items[message.item()];
  const auto append = [](std::vector<PositionLogprobs> from, std::vector<PositionLogprobs>* to) {
    to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(PositionsFromProto(message.logprobs()), &item.logprobs);
  append(PositionsFromProto(message.prompt_logprobs()), &item.prompt_logprobs);
  AppendPaths(message.expert_paths(), &item.expert_paths);
  return true;
}

}  // namespace switchyard
