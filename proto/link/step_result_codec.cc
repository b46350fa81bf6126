#include "proto/link/step_result_codec.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/link/field_table.h"

namespace switchyard::link {
namespace {

constexpr size_t kExpertsPerEntry = 8;  // about the bytes of an entry

using PositionMessages = google::protobuf::RepeatedPtrField<v1::StepPositionLogprobs>;

constexpr auto LogprobFields() {
  using M = v1::StepLogprob;
  using S = batching::TokenLogprob;
  return FieldTable(Field(&M::token, &M::set_token, &S::token), Field(&M::logprob, &M::set_logprob, &S::logprob),
                    Field(&M::rank, &M::set_rank, &S::rank));
}

constexpr auto TimingFields() {
  using M = v1::StepTimings;
  using S = batching::StepTimings;
  return FieldTable(Field(&M::total_seconds, &M::set_total_seconds, &S::total_seconds),
                    Field(&M::attention_seconds, &M::set_attention_seconds, &S::attention_seconds),
                    Field(&M::expert_seconds, &M::set_expert_seconds, &S::expert_seconds),
                    Field(&M::exchange_seconds, &M::set_exchange_seconds, &S::exchange_seconds),
                    Field(&M::head_seconds, &M::set_head_seconds, &S::head_seconds),
                    Field(&M::gather_seconds, &M::set_gather_seconds, &S::gather_seconds),
                    Field(&M::decide_seconds, &M::set_decide_seconds, &S::decide_seconds),
                    Field(&M::routed_seconds, &M::set_routed_seconds, &S::routed_seconds),
                    Field(&M::mask_seconds, &M::set_mask_seconds, &S::mask_seconds));
}

constexpr auto ResultFields() {
  using M = v1::StepResult;
  using S = batching::RankResult;
  return FieldTable(Field(&M::expert_counts, &M::mutable_expert_counts, &S::expert_counts),
                    Field(&M::decode_expert_counts, &M::mutable_decode_expert_counts, &S::decode_expert_counts),
                    Field(&M::rows, &M::set_rows, &S::rows), Field(&M::rows_sent, &M::set_rows_sent, &S::rows_sent),
                    Field(&M::rows_received, &M::set_rows_received, &S::rows_received),
                    Field(&M::expert_rows, &M::set_expert_rows, &S::expert_rows),
                    Field(&M::layer_rows, &M::mutable_layer_rows, &S::layer_rows),
                    Field(&M::layer_seconds, &M::mutable_layer_seconds, &S::layer_seconds),
                    Field(&M::experts_read, &M::set_experts_read, &S::experts_read),
                    Field(&M::fine_tuned_layers, &M::set_fine_tuned_layers, &S::fine_tuned_layers),
                    Field(&M::ledger_hash, &M::set_ledger_hash, &S::ledger_hash));
}

void AppendPositions(const std::vector<batching::PositionLogprobs>& from, PositionMessages* to) {
  for (const batching::PositionLogprobs& position : from) {
    v1::StepPositionLogprobs* message = to->Add();
    LogprobFields().Put(position.chosen, message->mutable_chosen());
    for (const batching::TokenLogprob& top : position.top) LogprobFields().Put(top, message->add_top());
  }
}

void AppendPositions(const PositionMessages& from, std::vector<batching::PositionLogprobs>* to) {
  to->reserve(to->size() + static_cast<size_t>(from.size()));
  for (const v1::StepPositionLogprobs& message : from) {
    batching::PositionLogprobs& position = to->emplace_back();
    position.chosen = LogprobFields().FromProto(message.chosen());
    for (const v1::StepLogprob& top : message.top()) position.top.push_back(LogprobFields().FromProto(top));
  }
}

std::string BytesOfPaths(absl::Span<const int16_t> paths) {
  return {reinterpret_cast<const char*>(paths.data()), paths.size() * sizeof(int16_t)};
}

void AppendPaths(absl::string_view bytes, std::vector<int16_t>* to) {
  const size_t had = to->size(), more = bytes.size() / sizeof(int16_t);
  to->resize(had + more);
  if (more > 0)
    std::memcpy(to->data() + had, bytes.data(),
                more * sizeof(int16_t));  // memcpy must not get null, not even for 0 bytes
}

// Appends the lists of an item's message, or of a part of one.
template <class Message>
void AppendDetails(const Message& from, batching::ItemResult* to) {
  AppendPositions(from.logprobs(), &to->logprobs);
  AppendPositions(from.prompt_logprobs(), &to->prompt_logprobs);
  AppendPaths(from.expert_paths(), &to->expert_paths);
}

v1::ItemResult ItemToProto(const batching::ItemResult& item) {
  v1::ItemResult message;
  message.set_status(static_cast<int32_t>(item.status));
  message.mutable_tokens()->Add(item.tokens.begin(), item.tokens.end());
  AppendPositions(item.logprobs, message.mutable_logprobs());
  AppendPositions(item.prompt_logprobs, message.mutable_prompt_logprobs());
  message.set_expert_paths(BytesOfPaths(item.expert_paths));
  return message;
}

batching::ItemResult ItemFromProto(const v1::ItemResult& message) {
  batching::ItemResult item;
  item.status = message.status() == 0 ? batching::ItemStatus::kOk : batching::ItemStatus::kNonFinite;
  item.tokens.assign(message.tokens().begin(), message.tokens().end());
  AppendDetails(message, &item);
  return item;
}

// Moves positions from `in` into parts that `add` makes, of at most `budget` entries (one token each).
template <class AddFn>
void CutPositions(std::vector<batching::PositionLogprobs>* in, size_t budget, AddFn add) {
  for (size_t begin = 0; begin < in->size();) {
    std::vector<batching::PositionLogprobs> piece;
    for (size_t entries = 0; begin < in->size() && (piece.empty() || entries < budget); ++begin) {
      entries += 1 + (*in)[begin].top.size();
      piece.push_back(std::move((*in)[begin]));
    }
    AppendPositions(piece, add());
  }
  in->clear();
}

size_t CountEntries(const batching::ItemResult& item) {
  size_t entries = item.expert_paths.size() / kExpertsPerEntry;
  for (const auto* positions : {&item.logprobs, &item.prompt_logprobs}) {
    for (const batching::PositionLogprobs& position : *positions) entries += 1 + position.top.size();
  }
  return entries;
}

}  // namespace

v1::StepResult ToProto(const batching::StepPlan& head, const batching::RankResult& result) {
  v1::StepResult message = ResultFields().ToProto(result);
  message.set_step(head.step);
  message.set_group_epoch(head.group_epoch);
  for (const batching::ItemResult& item : result.items) *message.add_items() = ItemToProto(item);
  TimingFields().Put(result.timings, message.mutable_timings());
  return message;
}

batching::RankResult FromProto(const v1::StepResult& message) {
  batching::RankResult result = ResultFields().FromProto(message);
  result.items.reserve(message.items_size());
  for (const v1::ItemResult& item : message.items()) result.items.push_back(ItemFromProto(item));
  TimingFields().Take(message.timings(), &result.timings);
  return result;
}

std::vector<v1::StepPart> CutIntoParts(const batching::StepPlan& head, batching::RankResult* result, size_t budget) {
  size_t entries = 0;
  for (const batching::ItemResult& item : result->items) entries += CountEntries(item);
  std::vector<v1::StepPart> parts;
  if (entries <= budget) return parts;
  for (size_t i = 0; i < result->items.size(); ++i) {
    batching::ItemResult& item = result->items[i];
    const auto next = [&] {
      v1::StepPart* part = &parts.emplace_back();
      part->set_step(head.step);
      part->set_group_epoch(head.group_epoch);
      part->set_item(static_cast<int32_t>(i));
      return part;
    };
    CutPositions(&item.logprobs, budget, [&] { return next()->mutable_logprobs(); });
    CutPositions(&item.prompt_logprobs, budget, [&] { return next()->mutable_prompt_logprobs(); });
    const auto paths = absl::MakeConstSpan(item.expert_paths);
    for (size_t begin = 0; begin < paths.size(); begin += budget * kExpertsPerEntry) {
      next()->set_expert_paths(BytesOfPaths(paths.subspan(begin, budget * kExpertsPerEntry)));
    }
    item.expert_paths.clear();
  }
  return parts;
}

bool AddPart(const v1::StepPart& message, batching::RankResult* result) {
  if (message.item() < 0 || message.item() >= static_cast<int64_t>(result->items.size())) return false;
  AppendDetails(message, &result->items[message.item()]);
  return true;
}

}  // namespace switchyard::link
