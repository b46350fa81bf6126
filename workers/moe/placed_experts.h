// The experts of a placement that changes: what a rank holds of all layers, in the slots of one expert store.
//
// Three hold experts here, and a slot is free when none does: the table (what this rank has of each layer by the
// decisions so far), a stage of the slow loop that is being prepared, and what departed with the last one until it is
// released.  So what two of them want is there once, and whether a copy has ended changes nothing of it.  A copy that
// is late is waited for, by the layer that needs it.  Bytes come from the machine's expert file; what is copied
// for a stage is compared with its checksums, by the thread that copies.
//
// Decisions and stages: decided_placer.h.  After an error of a copy Fill must follow.  Thread-compatible: the step's
// thread.  Does not do: devices, fewer slots than the placement has (expert_offload.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/moe/expert_copier.h"
#include "workers/moe/expert_store.h"
#include "workers/moe/layer_experts.h"
#include "workers/moe/packed_expert.h"

namespace switchyard {

struct PlacedExpertsOptions {
  int num_layers = 0;   // L, those with experts
  int num_experts = 0;  // E
  int num_slots = 0;    // of the store: those of all layers' placements, and what stages arrive in
  PackedExpert expert;
  int64_t chunk_bytes = 2 << 20;                             // a multiple of 64
  double bytes_per_second = 0;                               // > 0: an emulated link
  std::function<const char*(int layer, int expert)> source;  // stays there
  std::function<uint64_t(int layer, int expert)> checksum;   // of what is there (expert_checksum.h)
};

// Why an expert is copied.
enum class CopyReason : uint8_t {
  kFill,      // a group begins
  kDemand,    // the gate said so: its layer waits
  kPrefetch,  // an estimate of a coming layer did
  kStage,     // the slow loop
};
inline constexpr int kNumCopyReasons = 4;

// Since it was made.
struct PlacedExpertsCounters {
  std::array<int64_t, kNumCopyReasons> copies = {};  // that were begun
  int64_t copied_bytes = 0;
  int64_t failed = 0;       // copies
  int64_t late = 0;         // experts that a layer had to wait for
  double wait_seconds = 0;  // of layers, for them
};

class PlacedExperts : public LayerExperts {
 public:
  // Told while slots are filled; false ends it.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;

  // Takes the memory.  Errors: the store's.
  static absl::StatusOr<std::unique_ptr<PlacedExperts>> Create(PlacedExpertsOptions options,
                                                               std::unique_ptr<ExpertCopier> copier);
  ~PlacedExperts() override;

  // A group begins: the table is experts[layer], kEmptySlot among them ignored; nothing is staged.  Copies what is not
  // there yet; blocks.  Errors: DeadlineExceeded, Cancelled, a copy's.
  absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline, Progress progress);

  // A decision changes a slot of this rank: `before` goes, `now` comes, kEmptySlot = none.  Does not wait, but for a
  // copy of `before` on demand that is under way.
  absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason);
  // Its copy goes before prefetches.
  void Hurry(int layer, int32_t expert);

  absl::Status Check(absl::Span<const int32_t> experts, int num_micro_batches) const override;
  // Waits for late copies, then calls `compute` once, unless there are no rows.
  absl::Status RunLayer(const Call& call, Compute compute) override;

  // The slow loop, one stage at a time.
  struct Expert {
    int32_t layer = 0;
    int32_t expert = 0;
  };
  // Starts copies of what this rank does not have.  ResourceExhausted: fewer free slots than arrivals;
  // FailedPrecondition: the stage before was neither dropped nor released.
  absl::Status Prepare(absl::Span<const Expert> arrivals);
  // Whether all of them are there.  DataLoss: a checksum is wrong; a failed copy's error.
  absl::StatusOr<bool> Ready() const;
  // What arrived is the table's, and what departs is not, but stays until Release.  REQUIRES: Ready.
  void Commit(absl::Span<const Expert> departures);
  // What was prepared and not committed, or what departed, is given up; nothing otherwise.  Errors: as Replace.
  absl::Status Drop();
  absl::Status Release();
  bool staging() const { return !staged_.empty(); }

  PlacedExpertsCounters counters() const;
  int64_t bytes() const { return store_->bytes(); }

 private:
  class CheckingCopier;
  enum Holder : uint8_t { kTable = 1, kStage = 2, kDeparted = 4 };
  struct Place {
    uint8_t holders = 0;
    int slot = -1;  // of the store, while somebody holds it
  };

  PlacedExperts(PlacedExpertsOptions options, std::unique_ptr<ExpertStore> store, CheckingCopier* copier);
  Place& PlaceOf(const Expert& expert) {
    return places_[static_cast<size_t>(expert.layer) * static_cast<size_t>(options_.num_experts) +
                   static_cast<size_t>(expert.expert)];
  }
  static ExpertId IdOf(const Expert& expert) { return {.layer = expert.layer, .expert = expert.expert}; }
  absl::Status Hold(const Expert& expert, Holder holder, CopyReason reason);
  absl::Status StartCopy(const Expert& expert, int slot, CopyReason reason);
  absl::Status LetGo(const Expert& expert, Holder holder);

  const PlacedExpertsOptions options_;
  const std::unique_ptr<ExpertStore> store_;
  CheckingCopier* const copier_;  // the store's
  std::vector<Place> places_;     // [L * E]
  std::vector<int> free_;         // slots of the store
  std::vector<Expert> staged_, departed_;
  PlacedExpertsCounters counters_;
  std::vector<ExpertId> ids_;                  // of a layer's slots with rows
  std::vector<const Weight*> gate_up_, down_;  // [slots]
};

}  // namespace switchyard
