#include "tests/scheduler/batching/scenario_interpreter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/scheduler/batching/event_text.h"
#include "tests/scheduler/batching/invariants.h"

namespace switchyard::testing_batching {
namespace {

using Args = std::map<std::string, std::string>;

// Tests' input: a value that is no number is a mistake of the scenario, and 0 makes it visible.
int64_t Number(const std::string& text) {
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value : 0;
}

int64_t Get(const Args& args, const std::string& key, int64_t otherwise) {
  const auto found = args.find(key);
  return found == args.end() ? otherwise : Number(found->second);
}

std::vector<int32_t> GetList(const Args& args, const std::string& key) {
  std::vector<int32_t> values;
  const auto found = args.find(key);
  if (found == args.end()) return values;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(found->second, ','))) {
    values.push_back(static_cast<int32_t>(Number(word)));
  }
  return values;
}

std::string RankLine(size_t idx, const batching::RankPlan& rank) {
  std::string line = absl::StrCat("rank ", idx);
  if (!rank.freed_slots.empty()) absl::StrAppend(&line, " | free ", absl::StrJoin(rank.freed_slots, ","));
  for (const batching::StepItem& item : rank.items) {
    absl::StrAppend(&line, " | slot ", item.slot, " pos ", item.start_pos, "+", item.num_query);
    if (item.init) {
      absl::StrAppend(&line, " init ", absl::StrJoin(item.init->tokens, ","));
      if (const int32_t from = item.init->sampling.expert_paths_from; from >= 0)
        absl::StrAppend(&line, " paths ", from);
    }
    if (!item.new_blocks.empty()) absl::StrAppend(&line, " blocks ", absl::StrJoin(item.new_blocks, ","));
    if (item.sample) absl::StrAppend(&line, " sample");
  }
  return line;
}

}  // namespace

std::vector<std::string> ScenarioInterpreter::Call(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  Args args;
  for (const std::string& word : words) {
    const std::pair<std::string, std::string> field = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (absl::StrContains(word, "=")) args.insert(field);
  }
  const std::string& call = words[0];
  if (call == "policy") {
    SetPolicy(args);
    return {};
  }
  if (scheduler_ == nullptr) return {"error: the policy comes first"};
  if (call == "at" && words.size() == 2) {
    now_ = absl::UnixEpoch() + absl::Milliseconds(Number(words[1]));
  } else if (call == "group") {
    StartGroup(args);
  } else if (call == "submit" && words.size() > 2) {
    return Submit(Number(words[1]), args);
  } else if (call == "plan") {
    return Plan();
  } else if (call == "commit") {
    return Commit(words);
  } else if (call == "cancel" && words.size() > 2) {
    const batching::FinishReason reason =
        words[2] == "stop" ? batching::FinishReason::kStop : batching::FinishReason::kAbort;
    const int32_t choice = static_cast<int32_t>(Get(args, "choice", batching::Scheduler::kAllChoices));
    if (!scheduler_->Cancel(Number(words[1]), choice, reason, now_, &events_)) return {"nothing to cancel"};
  } else if (call == "lose") {
    scheduler_->LoseGroup(Get(args, "fail_waiting", 0) != 0, now_, &events_);
    plans_.clear();
  } else if (call == "stats") {
    return Stats(words);
  } else if (call == "timings" && words.size() == 2) {
    return Timings(words[1]);
  } else {
    return {absl::StrCat("error: what is \"", line, "\"?")};
  }
  batching::Invariants::Check(*scheduler_);
  return TakeEvents();
}

void ScenarioInterpreter::SetPolicy(const Args& args) {
  batching::BatchingPolicy policy;
  const auto number = [&args](const char* name, int32_t otherwise) {
    return static_cast<int32_t>(Get(args, name, otherwise));
  };
  policy.max_num_seqs = number("max_num_seqs", 4);
  policy.max_batched_tokens = number("max_batched_tokens", 64);
  policy.prefill_chunk = number("prefill_chunk", 0);
  policy.block_size = number("block_size", 4);
  policy.max_model_len = number("max_model_len", 64);
  policy.max_queue = number("max_queue", 16);
  policy.max_queued_tokens = Get(args, "max_queued_tokens", 1000);
  policy.prefix_reuse = number("prefix_reuse", 1) != 0;
  policy.max_prefix_imbalance = number("max_prefix_imbalance", 8);
  policy.min_rebalance_rows = number("min_rebalance_rows", -1);
  policy.max_in_flight = number("max_in_flight", 1);
  policy.max_losses = number("max_losses", policy.max_losses);
  policy.preempt_every_step = number("preempt_every_step", 0) != 0;
  scheduler_ = std::make_unique<batching::Scheduler>(policy);
}

