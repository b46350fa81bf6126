#include "scheduler/placement/background/residency_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::placement {
namespace {

// spare: what a device may host beyond its slots, of each layer and of all layers together.
absl::Status CheckSlots(const std::vector<Placement>& layers, int layer_slots, int spare) {
  const int all_slots = layer_slots * static_cast<int>(layers.size());
  std::vector<int> in_all;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<int> hosted(layers[layer].slots.size(), 0);
    in_all.resize(hosted.size(), 0);
    ForEachReplica(layers[layer], [&](int32_t device, int32_t) {
      ++hosted[device];
      ++in_all[device];
    });
    for (size_t device = 0; device < hosted.size(); ++device) {
      if (hosted[device] <= layer_slots + spare) continue;
      return absl::InvalidArgumentError(absl::StrCat("residency: layer ", layer, ", device ", device, " hosts ",
                                                     hosted[device], " experts, limit ", layer_slots + spare));
    }
  }
  for (size_t device = 0; device < in_all.size(); ++device) {
    if (in_all[device] <= all_slots + spare) continue;
    return absl::InvalidArgumentError(absl::StrCat("residency: device ", device, " hosts ", in_all[device],
                                                   " experts of all layers, limit ", all_slots + spare));
  }
  return absl::OkStatus();
}

absl::Status CheckHosts(const std::vector<Placement>& layers) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (const absl::Status status = CheckPlacement(layers[layer]); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("residency: layer ", layer, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

// Puts `next` into the move's slot.  InvalidArgument where that does not hold `before`.
absl::Status ChangeSlot(const ResidencyMove& move, int32_t before, int32_t next, Placement* layer) {
  int32_t& slot = layer->slots[move.device][move.slot];
  if (slot == before) {
    slot = next;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("residency: ", next == kEmptySlot ? "release" : "copy", " of layer ", move.layer, ", expert ",
                   move.expert, " at device ", move.device, ", slot ", move.slot, ": the slot ",
                   slot == kEmptySlot ? "is empty" : absl::StrCat("holds expert ", slot)));
}

std::string Devices(const std::vector<int32_t>& devices) {
  return absl::StrCat(devices.size() == 1 ? "device " : "devices ", absl::StrJoin(devices, ", "));
}

// "copied to device 3, released from device 1"; empty if the plan does not touch it.
std::string Deeds(const ResidencyPlan& plan, int layer, int expert) {
  std::vector<std::string> deeds;
  for (const ResidencyMigration& migration : plan.migrations) {
    for (const auto& [moves, deed] : {std::pair{&migration.arrivals, "copy"}, {&migration.departures, "release"}}) {
      for (const ResidencyMove& move : *moves) {
        if (move.layer != layer || move.expert != expert) continue;
        deeds.push_back(absl::StrCat(deed, " at device ", move.device));
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

absl::Status CheckResidency(const std::vector<Placement>& layers, int layer_slots) {
  RETURN_IF_ERROR(CheckHosts(layers));
  return CheckSlots(layers, layer_slots, 0);
}

absl::Status ApplyMigration(const ResidencyMigration& migration, int layer_slots, std::vector<Placement>* layers) {
  for (const ResidencyMove& move : migration.arrivals) {
    RETURN_IF_ERROR(ChangeSlot(move, kEmptySlot, move.expert, &(*layers)[move.layer]));
  }
  RETURN_IF_ERROR(CheckSlots(*layers, layer_slots, 1));
  for (const ResidencyMove& move : migration.departures) {
    RETURN_IF_ERROR(ChangeSlot(move, move.expert, kEmptySlot, &(*layers)[move.layer]));
  }
  return CheckHosts(*layers);
}

std::string Explain(const ResidencyPlan& plan, int layer, int expert) {
  SY_CHECK_LT(static_cast<size_t>(layer), plan.row_shares.size());
  const std::vector<float>& shares = plan.row_shares[layer];
  SY_CHECK_LT(static_cast<size_t>(expert), shares.size());
  const float& own = shares[expert];
  const auto rank = 1 + std::count_if(shares.begin(), shares.end(), [&](const float& other) {
                      return other > own || (other == own && &other < &own);
                    });
  const std::vector<int32_t> hosts = plan.layers[layer].DevicesOf(expert);
  std::string text = absl::StrFormat("Layer %d, expert %d has %.2f %% of the rows (rank %d of %d); ", layer, expert,
                                     own * 100.0, rank, shares.size());
  absl::StrAppend(&text, hosts.size(), hosts.size() == 1 ? " replica on " : " replicas on ", Devices(hosts), ".");
  const std::string deeds = Deeds(plan, layer, expert);
  absl::StrAppend(&text, deeds.empty() ? " Not moved: " : absl::StrCat(" Moved (", deeds, "): "),
                  Why(plan.layer_facts[layer], plan.horizon_steps), ".");
  return text;
}

}  // namespace switchyard::placement
