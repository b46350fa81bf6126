// A worker's experts where all workers of its group are on one machine: each loads its own into a memory file, and maps
// the others' (workers/tensor/memory_file.h).  So the machine holds each expert once, and any worker computes any
// expert: in the steps whose plan says so every worker computes its own rows, and no expert rows travel.
//
// Thread-compatible: the worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/experts/experts_in_place.h"
#include "workers/serving/rank_expert_file.h"
#include "workers/tensor/memory_file.h"

namespace switchyard::worker {

// Whether the ranks of a group are on one machine, each can have its experts in a memory file with huge pages, and
// nothing else prevents it (`mine`, of this rank); logs why not, unless `mine` has no words.  Every rank calls it,
// before it loads.  Errors: the store's.
absl::StatusOr<bool> AgreeOnInPlace(int rank, int world, const absl::Status& mine, comm::RendezvousStore* store,
                                    absl::Time deadline);

class RankExpertsInPlace {
 public:
  // Loads this rank's experts.  Blocks; progress as ExpertFile's, half of it for taking the memory.  Errors: the
  // kernel's, the loader's.  REQUIRES: on the CPU; CheckStorable has passed.
  static absl::StatusOr<std::unique_ptr<RankExpertsInPlace>> Load(const RankExpertFileInput& input, int rank, int world,
                                                                  moe::ExpertFile::Progress progress);

  // Maps the other ranks'; every rank calls it, once all have loaded, again for each group.  Where one of them cannot
  // be mapped, which is logged, every rank has its own alone.  Errors: the store's.
  absl::Status Share(comm::RendezvousStore* store, absl::Time deadline);
  // The group is over: gives the others' back.  (Until then the experts of a worker that is gone stay in memory.)
  void End();

  // All experts, as one rank has them; null: this rank has its own alone.
  const moe::ExpertLayout* all_experts() const { return shared_ ? &all_experts_ : nullptr; }
  // The provider that the model's layers compute from.
  moe::ExpertWeightProvider* experts() { return &experts_; }
  int64_t bytes() const { return view_.bytes(); }  // of its own

 private:
  RankExpertsInPlace(const RankExpertFileInput& input, int rank, int world);
  // Where that rank's n-th expert of a layer is in its file, and how long the file is.
  int64_t OffsetOf(int rank, int layer, size_t n) const;
  int64_t BytesOf(int rank) const;
  void SetPlaces(int rank, const char* memory);
  absl::Status MapAll(const std::vector<std::string>& paths);

  const int rank_;
  const int num_layers_;
  const moe::ExpertForms expert_;
  const moe::ExpertLayout homes_, all_experts_;
  moe::ExpertsInPlace experts_;
  UniqueFd file_;
  MemoryFileView view_;                 // of this rank's
  std::vector<MemoryFileView> others_;  // [R] while a group stands
  bool shared_ = false;
};

}  // namespace switchyard::worker