void ScenarioInterpreter::StartGroup(const Args& args) {
  scheduler_->StartGroup({.epoch = ++epoch_,
                          .num_ranks = static_cast<int32_t>(Get(args, "ranks", 1)),
                          .num_blocks = static_cast<int32_t>(Get(args, "blocks", 16)),
                          .lost_from_outside = Get(args, "lost_from_outside", 0) != 0,
                          .weights_version = static_cast<uint64_t>(Get(args, "weights", 0)),
                          .numerics = static_cast<uint64_t>(Get(args, "numerics", 0)),
                          .long_rope_above = static_cast<int32_t>(Get(args, "long_rope_above", 0)),
                          .expert_path_ids = 1,
                          .min_rebalance_rows = static_cast<int32_t>(Get(args, "min_rebalance_rows", 0))},
                         now_, &events_);
  plans_.clear();
}

std::vector<std::string> ScenarioInterpreter::Submit(batching::RequestId id, const Args& args) {
  batching::Request request;
  request.id = id;
  request.prompt = GetList(args, "prompt");
  request.max_tokens = static_cast<int32_t>(Get(args, "max_tokens", 8));
  request.num_choices = static_cast<int32_t>(Get(args, "n", 1));
  request.sampling.stop_ids = GetList(args, "stop");
  request.sampling.min_tokens = static_cast<int32_t>(Get(args, "min_tokens", 0));
  request.sampling.num_prompt_logprobs = static_cast<int32_t>(Get(args, "prompt_logprobs", -1));
  request.sampling.expert_paths_from = static_cast<int32_t>(Get(args, "expert_paths", -1));
  if (args.contains("salt")) request.cache_salt = args.at("salt");
  if (args.contains("deadline")) request.deadline = absl::UnixEpoch() + absl::Milliseconds(Get(args, "deadline", 0));
  const absl::Status status = scheduler_->Submit(std::move(request), now_);
  if (!status.ok()) return {absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message())};
  return TakeEvents();
}

std::vector<std::string> ScenarioInterpreter::Plan() {
  std::optional<batching::StepPlan> plan = scheduler_->Plan(now_, &events_);
  batching::Invariants::Check(*scheduler_);
  std::vector<std::string> lines = TakeEvents();
  if (!plan) {
    lines.push_back("nothing");
    return lines;
  }
  for (size_t r = 0; r < plan->ranks.size(); ++r) lines.push_back(RankLine(r, plan->ranks[r]));
  for (const batching::RowTransfer& transfer : plan->transfers) {
    lines.push_back(absl::StrCat("transfer ", transfer.from, " -> ", transfer.to, " rows ", transfer.rows));
  }
  plans_.push_back(*std::move(plan));
  return lines;
}

