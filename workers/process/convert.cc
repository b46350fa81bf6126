#include "workers/process/convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/runner/lending_cost.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/session/service_placement.h"

namespace switchyard {
namespace {

SamplingParams SamplingFromProto(const v1::SamplingPlan& message) {
  SamplingParams params;
  params.temperature = message.temperature();
  params.top_p = message.top_p();
  params.top_k = message.top_k();
  params.min_p = message.min_p();
  params.presence_penalty = message.presence_penalty();
  params.frequency_penalty = message.frequency_penalty();
  params.repetition_penalty = message.repetition_penalty();
  const int num_biases = std::min(message.bias_ids_size(), message.bias_values_size());
  for (int i = 0; i < num_biases; ++i) params.logit_bias.emplace_back(message.bias_ids(i), message.bias_values(i));
  params.seed = message.seed();
  params.choice = message.choice();
  params.min_tokens = message.min_tokens();
  params.stop_ids.assign(message.stop_ids().begin(), message.stop_ids().end());
  params.num_logprobs = message.num_logprobs();
  params.num_prompt_logprobs = message.num_prompt_logprobs();
  if (message.has_expert_paths_from()) params.expert_paths_from = message.expert_paths_from();
  return params;
}

StepItem ItemFromProto(const v1::StepItem& message) {
  StepItem item;
  item.slot = message.slot();
  item.start_pos = message.start_pos();
  item.num_query = message.num_query();
  if (message.has_init()) {
    SlotInit init;
    init.tokens.assign(message.init().tokens().begin(), message.init().tokens().end());
    init.num_prompt_tokens = message.init().num_prompt_tokens();
    init.sampling = SamplingFromProto(message.init().sampling());
    init.adapter = message.init().adapter();
    item.init = std::move(init);
  }
  item.new_blocks.assign(message.new_blocks().begin(), message.new_blocks().end());
  item.sample = message.sample();
  item.draft_tokens.assign(message.draft_tokens().begin(), message.draft_tokens().end());
  item.token_mask = message.token_mask();
  return item;
}

void FillLogprob(const TokenLogprob& in, v1::StepLogprob* out) {
  out->set_token(in.token);
  out->set_logprob(in.logprob);
  out->set_rank(in.rank);
}

template <class Out>
void FillPositions(const std::vector<PositionLogprobs>& in, Out* out) {
  for (const PositionLogprobs& position : in) {
    v1::StepPositionLogprobs* to = out->Add();
    FillLogprob(position.chosen, to->mutable_chosen());
    for (const TokenLogprob& top : position.top) FillLogprob(top, to->add_top());
  }
}

}  // namespace

absl::StatusOr<EngineSettings> FromProto(const v1::EngineOptions& message) {
  EngineSettings settings;
  settings.block_size = message.block_size();
  settings.kv_cache_bytes = message.kv_cache_bytes();
  settings.max_num_seqs = message.max_num_seqs();
  settings.max_batched_tokens = message.max_batched_tokens();
  settings.max_model_len = message.max_model_len();
  ASSIGN_OR_RETURN(settings.placement, FromProto(message.placement()));
  return settings;
}

absl::StatusOr<Seat> FromProto(const v1::JoinGroup& message) {
  Seat seat;
  seat.epoch = message.epoch();
  seat.rank = message.rank();
  seat.world = message.world();
  seat.token = message.store_token();
  seat.form_timeout = absl::Milliseconds(message.deadline_ms());
  if (seat.world < 1 || seat.rank < 0 || seat.rank >= seat.world) {
    return absl::InvalidArgumentError(absl::StrCat("no seat: rank ", seat.rank, " of ", seat.world));
  }
  ASSIGN_OR_RETURN(seat.placement, FromProto(message.placement(), seat.world));
  return seat;
}

RankPlan FromProto(const v1::StepPlan& message, StepPlan* head) {
  head->step = message.step();
  head->group_epoch = message.group_epoch();
  head->placement_epoch = message.placement_epoch();
  head->schedule_version = message.schedule_version();
  head->exchange_version = message.exchange_version();
  head->micro_batches = message.micro_batches();
  head->padded_rows = message.padded_rows();
  head->train_slice_ms = message.train_slice_ms();
  head->loans.clear();
  for (const v1::RowLoan& loan : message.loans()) head->loans.push_back({loan.from(), loan.to(), loan.rows()});
  RankPlan part;
  part.freed_slots.assign(message.freed_slots().begin(), message.freed_slots().end());
  const int num_copies = std::min(message.copy_from_size(), message.copy_to_size());
  for (int i = 0; i < num_copies; ++i) part.copies.push_back({message.copy_from(i), message.copy_to(i)});
  for (const v1::StepItem& item : message.items()) part.items.push_back(ItemFromProto(item));
  return part;
}

v1::StepResult ToProto(const StepPlan& head, const RankResult& result) {
  v1::StepResult message;
  message.set_step(head.step);
  message.set_group_epoch(head.group_epoch);
  for (const ItemResult& item : result.items) {
    v1::ItemResult* to = message.add_items();
    to->set_status(static_cast<int32_t>(item.status));
    to->mutable_tokens()->Add(item.tokens.begin(), item.tokens.end());
    FillPositions(item.logprobs, to->mutable_logprobs());
    FillPositions(item.prompt_logprobs, to->mutable_prompt_logprobs());
    to->set_expert_paths(item.expert_paths.data(), item.expert_paths.size() * sizeof(int16_t));
  }
  message.mutable_expert_counts()->Add(result.expert_counts.begin(), result.expert_counts.end());
  message.mutable_decode_expert_counts()->Add(result.decode_expert_counts.begin(), result.decode_expert_counts.end());
  message.set_rows(result.rows);
  message.set_rows_sent(result.rows_sent);
  message.set_rows_received(result.rows_received);
  message.set_expert_rows(result.expert_rows);
  message.mutable_layer_rows()->Add(result.layer_rows.begin(), result.layer_rows.end());
  message.set_ledger_hash(result.ledger_hash);
  message.set_total_seconds(result.timings.total_seconds);
  message.set_attention_seconds(result.timings.attention_seconds);
  message.set_expert_seconds(result.timings.expert_seconds);
  message.set_exchange_seconds(result.timings.exchange_seconds);
  message.set_head_seconds(result.timings.head_seconds);
  message.set_gather_seconds(result.timings.gather_seconds);
  message.set_decide_seconds(result.timings.decide_seconds);
  message.set_fine_tuned_layers(result.fine_tuned_layers);
  return message;
}

namespace {

// Moves positions out of `in` into parts of at most `budget` entries (of one token each) that `add` makes.
template <class AddFn>
void CutPositions(std::vector<PositionLogprobs>* in, size_t budget, AddFn add) {
  for (size_t begin = 0; begin < in->size();) {
    std::vector<PositionLogprobs> piece;
    for (size_t entries = 0; begin < in->size() && (piece.empty() || entries < budget); ++begin) {
      entries += 1 + (*in)[begin].top.size();
      piece.push_back(std::move((*in)[begin]));
    }
    add(piece);
  }
  in->clear();
}

size_t CountEntries(const std::vector<PositionLogprobs>& positions) {
  size_t entries = 0;
  for (const PositionLogprobs& position : positions) entries += 1 + position.top.size();
  return entries;
}

// As long as an entry.
constexpr size_t kExpertsPerEntry = 8;

size_t CountEntries(const ItemResult& item) {
  return CountEntries(item.logprobs) + CountEntries(item.prompt_logprobs) + item.expert_paths.size() / kExpertsPerEntry;
}

absl::string_view BytesOf(absl::Span<const int16_t> paths) {
  return {reinterpret_cast<const char*>(paths.data()), paths.size() * sizeof(int16_t)};
}

}  // namespace

std::vector<v1::StepPart> CutIntoParts(const StepPlan& head, RankResult* result, size_t budget) {
  size_t entries = 0;
  for (const ItemResult& item : result->items) entries += CountEntries(item);
  std::vector<v1::StepPart> parts;
  if (entries <= budget) return parts;
  for (size_t i = 0; i < result->items.size(); ++i) {
    const auto next = [&] {
      v1::StepPart* part = &parts.emplace_back();
      part->set_step(head.step);
      part->set_group_epoch(head.group_epoch);
      part->set_item(static_cast<int32_t>(i));
      return part;
    };
    CutPositions(&result->items[i].logprobs, budget,
                 [&](const std::vector<PositionLogprobs>& piece) { FillPositions(piece, next()->mutable_logprobs()); });
    CutPositions(&result->items[i].prompt_logprobs, budget, [&](const std::vector<PositionLogprobs>& piece) {
      FillPositions(piece, next()->mutable_prompt_logprobs());
    });
    std::vector<int16_t>& paths = result->items[i].expert_paths;
    for (size_t begin = 0; begin < paths.size(); begin += budget * kExpertsPerEntry) {
      const absl::string_view piece = BytesOf(absl::MakeSpan(paths).subspan(begin, budget * kExpertsPerEntry));
      next()->set_expert_paths(piece.data(), piece.size());
    }
    paths.clear();
  }
  return parts;
}

v1::ModelFacts FactsToProto(const Worker& worker) {
  const ModelConfig& config = worker.config();
  v1::ModelFacts facts;
  facts.set_architecture(config.architecture);
  facts.set_dtype(DTypeName(worker.dtype()));
  facts.set_vocab_size(static_cast<int32_t>(config.vocab_size));
  facts.set_context(static_cast<int32_t>(config.context));
  facts.set_num_layers(static_cast<int32_t>(config.num_layers()));
  facts.set_num_moe_layers(static_cast<int32_t>(config.num_moe_layers()));
  facts.set_num_experts(static_cast<int32_t>(config.num_experts));
  facts.set_experts_per_token(static_cast<int32_t>(config.top_k));
  facts.set_hidden(static_cast<int32_t>(config.hidden));
  facts.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());
  facts.set_kv_bytes_per_token(KvBytesPerToken(config, worker.dtype()));
  facts.set_long_rope_above(static_cast<int32_t>(config.rope.LongAbove(config.context)));
  // Devices keep their rows: what would travel is in their memory, and they have rows to spare.
  const bool lends = worker.device().is_cpu();
  facts.set_min_loan_rows(lends ? MinLoanRows(config, worker.dtype(), CurrentIsa(), worker.threads()) : 0);
  if (config.num_experts > 0) {
    const DeviceKind kind = worker.device().kind;
    facts.set_expert_bytes(PackedExpert(config.hidden, config.expert_intermediate, worker.dtype(), kind).bytes);
  }
  return facts;
}

}  // namespace switchyard
