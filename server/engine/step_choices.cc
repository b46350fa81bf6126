#include "server/engine/step_choices.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "scheduler/base/log.h"

namespace switchyard::server {
namespace {

constexpr std::array<int32_t, 6> kCuts = {1, 2, 3, 4, 6, 8};  // micro-batches of each way
constexpr int64_t kLeastRows = 32;                            // of a micro-batch on a rank
// Of a layer's time with whole rows: what a cut must be expected to gain before any is tried, and how far behind the
// best a cut may be that is tried, too.
constexpr double kLeastGain = 0.02, kNearBest = 0.03;

// Of a layer, each way of the trial with so many rows a rank; ways with too few rows have none.  Empty: not known.
std::vector<double> PricesOf(const simulator::ServedLayer& layer, int64_t rows) {
  std::vector<double> prices;
  if (!layer.links.measured() || layer.expert.row_seconds <= 0) return prices;
  for (const int32_t cut : kCuts) {
    if (cut > 1 && rows < cut * kLeastRows) break;
    prices.push_back(simulator::SecondsOfServedLayer(layer, rows, cut));
  }
  return prices;
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
  num_layers_ = first.num_moe_layers;
  layer_ = {.ranks = world,
            .num_experts = first.num_experts,
            .top_k = first.experts_per_token,
            .row_bytes = first.row_bytes,
            .adds_outputs = config_->add_outputs,
            .expert = {},
            .links = first.links};
  metrics_->link_start_seconds->Set(layer_.links.start_seconds);
  metrics_->link_bytes_per_second->Set(layer_.links.bytes_per_second);
  if (layer_.links.measured()) {
    LogInfo("links: an all-to-all takes ", 1e6 * layer_.links.start_seconds, " us, and a second for ",
            1e-6 * layer_.links.bytes_per_second, " MB that a worker sends (r2 ", layer_.links.r_squared, ")");
  }
  worth_trying_.clear();
  reported_deciding_ = 0;
  if (config_->micro_batches > 1 && !may_cut_)
    LogWarn("--micro_batches=", config_->micro_batches,
            " is ignored: it is for several workers on CPUs without --expert_memory");
}

int StepChoices::ChooseCut(const batching::StepPlan& plan, const batching::TrialStep& step) {
  if (!may_cut_ || config_->micro_batches != 0) return -1;
  // Placement first: steps that are cut go the way that was the fastest with whole rows.
  if (tries_placement() && !placement_.Knows(step)) return -1;
  if (in_place_ && placement_.Best(step) != 0) return -1;  // no expert rows travel
  const uint32_t tried = WorthTrying(plan.most_rows());
  return tried == 0 && !micro_batches_.Knows(step) ? -1 : micro_batches_.Next(step, tried);
}

uint32_t StepChoices::WorthTrying(int64_t rows) {
  const auto [found, is_new] = worth_trying_.try_emplace(rows, 0);
  if (!is_new) return found->second;
  const std::vector<double> prices = PricesOf(layer_, rows);
  if (prices.empty()) {
    worth_trying_.erase(found);
    return 0;
  }
  const double best = *std::min_element(prices.begin(), prices.end());
  if (best > (1 - kLeastGain) * prices[0]) return 0;
  for (size_t way = 1; way < prices.size(); ++way)
    found->second |= prices[way] <= best + kNearBest * prices[0] ? 1u << way : 0;
  return found->second;
}

ChoicesCopy StepChoices::Copy() const {
  const char* const note = !may_cut_
                               ? "rows are cut only by several workers on CPUs that have all of their experts in memory"
                           : config_->micro_batches != 0    ? "--micro_batches is given"
                           : !layer_.links.measured()       ? "the group's links could not be measured"
                           : layer_.expert.row_seconds <= 0 ? "the experts' times are not measured yet"
                                                            : "";
  return {.note = note,
          .layer = layer_,
          .num_layers = num_layers_,
          .micro_batches = {kCuts.begin(), kCuts.end()},
          .cuts = micro_batches_.classes(),
          .placements = placement_.classes()};
}

std::vector<double> ExpectedSeconds(const ChoicesCopy& choices, const batching::StepTrial::Seen& cut) {
  std::vector<double> expected;
  const double whole = cut.ways[0].row_seconds * static_cast<double>(cut.most);
  if (whole <= 0) return expected;
  // Of a step with as many rows on each rank.
  const std::vector<double> prices = PricesOf(choices.layer, cut.most / choices.layer.ranks);
  for (const double price : prices) expected.push_back(std::max(0.0, whole + choices.num_layers * (price - prices[0])));
  return expected;
}

void StepChoices::Choose(const placement::ExpertCost& expert, batching::StepPlan* plan, absl::Time now) {
  if (layer_.expert != expert) {
    layer_.expert = expert;
    worth_trying_.clear();
  }
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
