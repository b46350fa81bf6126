#include "workers/model/runner/sequence_slots.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::model {
namespace {

template <class... Parts>
absl::Status BadPlan(batching::SlotId slot, const Parts&... parts) {
  return absl::InternalError(absl::StrCat("plan: slot ", slot, ": ", parts...));
}

absl::Status CheckInit(batching::SlotId slot, const batching::SlotInit& init, const SlotLimits& limits) {
  const auto num_tokens = static_cast<int64_t>(init.tokens.size());
  if (num_tokens < 1 || num_tokens > limits.context) {
    return BadPlan(slot, num_tokens, " tokens, expected [1, ", limits.context, "]");
  }
  if (init.num_prompt_tokens < 1 || init.num_prompt_tokens > num_tokens) {
    return BadPlan(slot, "num_prompt_tokens ", init.num_prompt_tokens, " of ", num_tokens, " tokens");
  }
  if (init.adapter < 0 || init.adapter > limits.num_adapters) {
    return BadPlan(slot, "adapter ", init.adapter, " of ", limits.num_adapters);
  }
  for (const int32_t token : init.tokens) {
    if (token < 0 || token >= limits.vocab_size) {
      return BadPlan(slot, "token ", token, " is outside [0, ", limits.vocab_size, ")");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMask(batching::SlotId slot, const grammar::TokenMask& mask, int32_t vocab_size) {
  if (mask.bits.empty()) {
    if (mask.ids.empty()) return absl::OkStatus();  // it has ended
    if (mask.ids.front() >= 0 && mask.ids.back() < vocab_size && std::is_sorted(mask.ids.begin(), mask.ids.end()))
      return absl::OkStatus();
    return BadPlan(slot, "a mask with ids that do not rise within [0, ", vocab_size, ")");
  }
  const size_t wanted = (static_cast<size_t>(vocab_size) + 7) / 8;
  if (mask.bits.size() == wanted) return absl::OkStatus();
  return BadPlan(slot, "a mask of ", mask.bits.size(), " bytes, expected ", wanted);
}

void Empty(Slot* slot) {
  const uint64_t generation = slot->generation + 1;
  *slot = Slot();
  slot->generation = generation;
}

}  // namespace

SequenceSlots::SequenceSlots(const SlotLimits& limits)
    : limits_(limits), slots_(static_cast<size_t>(limits.num_slots)) {}

absl::Status SequenceSlots::Validate(const batching::RankPlan& plan) const {
  int64_t rows = 0;
  absl::flat_hash_set<batching::SlotId> freed, seen;
  for (const batching::SlotId id : plan.freed_slots) {
    if (id < 0 || id >= limits_.num_slots) {
      return BadPlan(id, "freed, but outside [0, ", limits_.num_slots, ")");
    }
    freed.insert(id);
  }
  for (const batching::StepItem& item : plan.items) {
    if (item.slot < 0 || item.slot >= limits_.num_slots) {
      return BadPlan(item.slot, "outside [0, ", limits_.num_slots, ")");
    }
    if (!seen.insert(item.slot).second) return BadPlan(item.slot, "two items in one step");
    const bool held = slots_[item.slot].in_use && !freed.contains(item.slot);
    if (!held && !item.init.has_value()) return BadPlan(item.slot, "is empty and the item has no init");
    RETURN_IF_ERROR(ValidateItem(item, slots_[item.slot]));
    rows += item.num_query;
  }
  if (rows > limits_.max_rows) {
    return absl::InternalError(absl::StrCat("plan: ", rows, " rows, limit ", limits_.max_rows));
  }
  return absl::OkStatus();
}

absl::Status SequenceSlots::ValidateItem(const batching::StepItem& item, const Slot& before) const {
  const bool fresh = item.init.has_value();
  if (fresh) RETURN_IF_ERROR(CheckInit(item.slot, *item.init, limits_));
  const bool constrained = (fresh ? item.init->sampling : before.sampling).constrained;
  if (item.masked != (item.sample && constrained)) {
    return BadPlan(item.slot, item.masked ? "a mask, and no constraint" : "a constraint, and no mask");
  }
  const auto num_tokens = static_cast<int64_t>(fresh ? item.init->tokens.size() : before.tokens.size());
  if (!fresh && item.start_pos != before.num_computed) {
    return BadPlan(item.slot, "start_pos ", item.start_pos, ", computed ", before.num_computed);
  }
  const int64_t end = int64_t{item.start_pos} + item.num_query;
  // A broken sequence has no next token; its items are not run.
  if (item.start_pos < 0 || item.num_query < 1 || (end > num_tokens && (fresh || !before.broken))) {
    return BadPlan(item.slot, "queries [", item.start_pos, ",", end, ") of ", num_tokens, " tokens");
  }
  if (item.sample && (fresh || !before.broken) && end != num_tokens) {
    return BadPlan(item.slot, "samples behind position ", end, " of ", num_tokens, " tokens");
  }
  if (item.sample && end >= limits_.context) {
    return BadPlan(item.slot, "samples at position ", end, ", context ", limits_.context);
  }
  for (const batching::BlockId block : item.new_blocks) {
    if (block < 0 || block >= limits_.num_blocks) {
      return BadPlan(item.slot, "block ", block, " is outside [0, ", limits_.num_blocks, ")");
    }
  }
  const auto num_blocks = static_cast<int64_t>((fresh ? 0 : before.block_table.size()) + item.new_blocks.size());
  if (num_blocks * limits_.block_size < end) {
    return BadPlan(item.slot, num_blocks, " blocks of ", limits_.block_size, " for ", end, " positions");
  }
  if ((num_blocks - 1) * limits_.block_size >= limits_.context) {
    return BadPlan(item.slot, num_blocks, " blocks of ", limits_.block_size, ", context ", limits_.context);
  }
  return absl::OkStatus();
}

absl::Status SequenceSlots::ValidateMasks(const batching::RankPlan& plan, const batching::RankMasks& masks) const {
  size_t next = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (!plan.items[i].masked) continue;
    const batching::SlotId slot = plan.items[i].slot;
    if (next == masks.items.size() || masks.items[next].item != static_cast<int32_t>(i))
      return BadPlan(slot, "its mask is not among those of its step");
    RETURN_IF_ERROR(CheckMask(slot, masks.items[next++].mask, limits_.vocab_size));
  }
  if (next == masks.items.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("masks: ", masks.items.size(), ", expected ", next));
}

void SequenceSlots::Apply(const batching::RankPlan& plan) {
  for (const batching::SlotId id : plan.freed_slots) Empty(&slots_[id]);
  for (const batching::StepItem& item : plan.items) {
    Slot& slot = slots_[item.slot];
    if (item.init.has_value()) {
      Empty(&slot);
      slot.in_use = true;
      slot.tokens = item.init->tokens;
      slot.num_prompt_tokens = item.init->num_prompt_tokens;
      slot.adapter = item.init->adapter;
      slot.num_computed = item.start_pos;
      slot.sampling = item.init->sampling;
      slot.history.Reset(slot.tokens, slot.num_prompt_tokens);
    }
    slot.block_table.insert(slot.block_table.end(), item.new_blocks.begin(), item.new_blocks.end());
  }
}

void SequenceSlots::Append(batching::SlotId id, int32_t token) {
  slots_[id].tokens.push_back(token);
  slots_[id].history.AppendOutput(token);
}

void SequenceSlots::AppendPending(batching::SlotId id) {
  slots_[id].tokens.push_back(kPendingToken);
  ++slots_[id].num_pending;
}

void SequenceSlots::Resolve(batching::SlotId id, uint64_t generation, int64_t position, int32_t token) {
  Slot& slot = slots_[id];
  if (slot.generation != generation) return;
  slot.tokens[position] = token;
  slot.history.AppendOutput(token);
  --slot.num_pending;
}

void SequenceSlots::Clear() {
  for (Slot& slot : slots_) Empty(&slot);
}

}  // namespace switchyard::model
