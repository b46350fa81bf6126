#include "scheduler/placement/background/residency_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::placement {
namespace {

absl::Status CheckLimits(const std::vector<LayerResidency>& layers, const ResidencyLimits& limits, int spare) {
  std::vector<int> in_memory;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto& slots = layers[layer].placement.slots;
    in_memory.resize(slots.size(), 0);
    std::vector<int> hosted(slots.size(), 0);
    ForEachReplica(layers[layer].placement, [&](int32_t device, int32_t expert) {
      ++hosted[device];
      if (!layers[layer].offloaded[expert]) ++in_memory[device];
    });
    for (size_t device = 0; device < slots.size(); ++device) {
      if (hosted[device] <= limits.layer_slots + spare) continue;
      return absl::InvalidArgumentError(absl::StrCat("residency: layer ", layer, ", device ", device, " hosts ",
                                                     hosted[device], " experts, limit ", limits.layer_slots + spare));
    }
  }
  for (size_t device = 0; device < in_memory.size(); ++device) {
    if (in_memory[device] > limits.device_slots + spare) {
      return absl::InvalidArgumentError(absl::StrCat("residency: device ", device, " has ", in_memory[device],
                                                     " experts in memory, limit ", limits.device_slots + spare));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHosts(const std::vector<LayerResidency>& layers) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const LayerResidency& residency = layers[layer];
    if (const absl::Status status = CheckPlacement(residency.placement); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("residency: layer ", layer, ": ", status.message()));
    }
    for (int expert = 0; expert < residency.placement.num_experts; ++expert) {
      if (!residency.offloaded[expert]) continue;
      const size_t hosts = residency.placement.DevicesOf(expert).size();
      if (hosts == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("residency: layer ", layer, ", offloaded expert ", expert, " has ", hosts, " hosts, not 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status Impossible(const ResidencyMove& move, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("residency: ", MoveKindName(move.kind), " of layer ", move.layer,
                                                 ", expert ", move.expert, " at device ", move.device, ", slot ",
                                                 move.slot, ": ", why));
}

// InvalidArgument where the slot or the expert is not as the move needs it.
absl::Status ApplyMove(const ResidencyMove& move, bool arrival, LayerResidency* residency) {
  int32_t& slot = residency->placement.slots[move.device][move.slot];
  const bool offloaded = residency->offloaded[move.expert];
  switch (move.kind) {
    case MoveKind::kCopy:
    case MoveKind::kRehome:
      if (!arrival) return Impossible(move, "not a departure");
      if (slot != kEmptySlot) return Impossible(move, absl::StrCat("the slot holds expert ", slot));
      slot = move.expert;
      if (move.kind == MoveKind::kCopy) residency->offloaded[move.expert] = false;
      break;
    case MoveKind::kLoad:
      if (!arrival) return Impossible(move, "not a departure");
      if (slot != move.expert || !offloaded) return Impossible(move, "it is not offloaded there");
      residency->offloaded[move.expert] = false;
      break;
    case MoveKind::kRelease:
    case MoveKind::kOffload:
      if (arrival) return Impossible(move, "not an arrival");
      if (slot != move.expert) return Impossible(move, "it is not there");
      if (move.kind == MoveKind::kRelease) slot = kEmptySlot;
      if (move.kind == MoveKind::kOffload) residency->offloaded[move.expert] = true;
      break;
  }
  return absl::OkStatus();
}

std::string Devices(const std::vector<int32_t>& devices) {
  return absl::StrCat(devices.size() == 1 ? "device " : "devices ", absl::StrJoin(devices, ", "));
}

// "copied to device 3, released from device 1"; empty if the plan does not touch it.
std::string Deeds(const ResidencyPlan& plan, int layer, int expert) {
  std::vector<std::string> deeds;
  for (const ResidencyMigration& migration : plan.migrations) {
    for (const auto* moves : {&migration.arrivals, &migration.departures}) {
      for (const ResidencyMove& move : *moves) {
        if (move.layer != layer || move.expert != expert) continue;
        deeds.push_back(absl::StrCat(MoveKindName(move.kind), " at device ", move.device));
      }
    }
  }
  return absl::StrJoin(deeds, ", ");
}

std::string Why(const LayerFacts& facts, int64_t horizon) {
  if (facts.spent_seconds > 0 || facts.saved_seconds > 0) {
    return absl::StrFormat(
        "the busiest device goes from %.2f to %.2f times the mean, %.3g ms saved for %.3g ms of copies "
        "within %d steps",
        facts.before, facts.after, facts.saved_seconds * 1e3, facts.spent_seconds * 1e3, horizon);
  }
  switch (facts.stop) {
    case StopReason::kBalanced:
      return absl::StrFormat("the busiest device has %.2f times the mean and no change lowers that", facts.before);
    case StopReason::kDoesNotPay:
      return absl::StrFormat(
          "the busiest device has %.2f times the mean; the best change would save %.3g ms within %d "
          "steps and cost %.3g ms",
          facts.before, facts.refused_saving * 1e3, horizon, facts.refused_cost * 1e3);
    case StopReason::kLimit:
      return "the plan has as many changes of this layer as it may";
  }
  return "";
}

}  // namespace

absl::string_view MoveKindName(MoveKind kind) {
  constexpr absl::string_view kNames[] = {"copy", "load", "rehome", "release", "offload"};
  return kNames[static_cast<int>(kind)];
}

absl::Status CheckResidency(const std::vector<LayerResidency>& layers, const ResidencyLimits& limits) {
  RETURN_IF_ERROR(CheckHosts(layers));
  return CheckLimits(layers, limits, 0);
}

absl::Status ApplyMigration(const ResidencyMigration& migration, const ResidencyLimits& limits,
                            std::vector<LayerResidency>* layers) {
  for (const ResidencyMove& move : migration.arrivals) {
    RETURN_IF_ERROR(ApplyMove(move, true, &(*layers)[move.layer]));
  }
  RETURN_IF_ERROR(CheckLimits(*layers, limits, 1));
  for (const ResidencyMove& move : migration.departures) {
    RETURN_IF_ERROR(ApplyMove(move, false, &(*layers)[move.layer]));
  }
  return CheckHosts(*layers);
}

std::string Explain(const ResidencyPlan& plan, int layer, int expert) {
  SY_CHECK_LT(static_cast<size_t>(layer), plan.expert_facts.size());
  const std::vector<ExpertFacts>& facts = plan.expert_facts[layer];
  SY_CHECK_LT(static_cast<size_t>(expert), facts.size());
  const ExpertFacts& own = facts[expert];
  const auto rank = 1 + std::count_if(facts.begin(), facts.end(), [&](const ExpertFacts& other) {
                      return other.share > own.share || (other.share == own.share && &other < &own);
                    });
  const LayerResidency& residency = plan.layers[layer];
  const std::vector<int32_t> hosts = residency.placement.DevicesOf(expert);
  std::string text = absl::StrFormat(
      "Layer %d, expert %d has %.2f %% of the rows (rank %d of %d) and is hit in %.1f %% of "
      "the steps; ",
      layer, expert, own.share * 100.0, rank, facts.size(), own.hit_rate * 100.0);
  if (residency.offloaded[expert]) {
    absl::StrAppend(&text, "it is in host memory, copied to device ", hosts[0],
                    " when hit, since what fills that device's memory saves more.");
  } else {
    absl::StrAppend(&text, hosts.size(), hosts.size() == 1 ? " replica on " : " replicas on ", Devices(hosts), ".");
  }
  const std::string deeds = Deeds(plan, layer, expert);
  absl::StrAppend(&text, deeds.empty() ? " Not moved: " : absl::StrCat(" Moved (", deeds, "): "),
                  Why(plan.layer_facts[layer], plan.horizon_steps), ".");
  return text;
}

}  // namespace switchyard::placement
