// Decides, before anything is allocated, whether a job fits into a rank's memory, and whether masters and moments of
// experts go to a file if it does not.  Thread-compatible; reads the amount of memory through the job's input.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/model/config/config.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/job/job_context.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/step/training_memory.h"

namespace switchyard::train {

// A rank's part of a job, as far as its memory is concerned.
struct RankShare {
  int world = 1;
  int ranks_here = 1;       // that share this machine's memory
  bool can_offload = true;  // there is a place for files
  FrozenElements frozen = {};
};
TrainingNeed NeedOf(const model::ModelConfig& config, const jobs::JobSpec& spec, const RankShare& share,
                    int32_t packing, bool offload);
// Whether the job fits into `available` bytes only if masters and moments of experts are in a file.
// ResourceExhausted: it does not fit, with advice; FailedPrecondition: the spec wants files, and there is no place.
absl::StatusOr<bool> MustOffload(const model::ModelConfig& config, const jobs::JobSpec& spec, const RankShare& share,
                                 int32_t packing, int64_t available);

class MemoryFit {
 public:
  // All borrowed.  config: may still be empty; the calls after CountNeighbours read it.
  MemoryFit(JobContext* context, const model::ModelConfig* config) : context_(*context), config_(*config) {}

  // Counts the ranks of this machine and of its control groups, which use the same memory at the same time. Collective.
  absl::Status CountNeighbours();
  // This rank's share of the memory that is available now, in bytes.  Memory that processes promised elsewhere is not
  // in it.
  int64_t Available() const;

  // What the job does not train of the model; until then, nothing.
  void set_frozen(const FrozenElements& frozen) { frozen_ = frozen; }
  // Checks that the job fits as it begins, before trials of packings, and decides whether it begins offloaded.
  absl::Status Check();
  // Checks that the job fits with up to `most` replicas of every expert, with files of these packings on the disk at a
  // time.  Returns whether it begins offloaded with `first` replicas.  REQUIRES: first <= most.
  absl::StatusOr<bool> CheckPacked(int32_t most, absl::Span<const int32_t> files, int32_t first) const;
  // Whether masters and moments of experts begin in a file.
  bool offloads() const { return offloads_; }
  void set_offloads(bool offloads) { offloads_ = offloads; }
  // A function that makes the file; null: nothing can be offloaded.
  OpenStateFileFn OffloadFile() const;
  // Makes the file of activations; null: there is no directory.
  OpenStateFileFn ActivationsFile() const;
  // Reports where activations are offloaded to, if they are.
  void ReportActivations();
  // Reports where masters and moments are, if that has changed.
  void ReportOffload(const Parameters& parameters);

 private:
  int RanksOf(const MemoryPool& pool) const;
  RankShare Share() const;
  // The function above for this rank, with errors that end the job.
  absl::StatusOr<bool> MustOffload(int32_t packing, int64_t available) const;
  // Checks that the disk has room for what is offloaded, activations and, if `offload`, masters and moments of experts
  // in a file for each packing.
  absl::Status CheckOffloadRoom(absl::Span<const int32_t> packings, bool offload) const;

  JobContext& context_;
  const model::ModelConfig& config_;
  // The number of ranks that use each of this rank's memory pools, by a hash of the pool's name.
  absl::flat_hash_map<std::string, int> ranks_of_pool_;
  int ranks_here_ = 1;  // on this machine
  FrozenElements frozen_;
  bool offloads_ = false;
  int64_t reported_offload_ = 0;  // bytes of it
};

}  // namespace switchyard::train
