#include "scheduler/placement/background/resident_set.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

int Hosted(const std::vector<int32_t>& slots) {
  return static_cast<int>(slots.size() - std::count(slots.begin(), slots.end(), kEmptySlot));
}

}  // namespace

ResidentSet::ResidentSet(const ResidencyLimits& limits, const std::vector<std::vector<ResidentValue>>& values,
                         std::vector<LayerResidency>* layers)
    : limits_(limits), values_(values), layers_(*layers), devices_((*layers)[0].placement.num_devices()) {
  candidates_.resize(devices_);
  Count();
  if (!scarce()) return;
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const LayerResidency& residency = layers_[layer];
    for (int expert = 0; expert < residency.placement.num_experts; ++expert) {
      const std::vector<int32_t> hosts = residency.placement.DevicesOf(expert);
      if (residency.offloaded[expert] || hosts.size() > 1) continue;
      const ResidentValue& value = values_[layer][expert];
      candidates_[hosts[0]].push_back({value.seconds, value.error, layer, expert, false});
    }
  }
  for (auto& candidates : candidates_) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds > b.seconds; });
  }
}

bool ResidentSet::scarce() const {
  return limits_.device_slots < limits_.layer_slots * static_cast<int>(layers_.size());
}

void ResidentSet::Count() {
  free_.assign(devices_, limits_.device_slots);
  for (const LayerResidency& residency : layers_) {
    ForEachReplica(residency.placement, [&](int32_t device, int32_t expert) {
      if (!residency.offloaded[expert]) --free_[device];
    });
  }
}

bool ResidentSet::Stale(int device, const Candidate& candidate) const {
  const LayerResidency& residency = layers_[candidate.layer];
  if (residency.offloaded[candidate.expert] || !residency.placement.Holds(device, candidate.expert)) return true;
  return candidate.replica != (residency.placement.DevicesOf(candidate.expert).size() > 1);
}

void ResidentSet::PutOut(int device, const Candidate& candidate) {
  LayerResidency& residency = layers_[candidate.layer];
  if (candidate.replica) {
    std::vector<int32_t>& slots = residency.placement.slots[device];
    *std::find(slots.begin(), slots.end(), candidate.expert) = kEmptySlot;
  } else {
    residency.offloaded[candidate.expert] = true;
  }
  ++free_[device];
}

void ResidentSet::LoadWhatPays(const std::vector<ReplicaValue>& replicas, double seconds_per_copy) {
  std::vector<std::tuple<double, int, int>> wanted;  // most valuable first
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    for (int expert = 0; expert < layers_[layer].placement.num_experts; ++expert) {
      if (layers_[layer].offloaded[expert]) wanted.push_back({-values_[layer][expert].seconds, layer, expert});
    }
  }
  std::sort(wanted.begin(), wanted.end());
  for (const ReplicaValue& replica : replicas) {
    auto& candidates = candidates_[replica.device];
    const auto at = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const Candidate& other) { return other.seconds < replica.seconds; });
    candidates.insert(at, {replica.seconds, 0, replica.layer, replica.expert, true});
  }
  for (const auto& [seconds, layer, expert] : wanted) Load(layer, expert, seconds_per_copy);
}

void ResidentSet::Load(int layer, int expert, double seconds_per_copy) {
  LayerResidency& residency = layers_[layer];
  const int home = residency.placement.DevicesOf(expert)[0];
  int best = -1;
  double best_loss = 0, best_error = 0;
  for (int i = 0; i < devices_; ++i) {
    const int device = (home + i) % devices_;  // its host first
    if (device != home && Hosted(residency.placement.slots[device]) >= limits_.layer_slots) continue;
    auto& candidates = candidates_[device];
    while (!candidates.empty() && Stale(device, candidates.back())) candidates.pop_back();
    if (free_[device] <= 0 && candidates.empty()) continue;
    const double loss = free_[device] > 0 ? 0 : candidates.back().seconds;
    if (best >= 0 && loss >= best_loss) continue;
    best = device;
    best_loss = loss;
    best_error = free_[device] > 0 ? 0 : candidates.back().error;
  }
  if (best < 0) return;
  const ResidentValue& value = values_[layer][expert];
  if (value.seconds - best_loss - seconds_per_copy <= std::hypot(value.error, best_error)) return;
  if (free_[best] <= 0) {
    PutOut(best, candidates_[best].back());
    candidates_[best].pop_back();
  }
  --free_[best];
  residency.offloaded[expert] = false;
  if (best != home) {
    std::vector<int32_t>&from = residency.placement.slots[home], &to = residency.placement.slots[best];
    *std::find(from.begin(), from.end(), expert) = kEmptySlot;
    *std::find(to.begin(), to.end(), kEmptySlot) = expert;
  }
}

std::vector<std::vector<double>> ResidentSet::SlotPrices(int layer, int most) const {
  std::vector<std::vector<double>> prices(devices_);
  for (int device = 0; device < devices_; ++device) {
    prices[device].assign(std::clamp(free_[device], 0, most), 0.0);
    const auto& candidates = candidates_[device];
    for (size_t i = candidates.size(); i-- > 0 && static_cast<int>(prices[device].size()) < most;) {
      const Candidate& candidate = candidates[i];
      if (candidate.layer == layer || candidate.replica || Stale(device, candidate)) continue;
      prices[device].push_back(candidate.seconds + candidate.error);
    }
  }
  return prices;
}

void ResidentSet::Replace(int layer, Placement placement) {
  layers_[layer].placement = std::move(placement);
  Count();
  for (int device = 0; device < devices_; ++device) {
    auto& candidates = candidates_[device];
    for (size_t i = candidates.size(); i-- > 0 && free_[device] < 0;) {
      const Candidate candidate = candidates[i];
      if (candidate.layer == layer || candidate.replica || Stale(device, candidate)) continue;
      PutOut(device, candidate);
      candidates.erase(candidates.begin() + static_cast<int64_t>(i));
    }
    SY_CHECK_GE(free_[device], 0);
  }
}

}  // namespace switchyard::placement