std::vector<std::string> ScenarioInterpreter::Commit(const std::vector<std::string>& words) {
  if (plans_.empty()) return {"error: no plan is out"};
  const batching::StepPlan plan = std::move(plans_.front());
  plans_.pop_front();
  batching::StepResult result;
  result.step = plan.step;
  result.group_epoch = plan.group_epoch;
  size_t next = 1;
  for (const batching::RankPlan& rank : plan.ranks) {
    batching::RankResult& answer = result.ranks.emplace_back();
    for (const batching::StepItem& item : rank.items) {
      batching::ItemResult& out = answer.items.emplace_back();
      // Only the init says whether a slot wants prompt logprobs: scenarios that ask for them prefill in one item.
      if (item.init && item.init->sampling.num_prompt_logprobs >= 0) {
        const int32_t last = std::min(item.start_pos + item.num_query, item.init->num_prompt_tokens - 1);
        for (int32_t pos = item.start_pos; pos < last; ++pos) out.prompt_logprobs.emplace_back();
      }
      int32_t& paths_from = paths_from_[{result.ranks.size(), item.slot}];
      if (item.init) paths_from = item.init->sampling.expert_paths_from;
      for (int32_t pos = item.start_pos; pos < item.start_pos + item.num_query; ++pos) {
        if (paths_from >= 0 && pos >= paths_from) out.expert_paths.push_back(0);
      }
      if (!item.sample) continue;
      if (next == words.size()) return {"error: too few tokens"};
      const std::string& word = words[next++];
      if (word == "nan") {
        out.status = batching::ItemStatus::kNonFinite;
      } else {
        out.tokens.push_back(static_cast<int32_t>(Number(word)));
      }
    }
  }
  if (next != words.size()) return {"error: too many tokens"};
  const absl::Status status = scheduler_->Commit(result, now_, &events_);
  if (!status.ok()) return {absl::StrCat("error: ", status.message())};
  batching::Invariants::Check(*scheduler_);
  return TakeEvents();
}

std::vector<std::string> ScenarioInterpreter::Stats(const std::vector<std::string>& words) const {
  const batching::SchedulerStats stats = scheduler_->Stats();
  const auto per_rank = [&stats](int32_t batching::RankStats::*field) {
    const auto append = [field](std::string* out, const batching::RankStats& rank) {
      absl::StrAppend(out, rank.*field);
    };
    return absl::StrJoin(stats.ranks, ",", append);
  };
  const std::map<std::string, std::string> values = {
      {"running", absl::StrCat(stats.running)},
      {"waiting", absl::StrCat(stats.waiting)},
      {"waiting_requests", absl::StrCat(stats.waiting_requests)},
      {"waiting_tokens", absl::StrCat(stats.waiting_tokens)},
      {"in_flight", absl::StrCat(stats.in_flight)},
      {"outlived_losses", absl::StrCat(stats.outlived_losses)},
      {"submitted", absl::StrCat(stats.submitted)},
      {"refused", absl::StrCat(stats.refused)},
      {"preemptions", absl::StrCat(stats.preemptions)},
      {"rows_lent", absl::StrCat(stats.rows_given)},
      {"queries", absl::StrCat(stats.prefix_query_tokens)},
      {"hits", absl::StrCat(stats.prefix_hit_tokens)},
      {"evictions", absl::StrCat(stats.evictions)},
      {"blocks_used", per_rank(&batching::RankStats::blocks_used)},
      {"blocks_cached", per_rank(&batching::RankStats::blocks_cached)},
      {"rank_running", per_rank(&batching::RankStats::running)},
      {"retry_after", absl::FormatDuration(scheduler_->RetryAfter())},
      {"next_deadline", absl::FormatDuration(scheduler_->NextDeadline() - absl::UnixEpoch())},
  };
  std::string line;
  for (size_t i = 1; i < words.size(); ++i) {
    const auto found = values.find(words[i]);
    absl::StrAppend(&line, i > 1 ? " " : "", words[i], " ", found == values.end() ? "unknown" : found->second);
  }
  return {line};
}

std::vector<std::string> ScenarioInterpreter::Timings(const std::string& choice) const {
  const auto found = timings_.find(choice);
  if (found == timings_.end()) return {"not finished"};
  const batching::SequenceTimings& t = found->second;
  return {absl::StrCat("queue ", absl::FormatDuration(t.Queue()), " prefill ", absl::FormatDuration(t.Prefill()),
                       " decode ", absl::FormatDuration(t.Decode()))};
}

std::vector<std::string> ScenarioInterpreter::TakeEvents() {
  std::vector<std::string> lines;
  for (const batching::Event& event : events_) {
    lines.push_back(ToText(event));
    if (const auto* finished = std::get_if<batching::FinishedEvent>(&event.what)) {
      timings_[absl::StrCat(event.request, ".", event.choice)] = finished->timings;
    }
  }
  events_.clear();
  return lines;
}

}  // namespace switchyard::testing_batching
