#include "scheduler/offload/expected_use_policy.h"

#include <algorithm>
#include <limits>

#include "scheduler/base/check.h"
#include "scheduler/offload/rule_policy.h"

namespace switchyard {
namespace {

constexpr int kMaxBlended = 2;  // layers ahead that forecasts are learned to be right for

}  // namespace

ExpectedUsePolicy::ExpectedUsePolicy(const OffloadShape& shape, const CopyCost& cost, const Options& options,
                                     absl::Span<const int64_t> popularity)
    : options_(options),
      cost_(cost),
      cache_(shape),
      planner_(&cache_, SharedSlots(shape)),
      clock_(shape, cost),
      history_(shape, popularity),
      path_(shape.num_layers, shape.num_experts, options.path_sources),
      blend_(shape, kMaxBlended),
      initial_(PopularExperts(shape, SharedSlots(shape), popularity)),
      worth_(shape.num_keys(), 0),
      chance_(shape.num_keys(), 0),
      gone_(shape.num_keys(), 0),
      covered_(shape.num_layers, 0),
      open_(shape.num_layers, 0) {
  FillSlots(initial_, &cache_);
  clock_.Preload(initial_);
  // Linear within a pass, so that it needs no root: layers away within a pass matter less than passes.
  const int64_t lost = kChance - options.pass_discount;
  int64_t pass = kChance;
  for (int d = 0; d <= 2 * shape.num_layers; ++d) {
    if (d == shape.num_layers) pass = options.pass_discount;
    const int within = d % shape.num_layers;
    discount_.push_back(pass - pass * lost / kChance * within / shape.num_layers);
  }
}

int32_t ExpectedUsePolicy::ChanceAhead(ExpertKey key, int ahead, absl::Span<const LayerForecast> forecasts) {
  const int32_t past = std::clamp(history_.NextChance(key) + path_.Correction(key), 0, kChance);
  for (const LayerForecast& forecast : forecasts) {
    if (forecast.ahead != ahead) continue;
    const int32_t chance = forecast.chance[key % cache_.shape().num_experts];
    return ahead <= kMaxBlended ? blend_.Chance(key, ahead, chance, past) : chance;
  }
  return past;
}

void ExpectedUsePolicy::UpdateWorth(int layer, absl::Span<const LayerForecast> forecasts) {
  const OffloadShape& shape = cache_.shape();
  for (int ahead = 1; ahead <= shape.num_layers; ++ahead) {
    const int there = (layer + ahead) % shape.num_layers;
    const int64_t all = covered_[there] + open_[there];
    const int64_t share =
        all == 0 ? kChance : (open_[there] * kChance + covered_[there] * options_.covered_worth) / all;
    for (int e = 0; e < shape.num_experts; ++e) {
      const ExpertKey key = there * shape.num_experts + e;
      if (gone_[key] != 0) {
        chance_[key] = 0;
        worth_[key] = 0;
        continue;
      }
      const int64_t chance = ChanceAhead(key, ahead, forecasts);
      const int64_t often = history_.LongChance(key);
      // Needed then, or not then and in one of the passes after it: a geometric series.
      const int64_t later = often * kChance / (kChance - (kChance - often) * options_.pass_discount / kChance);
      const int64_t worth =
          chance * discount_[ahead] + (kChance - chance) * later / kChance * discount_[ahead + shape.num_layers];
      chance_[key] = static_cast<int32_t>(chance);
      worth_[key] = worth / kChance * share / kChance;
    }
  }
}

// What the gate says of prefetches: those that are over are residents; those that nobody needs, or that did not begin,
// are dropped.
void ExpectedUsePolicy::SettlePrefetches(const LayerNeed& need, LayerPlan* plan) {
  const OffloadShape& shape = cache_.shape();
  int64_t& covered = covered_[need.layer];
  int64_t& open = open_[need.layer];
  covered -= covered / 64, open -= open / 64;
  for (int32_t slot = 0; slot < shape.num_slots; ++slot) {
    const ExpertKey key = cache_.KeyIn(slot);
    if (key == kNoExpert || cache_.state(key) != ExpertState::kPrefetching) continue;
    const bool here = shape.LayerOf(key) == need.layer;
    const bool needed = here && need.rows[key % shape.num_experts] > 0;
    if (clock_.Arrived(key)) {
      cache_.Arrive(key);
      if (needed) covered += 1024;
    } else if (here && !needed) {
      cache_.Evict(key);
      plan->steps.push_back({PlanStep::kDrop, key, slot});
    }
  }
  for (int e = 0; e < shape.num_experts; ++e) {
    const ExpertKey key = need.layer * shape.num_experts + e;
    if (need.rows[e] > 0 && cache_.state(key) != ExpertState::kResident) open += 1024;
  }
}

// A prefetch for a later layer whose chance has become less than half of what is left of its copy gives way to better.
void ExpectedUsePolicy::CancelPrefetches(int layer, LayerPlan* plan) {
  const OffloadShape& shape = cache_.shape();
  for (int32_t slot = 0; slot < shape.num_slots; ++slot) {
    const ExpertKey key = cache_.KeyIn(slot);
    if (key == kNoExpert || cache_.state(key) != ExpertState::kPrefetching || shape.LayerOf(key) == layer) continue;
    if (int64_t{2} * cost_.chunks_per_copy * chance_[key] >= int64_t{kChance} * clock_.PendingChunks(key)) continue;
    cache_.Evict(key);
    plan->steps.push_back({PlanStep::kDrop, key, slot});
  }
}

std::vector<ExpectedUsePolicy::Candidate> ExpectedUsePolicy::Candidates(int layer) const {
  const OffloadShape& shape = cache_.shape();
  std::vector<Candidate> candidates;
  for (int ahead = 1; ahead <= options_.prefetch_ahead && ahead < shape.num_layers; ++ahead) {
    const int there = (layer + ahead) % shape.num_layers;
    for (int e = 0; e < shape.num_experts; ++e) {
      const ExpertKey key = there * shape.num_experts + e;
      if (!cache_.Holds(key) && chance_[key] > kChance / 64) candidates.push_back({key, chance_[key], ahead});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.chance >> (a.ahead - 1) > b.chance >> (b.ahead - 1);
  });
  return candidates;
}

void ExpectedUsePolicy::StartPrefetches(const LayerNeed& need, LayerPlan* plan) {
  CopyTimeline trial = clock_;
  const int64_t busy = trial.counts().link_ticks;
  const int64_t length = trial.Run(*plan, need);
  int64_t start = trial.counts().link_ticks - busy;  // the link's first idle tick after the gate
  const int64_t half_chunk = cost_.copy_ticks / cost_.chunks_per_copy / 2;
  const auto keep = [this](ExpertKey key) { return worth_[key]; };
  for (const Candidate& candidate : Candidates(need.layer)) {
    if (start >= length) return;
    const int64_t deadline = length + (candidate.ahead - 1) * need.compute_ticks;
    int64_t saved = std::min(cost_.copy_ticks, deadline - start);
    if (candidate.ahead > 1) saved = saved * options_.far_share / kChance;
    const int32_t slot = planner_.CheapestSlot(need.layer, keep, std::numeric_limits<int64_t>::max());
    if (slot < 0) return;
    const ExpertKey victim = cache_.KeyIn(slot);
    const int64_t lost = victim == kNoExpert ? 0 : cost_.copy_ticks * worth_[victim] / kChance;
    if (candidate.chance * saved <= (kChance - candidate.chance) * (lost + half_chunk)) continue;
    if (victim != kNoExpert && worth_[victim] >= worth_[candidate.key]) continue;
    planner_.Prefetch(candidate.key, slot, plan);
    worth_[candidate.key] = std::numeric_limits<int64_t>::max();  // no other prefetch of this gate takes its slot
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
}

LayerPlan ExpectedUsePolicy::OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) {
  LayerPlan plan;
  SettlePrefetches(need, &plan);
  Learn(need);
  UpdateWorth(need.layer, forecasts);
  CancelPrefetches(need.layer, &plan);
  int64_t num_needed = 1;
  for (const int32_t rows : need.rows) num_needed += rows > 0;
  const int64_t wait = need.compute_ticks / num_needed * kChance / std::max<int64_t>(1, cost_.copy_ticks);
  planner_.Plan(
      need, [this](ExpertKey key) { return worth_[key]; }, wait, &plan);
  if (cache_.shape().num_slots < cache_.shape().num_keys()) StartPrefetches(need, &plan);
  clock_.Run(plan, need);
  return plan;
}

}  // namespace switchyard
