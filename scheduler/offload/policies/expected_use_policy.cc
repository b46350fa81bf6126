#include "scheduler/offload/policies/expected_use_policy.h"

#include <algorithm>
#include <limits>

#include "scheduler/base/check.h"
#include "scheduler/offload/policies/initial_slots.h"

namespace switchyard::offload {
namespace {

// The worth of a use one pass over all layers away, relative to one that is now.
constexpr int32_t kPassDiscount = kChance * 35 / 100;
constexpr int kPathSources = 8;  // gates that NeedPath looks back

}  // namespace

ExpectedUsePolicy::ExpectedUsePolicy(const OffloadShape& shape, const CopyCost& cost, const Options& options,
                                     absl::Span<const int64_t> popularity)
    : options_(options),
      cost_(cost),
      cache_(shape),
      planner_(&cache_, SharedSlots(shape)),
      clock_(shape, cost),
      rate_(shape, popularity),
      path_(shape.num_layers, shape.num_experts, kPathSources),
      initial_(PopularExperts(shape, SharedSlots(shape), popularity)),
      layer_rows_(shape.num_experts, 0),
      weighed_(shape.num_keys()) {
  FillSlots(initial_, &cache_);
  clock_.Preload(initial_);
  // Linear within a pass, so that it needs no root: layers within a pass matter less than passes.
  constexpr int64_t kLost = kChance - kPassDiscount;
  int64_t pass = kChance;
  for (int d = 0; d <= 2 * shape.num_layers; ++d) {
    if (d == shape.num_layers) pass = kPassDiscount;
    const int within = d % shape.num_layers;
    discount_.push_back(pass - pass * kLost / kChance * within / shape.num_layers);
  }
}

int32_t ExpectedUsePolicy::PastChance(ExpertKey key) const {
  return std::clamp(rate_.Chance(key) + path_.Correction(key), 0, kChance);
}

void ExpectedUsePolicy::Weigh(ExpertKey key, int ahead, int32_t chance) {
  // Needed in its layer's next run, or not then but in one of the runs that follow: a geometric series.
  const int64_t often = rate_.Chance(key);
  const int64_t later = often * kChance / (kChance - (kChance - often) * kPassDiscount / kChance);
  const int64_t worth =
      chance * discount_[ahead] + (kChance - chance) * later / kChance * discount_[ahead + cache_.shape().num_layers];
  weighed_[key] = {worth / kChance, num_gates_, chance};
}

int64_t ExpectedUsePolicy::Worth(ExpertKey key) {
  if (weighed_[key].at_gate != num_gates_) {
    const int layers_on = cache_.shape().LayerOf(key) - layer_;
    Weigh(key, layers_on > 0 ? layers_on : layers_on + cache_.shape().num_layers, PastChance(key));
  }
  return weighed_[key].worth;
}

// Weighs the experts of the layers that forecasts or prefetches reach.
void ExpectedUsePolicy::WeighNear(absl::Span<const LayerForecast> forecasts) {
  const OffloadShape& shape = cache_.shape();
  for (int ahead = 1; ahead <= shape.num_layers; ++ahead) {
    const auto forecast = std::find_if(forecasts.begin(), forecasts.end(),
                                       [ahead](const LayerForecast& each) { return each.ahead == ahead; });
    if (forecast == forecasts.end() && ahead > options_.prefetch_ahead) continue;
    const ExpertKey first = (layer_ + ahead) % shape.num_layers * shape.num_experts;
    for (int e = 0; e < shape.num_experts; ++e) {
      Weigh(first + e, ahead, forecast != forecasts.end() ? forecast->chance[e] : PastChance(first + e));
    }
  }
}

// Makes prefetching_ the experts that are prefetching, each once, by slot.
void ExpectedUsePolicy::ListPrefetching() {
  std::erase_if(prefetching_, [this](ExpertKey key) { return cache_.state(key) != ExpertState::kPrefetching; });
  std::sort(prefetching_.begin(), prefetching_.end(),
            [this](ExpertKey a, ExpertKey b) { return cache_.SlotOf(a) < cache_.SlotOf(b); });
  prefetching_.erase(std::unique(prefetching_.begin(), prefetching_.end()), prefetching_.end());
}

// Prefetches that are over become resident; those that the gate does not need are dropped.
void ExpectedUsePolicy::FinalizePrefetches(const LayerNeed& need, LayerPlan* plan) {
  const OffloadShape& shape = cache_.shape();
  ListPrefetching();
  for (const ExpertKey key : prefetching_) {
    const bool here = shape.LayerOf(key) == need.layer;
    const bool needed = here && need.rows[key % shape.num_experts] > 0;
    if (clock_.Arrived(key)) {
      cache_.Arrive(key);
    } else if (here && !needed && need.parts_left == 0) {
      plan->steps.push_back({PlanStep::kDrop, key, cache_.SlotOf(key)});
      cache_.Evict(key);
    }
  }
}

std::vector<ExpectedUsePolicy::Candidate> ExpectedUsePolicy::Candidates(int layer) const {
  const OffloadShape& shape = cache_.shape();
  std::vector<Candidate> candidates;
  for (int ahead = 1; ahead <= options_.prefetch_ahead && ahead < shape.num_layers; ++ahead) {
    const int there = (layer + ahead) % shape.num_layers;
    for (int e = 0; e < shape.num_experts; ++e) {
      const ExpertKey key = there * shape.num_experts + e;
      if (!cache_.Holds(key) && weighed_[key].chance > kChance / 64)
        candidates.push_back({key, weighed_[key].chance, ahead});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.chance >> (a.ahead - 1) > b.chance >> (b.ahead - 1);
  });
  return candidates;
}

void ExpectedUsePolicy::StartPrefetches(const LayerNeed& need, int64_t coming_ticks, LayerPlan* plan) {
  const CopyTimeline::Outlook outlook = clock_.Try(*plan, need);
  int64_t start = outlook.link_ticks;  // the link's first idle tick after the gate
  if (start >= outlook.ticks) return;
  const int64_t half_chunk = cost_.copy_ticks / cost_.chunks_per_copy / 2;
  const std::vector<Candidate> candidates = Candidates(need.layer);
  if (candidates.empty()) return;
  const int64_t fit = 1 + (outlook.ticks - start) / std::max<int64_t>(1, cost_.copy_ticks);
  const size_t most = static_cast<size_t>(std::min<int64_t>(fit, static_cast<int64_t>(candidates.size())));
  CheapestSlots& victims = planner_.Victims(need.layer, most, [this](ExpertKey key) { return Worth(key); });
  for (const Candidate& candidate : candidates) {
    if (start >= outlook.ticks || victims.empty()) return;
    const int64_t deadline = outlook.ticks + (candidate.ahead - 1) * coming_ticks;
    const int64_t saved = std::min(cost_.copy_ticks, deadline - start);
    const bool is_empty = victims.worth() == CheapestSlots::kEmpty;
    const int64_t lost = is_empty ? 0 : cost_.copy_ticks * victims.worth() / kChance;
    if (candidate.chance * saved <= (kChance - candidate.chance) * (lost + half_chunk)) continue;
    if (victims.worth() >= Worth(candidate.key)) continue;
    planner_.Prefetch(candidate.key, victims.slot(), plan);
    prefetching_.push_back(candidate.key);
    victims.Pop();
    start += cost_.copy_ticks;
  }
}

void ExpectedUsePolicy::Learn(const LayerNeed& need) {
  std::vector<int32_t> base;
  for (size_t e = 0; e < need.rows.size(); ++e)
    base.push_back(rate_.Chance(need.layer * cache_.shape().num_experts + static_cast<int>(e)));
  path_.Observe(need, base);
  rate_.Observe(need);
}

LayerPlan ExpectedUsePolicy::OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) {
  LayerPlan plan;
  layer_ = need.layer;
  layer_ticks_ = need.compute_ticks;
  ++num_gates_;
  FinalizePrefetches(need, &plan);
  for (size_t e = 0; e < need.rows.size(); ++e) layer_rows_[e] += need.rows[e];
  if (need.parts_left == 0) {
    Learn({.layer = need.layer, .rows = layer_rows_});
    std::fill(layer_rows_.begin(), layer_rows_.end(), 0);
  }
  WeighNear(forecasts);
  int64_t num_needed = 1;
  for (const int32_t rows : need.rows) num_needed += rows > 0;
  const int64_t wait = need.compute_ticks / num_needed * kChance / std::max<int64_t>(1, cost_.copy_ticks);
  planner_.Plan(
      need, [this](ExpertKey key) { return Worth(key); }, wait, &plan);
  if (need.parts_left == 0 && cache_.shape().num_slots < cache_.shape().num_keys()) {
    StartPrefetches(need, need.compute_ticks, &plan);
  }
  clock_.Run(plan, need);
  return plan;
}

// Plans as at a gate that needs nothing: what is computed before the first gate is a layer's time, too.
LayerPlan ExpectedUsePolicy::OnPass(absl::Span<const LayerForecast> forecasts, int64_t ticks) {
  LayerPlan plan;
  layer_ = cache_.shape().num_layers - 1;
  ++num_gates_;
  WeighNear(forecasts);
  const LayerNeed nothing = {.layer = layer_, .rows = {}, .compute_ticks = ticks};
  if (cache_.shape().num_slots < cache_.shape().num_keys()) StartPrefetches(nothing, layer_ticks_, &plan);
  clock_.Run(plan, nothing);
  return plan;
}

}  // namespace switchyard::offload
