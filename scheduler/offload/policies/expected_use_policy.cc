#include "scheduler/offload/policies/expected_use_policy.h"

#include <algorithm>
#include <limits>

#include "scheduler/base/check.h"
#include "scheduler/offload/policies/rule_policy.h"

namespace switchyard::offload {
namespace {

// The worth of a use one pass over all layers away, relative to one that is now.
constexpr int32_t kPassDiscount = kChance * 35 / 100;
// The worth of experts that forecasts bring in time, relative to others.
constexpr int32_t kCoveredWorth = kChance / 2;
// The share of the gain of a prefetch two layers ahead that counts: the next gate may still start it, knowing more.
constexpr int32_t kFarShare = kChance / 2;
constexpr int kPathSources = 8;  // gates that NeedPath looks back
constexpr int kMaxBlended = 2;   // layers ahead whose forecasts are blended with the past

}  // namespace

ExpectedUsePolicy::ExpectedUsePolicy(const OffloadShape& shape, const CopyCost& cost, const Options& options,
                                     absl::Span<const int64_t> popularity)
    : options_(options),
      cost_(cost),
      cache_(shape),
      planner_(&cache_, SharedSlots(shape)),
      clock_(shape, cost),
      history_(shape, popularity),
      path_(shape.num_layers, shape.num_experts, kPathSources),
      blend_(shape, 2 * kMaxBlended),
      initial_(PopularExperts(shape, SharedSlots(shape), popularity)),
      layer_rows_(shape.num_experts, 0),
      later_(shape.num_keys(), 0),
      weighed_(shape.num_keys()),
      share_(shape.num_layers, kChance),
      gone_(shape.num_keys(), 0),
      covered_(shape.num_layers, 0),
      open_(shape.num_layers, 0) {
  for (int layer = 0; layer < shape.num_layers; ++layer) UpdateLater(layer);
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

// The uses after the layer's next run, over all passes that follow: a geometric series.
void ExpectedUsePolicy::UpdateLater(int layer) {
  const int num_experts = cache_.shape().num_experts;
  for (ExpertKey key = layer * num_experts; key < (layer + 1) * num_experts; ++key) {
    const int64_t often = history_.LongChance(key);
    later_[key] = often * kChance / (kChance - (kChance - often) * kPassDiscount / kChance);
  }
}

// Needs alone say what should go.
void ExpectedUsePolicy::Prefer(ExpertKey key, bool in_memory) {
  if (!in_memory) return;
  history_.Expect(key);
  UpdateLater(cache_.shape().LayerOf(key));
}

int32_t ExpectedUsePolicy::PastChance(ExpertKey key) const {
  return std::clamp(history_.NextChance(key) + path_.Correction(key), 0, kChance);
}

void ExpectedUsePolicy::Weigh(ExpertKey key, int ahead, int32_t chance) {
  if (gone_[key] != 0) {
    weighed_[key] = {0, num_gates_, 0};
    return;
  }
  const int num_layers = cache_.shape().num_layers;
  // The chance that it is needed then, and that it is not needed then but later.
  const int64_t worth =
      chance * discount_[ahead] + (kChance - chance) * later_[key] / kChance * discount_[ahead + num_layers];
  weighed_[key] = {worth / kChance * share_[(layer_ + ahead) % num_layers] / kChance, num_gates_, chance};
}

int64_t ExpectedUsePolicy::Worth(ExpertKey key) {
  if (weighed_[key].at_gate != num_gates_) {
    const int layers_on = cache_.shape().LayerOf(key) - layer_;
    Weigh(key, layers_on > 0 ? layers_on : layers_on + cache_.shape().num_layers, PastChance(key));
  }
  return weighed_[key].worth;
}

// Weighs the experts of the layers that forecasts or prefetches reach.
void ExpectedUsePolicy::WeighNear(absl::Span<const LayerForecast> forecasts, Said said) {
  const OffloadShape& shape = cache_.shape();
  for (int ahead = 1; ahead <= shape.num_layers; ++ahead) {
    const auto forecast = std::find_if(forecasts.begin(), forecasts.end(),
                                       [ahead](const LayerForecast& each) { return each.ahead == ahead; });
    if (forecast == forecasts.end() && ahead > options_.prefetch_ahead) continue;
    const ExpertKey first = (layer_ + ahead) % shape.num_layers * shape.num_experts;
    for (int e = 0; e < shape.num_experts; ++e) {
      int32_t chance = PastChance(first + e);
      if (forecast != forecasts.end() && gone_[first + e] == 0) {
        const int distance = said == Said::kAfterGate ? ahead : ahead + kMaxBlended;
        chance = ahead <= kMaxBlended ? blend_.Chance(first + e, distance, forecast->chance[e], chance)
                                      : forecast->chance[e];
      }
      Weigh(first + e, ahead, chance);
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

void ExpectedUsePolicy::Drop(ExpertKey key, LayerPlan* plan) {
  plan->steps.push_back({PlanStep::kDrop, key, cache_.SlotOf(key)});
  cache_.Evict(key);
}

// Prefetches that are over become resident; those that the gate does not need are dropped.
void ExpectedUsePolicy::FinalizePrefetches(const LayerNeed& need, LayerPlan* plan) {
  const OffloadShape& shape = cache_.shape();
  int64_t& covered = covered_[need.layer];
  int64_t& open = open_[need.layer];
  covered -= covered / 64, open -= open / 64;
  ListPrefetching();
  for (const ExpertKey key : prefetching_) {
    const bool here = shape.LayerOf(key) == need.layer;
    const bool needed = here && need.rows[key % shape.num_experts] > 0;
    if (clock_.Arrived(key)) {
      cache_.Arrive(key);
      if (needed) covered += 1024;
    } else if (here && !needed && need.parts_left == 0) {
      Drop(key, plan);
    }
  }
  for (int e = 0; e < shape.num_experts; ++e) {
    const ExpertKey key = need.layer * shape.num_experts + e;
    if (need.rows[e] > 0 && cache_.state(key) != ExpertState::kResident) open += 1024;
  }
  const int64_t all = covered + open;
  share_[need.layer] = all == 0 ? kChance : (open * kChance + covered * kCoveredWorth) / all;
}

// Drops prefetches for later layers whose chance has become less than half of what is left of their copy.
void ExpectedUsePolicy::CancelPrefetches(int layer, LayerPlan* plan) {
  for (const ExpertKey key : prefetching_) {
    if (cache_.state(key) != ExpertState::kPrefetching || cache_.shape().LayerOf(key) == layer) continue;
    if (int64_t{2} * cost_.chunks_per_copy * weighed_[key].chance >= int64_t{kChance} * clock_.PendingChunks(key))
      continue;
    Drop(key, plan);
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
    int64_t saved = std::min(cost_.copy_ticks, deadline - start);
    if (candidate.ahead > 1) saved = saved * kFarShare / kChance;
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
  for (size_t e = 0; e < need.rows.size(); ++e) {
    base.push_back(history_.NextChance(need.layer * cache_.shape().num_experts + static_cast<int>(e)));
  }
  path_.Observe(need, base);
  blend_.Observe(need);
  history_.Observe(need);
  UpdateLater(need.layer);
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
  WeighNear(forecasts, Said::kAfterGate);
  CancelPrefetches(need.layer, &plan);
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
  WeighNear(forecasts, Said::kBeforePass);
  CancelPrefetches(layer_, &plan);
  const LayerNeed nothing = {.layer = layer_, .rows = {}, .compute_ticks = ticks};
  if (cache_.shape().num_slots < cache_.shape().num_keys()) StartPrefetches(nothing, layer_ticks_, &plan);
  clock_.Run(plan, nothing);
  return plan;
}

}  // namespace switchyard::offload
