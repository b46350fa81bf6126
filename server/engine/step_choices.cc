#include "server/engine/step_choices.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "scheduler/base/log.h"

namespace switchyard::server {
namespace {

constexpr std::array<int32_t, 4> kCuts = {1, 2, 3, 4};  // micro-batches of each way
// Fewer rows of a rank are computed faster in one piece: two pieces read the same weights twice.
constexpr int32_t kLeastRows = 64 * kCuts.back();
// Of a step's time, that exchanges must take before hiding them is tried.  (They include waits for a later rank.)
constexpr double kLeastExchange = 0.08;
constexpr double kNewest = 0.2;  // weight of the last step in exchange_share_

double ExchangeShare(const batching::StepResult& result) {
  double exchange = 0, total = 0;
  for (const batching::RankResult& rank : result.ranks) {
    exchange += rank.timings.exchange_seconds;
    total += rank.timings.total_seconds;
  }
  return total > 0 ? std::clamp(exchange / total, 0.0, 1.0) : 0;
}

}  // namespace

StepChoices::StepChoices(const ServerConfig* config, ServerMetrics* metrics)
    : config_(config), metrics_(metrics), placement_(2), micro_batches_(static_cast<int>(kCuts.size())) {}

bool StepChoices::tries_placement() const { return may_decide_; }

void StepChoices::GroupUp(int world, const fleet::WorkerInfo& first) {
  placement_ = batching::StepTrial(2);
  micro_batches_ = batching::StepTrial(static_cast<int>(kCuts.size()));
  in_place_ = first.experts_in_place;
  metrics_->placement_gained_seconds->Set(0);
  may_decide_ =
      config_->placement.mode == placement::PlacementMode::kAuto && (config_->placement.has_slots() || in_place_);
  if (config_->placement.mode == placement::PlacementMode::kAuto && world > 1 && first.num_moe_layers > 0 &&
      !config_->add_outputs) {
    LogInfo("--placement=auto: ", in_place_     ? "workers may compute their own rows, by experts of one machine"
                                  : may_decide_ ? "layers may decide where rows go, with replicas"
                                                : "as static: experts are not in place (workers' logs say why), and "
                                                  "there are no --spare_slots");
  }
  may_cut_ = world > 1 && first.num_moe_layers > 0 && first.device == "cpu" && !first.expert_budget.has_value();
  exchange_share_ = 0;
  reported_deciding_ = 0;
  if (config_->micro_batches > 1 && !may_cut_)
    LogWarn("--micro_batches=", config_->micro_batches,
            " is ignored: it is for several workers on CPUs without --expert_memory");
}

int StepChoices::ChooseCut(const batching::StepPlan& plan, const batching::TrialStep& step) {
  if (!may_cut_ || config_->micro_batches != 0 || !step.prompts || plan.most_rows() < kLeastRows) return -1;
  // Placement first: steps that are cut go the way that was the fastest with whole rows.
  if (tries_placement() && !placement_.Knows(step)) return -1;
  if (in_place_ && placement_.Best(step) != 0) return -1;  // no expert rows travel
  if (!micro_batches_.Knows(step) && exchange_share_ < kLeastExchange) return -1;
  return micro_batches_.Next(step);
}

void StepChoices::Choose(batching::StepPlan* plan, absl::Time now) {
  Sent sent = {.step = {}, .at = now};
  sent.step.rows = std::accumulate(plan->rank_rows.begin(), plan->rank_rows.end(), int64_t{0});
  // (Where rows stay the busiest rank's count; else their experts' homes see all rows alike.)
  sent.step.uneven =
      in_place_ && 2 * int64_t{plan->most_rows()} * static_cast<int64_t>(plan->rank_rows.size()) > 3 * sent.step.rows;
  for (const batching::RankPlan& rank : plan->ranks) {
    sent.step.prompts =
        sent.step.prompts || std::any_of(rank.items.begin(), rank.items.end(),
                                         [](const batching::StepItem& item) { return item.num_query > 1; });
  }
  sent.cut = ChooseCut(*plan, sent.step);
  if (sent.cut >= 0) plan->micro_batches = kCuts[static_cast<size_t>(sent.cut)];
  if (may_cut_ && config_->micro_batches > 1 && sent.step.prompts) plan->micro_batches = config_->micro_batches;
  sent.whole = plan->micro_batches == 1;
  if (!sent.whole) ++cut_steps_;
  // A fixed number cuts all steps alike, so that they can be compared.
  if (tries_placement() && !plan->rank_rows.empty() && (sent.whole || config_->micro_batches > 1)) {
    sent.decides = placement_.Next(sent.step);
    plan->decides = sent.decides != 0;
  } else if (tries_placement()) {
    plan->decides = placement_.Best(sent.step) != 0;
  }
  sent.stays = in_place_ && plan->decides;
  sent_[plan->step] = sent;
}

bool StepChoices::StepDone(const batching::StepResult& result, absl::Time now) {
  bool whole = true;
  if (const auto it = sent_.find(result.step); it != sent_.end()) {
    const Sent& sent = it->second;
    // One that was sent while another ran began when that ended.
    double seconds = absl::ToDoubleSeconds(now - std::max(sent.at, last_done_));
    // Ranks that do not wait for each other may have begun it while another rank was in the one before.
    for (const batching::RankResult& rank : result.ranks) {
      if (sent.stays) seconds = std::max(seconds, rank.timings.total_seconds);
    }
    // (A try of the other placement says nothing of cuts.)
    if (sent.cut >= 0 && (sent.decides < 0 || sent.decides == placement_.Best(sent.step)))
      micro_batches_.Done(sent.step, sent.cut, seconds);
    if (sent.decides >= 0) placement_.Done(sent.step, sent.decides, seconds);
    whole = sent.whole;
    if (sent.whole && !sent.stays && sent.step.prompts)
      exchange_share_ += kNewest * (ExchangeShare(result) - exchange_share_);
    sent_.erase(it);
  }
  last_done_ = now;
  return whole;
}

void StepChoices::ReportMetrics() {
  if (tries_placement()) {
    metrics_->placement_gained_seconds->Set(placement_.gained_seconds());
    metrics_->deciding_steps->Increment(
        static_cast<double>(placement_.other_steps() - std::exchange(reported_deciding_, placement_.other_steps())));
  }
  metrics_->micro_batches_gained_seconds->Set(micro_batches_.gained_seconds());
  metrics_->cut_steps->Increment(static_cast<double>(std::exchange(cut_steps_, 0)));
}

}  // namespace switchyard::server
