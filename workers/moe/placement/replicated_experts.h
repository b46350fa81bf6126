// The experts of a changing placement: each that the rank holds has a slot of one expert store.
//
// A slot is free when nothing holds its expert (expert_host.h).  A layer waits for late copies of what it needs.  Bytes
// come from the machine's expert file.  The thread that copies compares with checksums what is copied for a migration,
// and what was here for a decision and a migration keeps.  What is found damaged in a slot is copied anew before
// anything else computes with it; from then on all copies of that expert are compared, and one that arrives damaged
// fails what needs it: a migration, a layer, a group that begins.  Thread-compatible: the step's thread.  Needs as many
// slots as the placement has.
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
#include "workers/moe/experts/checking_copier.h"
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
  int num_slots = 0;    // of the store: those of all layers' placements, and what migrations arrive in
  PackedExpert expert;
  Device device = Device::Cpu();                             // where the slots are
  int64_t chunk_bytes = 2 << 20;                             // a multiple of 64
  double bytes_per_second = 0;                               // > 0: an emulated link
  std::function<const char*(int layer, int expert)> source;  // stays there
  std::function<uint64_t(int layer, int expert)> checksum;   // of what is there (expert_checksum.h)
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
  absl::Status Prepare(absl::Span<const Expert> arrivals) override;
  absl::StatusOr<bool> Ready() override;
  void Commit(absl::Span<const Expert> departures) override;
  absl::Status Drop() override;
  absl::Status Release() override;
  bool migrating() const { return !arriving_.empty(); }

  absl::Status Check(absl::Span<const int32_t> experts) const override;
  // Waits for late copies, then calls `compute` once, unless there are no rows.
  absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                        Compute compute) override;

  ExpertHostCounters counters() const;
  int64_t bytes() const { return store_->bytes(); }

 private:
  enum Holder : uint8_t { kTable = 1, kMigration = 2, kDeparted = 4 };
  struct Place {
    uint8_t holders = 0;
    int slot = -1;  // of the store, while somebody holds it
  };

  ReplicatedExperts(ReplicatedExpertsOptions options, std::unique_ptr<ExpertStore> store, CheckingCopier* copier);
  Place& PlaceOf(const Expert& expert) {
    return places_[static_cast<size_t>(expert.layer) * static_cast<size_t>(options_.num_experts) +
                   static_cast<size_t>(expert.expert)];
  }
  static ExpertId IdOf(const Expert& expert) { return {.layer = expert.layer, .expert = expert.expert}; }
  absl::Status Hold(const Expert& expert, Holder holder, CopyReason reason);
  absl::Status StartCopy(const Expert& expert, int slot, CopyReason reason);
  absl::Status Release(const Expert& expert, Holder holder);
  // Copies anew what was found damaged in its slot.  REQUIRES: no lease of this thread's.
  absl::Status Repair();

  const ReplicatedExpertsOptions options_;
  const std::unique_ptr<ExpertStore> store_;
  CheckingCopier* const copier_;  // the store's
  std::vector<Place> places_;     // [L * E]
  std::vector<int> free_;         // slots of the store
  std::vector<Expert> arriving_, departed_;
  ExpertHostCounters counters_;
  std::vector<ExpertId> ids_;                       // of a layer's slots with rows
  std::vector<const ops::Weight*> gate_up_, down_;  // [slots]
};

}  // namespace switchyard::moe
