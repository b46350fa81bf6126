// The experts of a changing placement: each that the rank holds has a slot of one expert store.
//
// A layer first computes the experts that are there, then waits for late copies.  Bytes come from the machine's expert
// file; a copy that failed before its layer waits for it is tried once more, then fails it.  Thread-compatible: the
// step's thread. Needs as many slots as the placement has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/expert_store.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/moe/placement/expert_host.h"
#include "workers/tensor/device.h"

namespace switchyard::moe {

struct ReplicatedExpertsOptions {
  int num_layers = 0;   // L, those with experts
  int num_experts = 0;  // E
  int num_slots = 0;    // of the store: those of all layers' placements
  PackedExpert expert;
  Device device = Device::Cpu();                             // where the slots are
  int64_t chunk_bytes = 2 << 20;                             // a multiple of 64
  double bytes_per_second = 0;                               // > 0: an emulated link
  std::function<const char*(int layer, int expert)> source;  // stays there
};

class ReplicatedExperts : public ExpertWeightProvider, public ExpertHost {
 public:
  // Allocates the memory.  Errors: the store's.
  static absl::StatusOr<std::unique_ptr<ReplicatedExperts>> Create(ReplicatedExpertsOptions options,
                                                                   std::unique_ptr<ExpertCopier> copier);
  ~ReplicatedExperts() override;

  absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline, Progress progress) override;
  absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason) override;
  void RaisePriority(int layer, int32_t expert) override;

  absl::Status Check(absl::Span<const int32_t> experts) const override;
  // Calls `compute` with the experts that are there, then, once they have come, with the late ones.
  absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                        Compute compute) override;

  ExpertHostCounters counters() const;
  int64_t bytes() const { return store_->bytes(); }

 private:
  ReplicatedExperts(ReplicatedExpertsOptions options, std::unique_ptr<ExpertStore> store);
  // The expert's slot of the store; -1 = the table does not have it.
  int& SlotOf(const ExpertId& id) {
    return slot_of_[static_cast<size_t>(id.layer) * static_cast<size_t>(options_.num_experts) +
                    static_cast<size_t>(id.expert)];
  }
  // The table has the expert: its copy begins, unless it is there or on its way.
  absl::Status Hold(const ExpertId& id, CopyReason reason);
  absl::Status StartCopy(const ExpertId& id, int slot, CopyReason reason);
  absl::Status Release(const ExpertId& id);
  // Computes the experts of these slots of the layout once they are there; adds to `waited`, if not null.
  absl::Status RunWave(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                       const std::vector<size_t>& slots, Compute compute, double* waited);

  const ReplicatedExpertsOptions options_;
  const std::unique_ptr<ExpertStore> store_;
  std::vector<int> slot_of_;  // [L * E]
  std::vector<int> free_;     // slots of the store
  ExpertHostCounters counters_;
  std::vector<size_t> here_, late_;                 // of the layout's slots, those with rows
  std::vector<ExpertId> ids_;                       // of a wave
  std::vector<const ops::Weight*> gate_up_, down_;  // [slots]
};

}  // namespace switchyard::moe
