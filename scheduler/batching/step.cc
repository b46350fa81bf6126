#include "scheduler/batching/step.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace switchyard::batching {
namespace {

void AppendMs(std::string* out, double seconds) { absl::StrAppend(out, seconds * 1e3); }

}  // namespace

int32_t RankPlan::NumRows() const {
  int32_t rows = 0;
  for (const StepItem& item : items) rows += item.num_query;
  return rows;
}

int32_t StepPlan::most_rows() const {
  return rank_rows.empty() ? 0 : *std::max_element(rank_rows.begin(), rank_rows.end());
}

std::string StepPlan::DebugString() const {
  std::string out = absl::StrCat("step ", step, " epoch ", group_epoch, " micro_batches ", micro_batches,
                                 " rank_rows [", absl::StrJoin(rank_rows, " "), "]");
  if (!decides) absl::StrAppend(&out, " decides nothing");
  if (train_slice_ms > 0) absl::StrAppend(&out, " train_slice_ms ", train_slice_ms);
  out.push_back('\n');
  for (const RowTransfer& transfer : transfers) {
    absl::StrAppend(&out, "  transfer ", transfer.from, "->", transfer.to, ": rows ", transfer.rows, "\n");
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankPlan& rank = ranks[r];
    absl::StrAppend(&out, "  rank ", r, ": rows ", rank.NumRows());
    if (!rank.freed_slots.empty()) absl::StrAppend(&out, " free [", absl::StrJoin(rank.freed_slots, " "), "]");
    absl::StrAppend(&out, "\n");
    for (const StepItem& item : rank.items) {
      absl::StrAppend(&out, "    slot ", item.slot, " pos ", item.start_pos, "+", item.num_query);
      if (item.init) absl::StrAppend(&out, " init(", item.init->tokens.size(), " tokens)");
      if (item.init && item.init->adapter > 0) absl::StrAppend(&out, " adapter ", item.init->adapter);
      if (!item.new_blocks.empty()) absl::StrAppend(&out, " blocks +[", absl::StrJoin(item.new_blocks, " "), "]");
      absl::StrAppend(&out, item.masked ? " masked" : "", item.sample ? " sample\n" : "\n");
    }
  }
  return out;
}

std::string StepResult::DebugString() const {
  std::string out = absl::StrCat("result of step ", step, " epoch ", group_epoch, "\n");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankResult& rank = ranks[r];
    absl::StrAppend(&out, "  rank ", r, ": rows ", rank.rows, " sent ", rank.rows_sent, " received ",
                    rank.rows_received, " ledger ", absl::Hex(rank.ledger_hash), " ", rank.timings.total_seconds * 1e3,
                    " ms, layers' rows [", absl::StrJoin(rank.layer_rows, " "), "] ms [",
                    absl::StrJoin(rank.layer_seconds, " ", AppendMs), "]\n");
    for (const ItemResult& item : rank.items) {
      absl::StrAppend(&out, "    ", item.status == ItemStatus::kOk ? "ok" : "non-finite", " tokens [",
                      absl::StrJoin(item.tokens, " "), "]\n");
    }
  }
  return out;
}

bool IsPlainSampling(const SamplingParams& params, int64_t num_output) {
  return params.presence_penalty == 0 && params.frequency_penalty == 0 && params.repetition_penalty == 1 &&
         params.logit_bias.empty() && params.min_tokens <= num_output && params.num_logprobs < 0 &&
         params.num_prompt_logprobs < 0 && params.expert_paths_from < 0 && !params.constrained;
}

}  // namespace switchyard::batching
