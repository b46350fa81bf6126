// The experts of a changing placement: each that the rank holds has a slot of one expert store.
//
// A layer first computes the experts that are there, then waits for late copies.  Bytes come from the machine's expert
// file; a copy that failed before its layer waits for it is tried once more, then fails it.  Thread-compatible: the
// step's thread. Needs as many slots as the placement has.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/expert_store.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/tensor/device.h"

namespace switchyard::moe {

// Why an expert is copied.
enum class CopyReason : uint8_t {
  kFill,      // a group begins
  kDemand,    // the gate said so: its layer waits
  kPrefetch,  // an estimate of a coming layer did
};
inline constexpr int kNumCopyReasons = 3;

// Counts since the experts were made.
struct ReplicatedExpertsCounters {
  std::array<int64_t, kNumCopyReasons> copies = {};  // that were begun
  int64_t copied_bytes = 0;
  int64_t failed = 0;       // copies
  int64_t late = 0;         // experts that a layer had to wait for
  double wait_seconds = 0;  // of layers, for them
  CopyPath path = CopyPath::kMemory;
};

struct ReplicatedExpertsOptions {
  int num_layers = 0;   // L, those with experts
  int num_experts = 0;  // E
  int num_slots = 0;    // of the store: those of all layers' placements
  ExpertForms expert;
  Device device = Device::Cpu();                             // where the slots are
  int64_t chunk_bytes = 2 << 20;                             // a multiple of 64
  double bytes_per_second = 0;                               // > 0: an emulated link
  std::function<const char*(int layer, int expert)> source;  // stays there
};

class ReplicatedExperts : public ExpertWeightProvider {
 public:
  // Called while slots are filled; false ends that.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;

  // Allocates the memory.  Errors: the store's.
  static absl::StatusOr<std::unique_ptr<ReplicatedExperts>> Create(ReplicatedExpertsOptions options,
                                                                   std::unique_ptr<ExpertCopier> copier);
  ~ReplicatedExperts() override;

  // A group begins: this rank's experts are experts[layer], kEmptySlot ignored.  Copies what is missing; blocks.  After
  // an error of a copy it must be called again.  Errors: DeadlineExceeded, Cancelled, a copy's.
  absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline, Progress progress);
  // A decision changes a slot of this rank: `before` goes, `now` comes, kEmptySlot = none.  Does not wait.
  absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason);
  // The layer that computes next waits for this expert: its copy goes before prefetches.
  void RaisePriority(int layer, int32_t expert);

  // From here until the next Fill these experts of each layer stay in their slots, and steps on this stream may read
  // them without RunLayer.  Waits for the stream.  REQUIRES: Fill had them, and no decision lets them go.  Errors: the
  // device's.
  absl::Status Stand(const Stream& stream, const std::vector<std::vector<int32_t>>& experts);
  // Those of a layer, in that order; null: Stand was not called since Fill.
  const StandingExperts* standing(int layer) const {
    return standing_.empty() ? nullptr : &standing_[static_cast<size_t>(layer)].experts;
  }

  absl::Status Check(absl::Span<const int32_t> experts) const override;
  // Calls `compute` with the experts that are there, then, once they have come, with the late ones.
  absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                        Compute compute) override;

  ReplicatedExpertsCounters counters() const;
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
  // Fill may give such slots to others, behind the work that reads them.
  absl::Status EndStanding();
  // Computes the experts of these slots of the layout once they are there; adds to `waited`, if not null.
  absl::Status RunWave(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                       const std::vector<size_t>& slots, Compute compute, double* waited);

  const ReplicatedExpertsOptions options_;
  const std::unique_ptr<ExpertStore> store_;
  std::vector<int> slot_of_;  // [L * E]
  std::vector<int> free_;     // slots of the store
  ReplicatedExpertsCounters counters_;
  struct StandingLayer {
    StandingExperts experts;
    ExpertLease lease;
  };
  std::vector<StandingLayer> standing_;             // [L], or none
  std::optional<Stream> standing_stream_;           // that reads them
  std::vector<size_t> here_, late_;                 // of the layout's slots, those with rows
  std::vector<ExpertId> ids_;                       // of a wave
  std::vector<const ops::Weight*> gate_up_, down_;  // [slots]
};

}  // namespace switchyard::moe
