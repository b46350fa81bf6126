#include "tests/simulation/serving/rank_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/serving/token_model.h"

namespace switchyard::simulation {

bool RankMemory::IsPoisoned(const batching::RankPlan& plan) const {
  return std::any_of(plan.items.begin(), plan.items.end(), [](const batching::StepItem& item) {
    return item.init.has_value() && item.init->tokens[0] == kPoison;
  });
}

std::string RankMemory::Run(const batching::RankPlan& plan, const batching::RankMasks& masks,
                            batching::RankResult* result) {
  for (const batching::SlotId slot : plan.freed_slots) {
    if (slots_.erase(slot) == 0) return absl::StrCat("slot ", slot, " is freed, but was empty");
  }
  for (const batching::StepItem& item : plan.items) {
    if (std::string wrong = Prepare(item); !wrong.empty()) return absl::StrCat("slot ", item.slot, ": ", wrong);
  }
  size_t next = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const batching::StepItem& item = plan.items[i];
    grammar::TokenMask mask;
    if (item.masked) {
      if (next == masks.items.size() || masks.items[next].item != static_cast<int32_t>(i))
        return absl::StrCat("slot ", item.slot, ": no mask for item ", i);
      mask = masks.items[next++].mask;
    }
    if (std::string wrong = Compute(item, mask, &result->items.emplace_back()); !wrong.empty())
      return absl::StrCat("slot ", item.slot, ": ", wrong);
  }
  if (next != masks.items.size()) return absl::StrCat(masks.items.size(), " masks for ", next, " items");
  result->rows = plan.NumRows();
  return "";
}

std::string RankMemory::Prepare(const batching::StepItem& item) {
  if (item.slot < 0 || item.slot >= num_slots_) return "no such slot";
  if (slots_.contains(item.slot) == item.init.has_value()) return "filled and sent again, or empty and not filled";
  Slot& slot = slots_[item.slot];
  if (item.init) {
    slot = {item.init->tokens, static_cast<size_t>(item.init->num_prompt_tokens), item.init->sampling, {}, 0};
    slot.num_computed = item.start_pos;
    if (item.start_pos % block_size_ != 0) return absl::StrCat("begins at ", item.start_pos, ", inside of a block");
  }
  const int32_t end = item.start_pos + item.num_query;
  if (item.start_pos != slot.num_computed || item.num_query < 1 || end > static_cast<int32_t>(slot.tokens.size())) {
    return absl::StrCat("positions [", item.start_pos, ", ", end, ") of ", slot.tokens.size(), ", computed are ",
                        slot.num_computed);
  }
  for (const batching::BlockId block : item.new_blocks) {
    if (block < 0 || static_cast<size_t>(block) * block_size_ >= cells_.size()) return "no such block";
    slot.table.push_back(block);
  }
  if (static_cast<int32_t>(slot.table.size()) != (end + block_size_ - 1) / block_size_) {
    return absl::StrCat(slot.table.size(), " blocks for ", end, " positions");
  }
  return "";
}

std::string RankMemory::Compute(const batching::StepItem& item, const grammar::TokenMask& mask,
                                batching::ItemResult* result) {
  Slot& slot = slots_.at(item.slot);
  if (item.masked != (item.sample && slot.sampling.constrained)) return "masked, or not, against its sampling";
  uint64_t state = kFirstState;
  for (int32_t position = 0; position < item.start_pos; ++position) {
    state = NextState(state, slot.tokens[position]);
    if (CellOf(slot, position) != state)
      return absl::StrCat("position ", position, ": its block holds somebody else's content");
  }
  for (size_t b = item.start_pos / block_size_; b < slot.table.size(); ++b) {
    for (const auto& [id, other] : slots_) {
      if (id != item.slot && std::find(other.table.begin(), other.table.end(), slot.table[b]) != other.table.end())
        return absl::StrCat("writes block ", slot.table[b], ", which slot ", id, " uses");
    }
  }
  for (; slot.num_computed < item.start_pos + item.num_query; ++slot.num_computed) {
    state = NextState(state, slot.tokens[slot.num_computed]);
    CellOf(slot, slot.num_computed) = state;
  }
  if (!item.sample) return "";
  const auto index = static_cast<int32_t>(slot.tokens.size() - slot.num_prompt_tokens);
  slot.tokens.push_back(ChooseToken(state, slot.sampling, index, mask));
  result->tokens.push_back(slot.tokens.back());
  if (slot.sampling.num_logprobs >= 0) {
    result->logprobs.push_back({.chosen = {.token = slot.tokens.back(), .logprob = -1, .rank = 1}, .top = {}});
  }
  return "";
}

}  // namespace switchyard::simulation
