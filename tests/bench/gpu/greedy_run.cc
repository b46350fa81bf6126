#include "tests/bench/gpu/greedy_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"

namespace switchyard {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr absl::Duration kStepLimit = absl::Minutes(2);

}  // namespace

absl::StatusOr<std::unique_ptr<GreedyRun>> GreedyRun::Create(model::Model* model, const Stream& stream,
                                                             const GreedyOptions& options) {
  std::unique_ptr<GreedyRun> run(new GreedyRun(stream, options));
  run->layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(model->config().num_experts), 1);
  const int64_t blocks = (options.context + kBlockSize - 1) / kBlockSize * options.max_sequences;
  const int64_t cache_bytes = model::KvBytesPerToken(model->config(), model->dtype()) * kBlockSize * blocks;
  ASSIGN_OR_RETURN(run->runner_, model::ModelRunner::Create(model, stream,
                                                            {.num_slots = options.max_sequences,
                                                             .block_size = kBlockSize,
                                                             .kv_cache_bytes = [&] { return cache_bytes; },
                                                             .touch_cache = true,
                                                             .max_rows = options.max_rows,
                                                             .context = options.context,
                                                             .graphs = options.graphs}));
  RETURN_IF_ERROR(run->runner_->SetGroup(run->comm_.get(), &run->layout_));
  return run;
}

absl::Status GreedyRun::Start(batching::RankPlan plan, std::vector<int32_t> sequences) {
  if (runner_->num_started() == options_.in_flight) RETURN_IF_ERROR(FinishOldest());
  batching::StepPlan head;
  head.step = ++step_;
  Step& step = steps_.emplace_back();
  step.sequences = std::move(sequences);
  RETURN_IF_ERROR(step.begin.Record(stream_));
  const absl::Time began = absl::Now();
  RETURN_IF_ERROR(runner_->Start(head, plan, began + kStepLimit));
  host_seconds_ += absl::ToDoubleSeconds(absl::Now() - began);
  return step.end.Record(stream_);
}

absl::Status GreedyRun::FinishOldest() {
  absl::StatusOr<batching::RankResult> result = runner_->Finish();
  RETURN_IF_ERROR(result.status());
  const Step& step = steps_[finished_++];
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const batching::ItemResult& item = result->items[i];
    if (item.status != batching::ItemStatus::kOk || item.tokens.size() != 1) {
      return absl::InternalError(absl::StrCat("sequence ", step.sequences[i], ": its logits were no numbers"));
    }
    tokens_[step.sequences[i]].push_back(item.tokens[0]);
  }
  touched_ += static_cast<double>(
      std::count_if(result->expert_counts.begin(), result->expert_counts.end(), [](int64_t n) { return n > 0; }));
  return absl::OkStatus();
}

absl::StatusOr<StepTimes> GreedyRun::Collect(absl::Time began) {
  while (runner_->num_started() > 0) RETURN_IF_ERROR(FinishOldest());
  StepTimes times;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  if (!steps_.empty()) {
    double inside = 0;
    for (const Step& step : steps_) {
      double one;
      ASSIGN_OR_RETURN(one, SecondsBetween(step.begin, step.end));
      inside += one;
    }
    double all;
    ASSIGN_OR_RETURN(all, SecondsBetween(steps_.front().begin, steps_.back().end));
    const auto count = static_cast<double>(steps_.size());
    times = {.steps = static_cast<int64_t>(steps_.size()),
             .seconds = seconds / count,
             .device_seconds = inside / count,
             .device_busy = inside / all,
             .host_seconds = host_seconds_ / count,
             .experts_touched = touched_ / count};
  }
  steps_.clear();
  finished_ = 0;
  host_seconds_ = touched_ = 0;
  return times;
}

absl::StatusOr<StepTimes> GreedyRun::Prefill(const std::vector<std::vector<int32_t>>& prompts) {
  tokens_.assign(prompts.size(), {});
  lengths_.assign(prompts.size(), 0);
  const int32_t blocks_each = (options_.context + kBlockSize - 1) / kBlockSize;
  const absl::Time began = absl::Now();
  batching::RankPlan plan;
  std::vector<int32_t> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int32_t>(prompts[i].size()), slot = static_cast<int32_t>(i);
    if (plan.NumRows() + length > options_.max_rows && !plan.items.empty()) {
      RETURN_IF_ERROR(Start(std::exchange(plan, {}), std::exchange(sequences, {})));
    }
    batching::StepItem item;
    item.slot = slot;
    item.num_query = length;
    item.init = batching::SlotInit{.tokens = prompts[i], .num_prompt_tokens = length, .sampling = {}};
    item.init->sampling.temperature = 0;
    item.sample = true;
    for (int32_t b = 0; b < blocks_each; ++b) item.new_blocks.push_back(slot * blocks_each + b);
    plan.items.push_back(std::move(item));
    sequences.push_back(slot);
    lengths_[i] = length;
  }
  RETURN_IF_ERROR(Start(std::move(plan), std::move(sequences)));
  return Collect(began);
}

absl::StatusOr<StepTimes> GreedyRun::Decode(int64_t steps) {
  const absl::Time began = absl::Now();
  for (int64_t i = 0; i < steps; ++i) {
    batching::RankPlan plan;
    std::vector<int32_t> sequences;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      batching::StepItem item;
      item.slot = static_cast<int32_t>(s);
      item.start_pos = lengths_[s]++;
      item.num_query = 1;
      item.sample = true;
      plan.items.push_back(std::move(item));
      sequences.push_back(static_cast<int32_t>(s));
    }
    RETURN_IF_ERROR(Start(std::move(plan), std::move(sequences)));
  }
  return Collect(began);
}

}  // namespace switchyard
