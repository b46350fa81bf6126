// Whether a job fits into a rank's memory, before anything is allocated, and whether masters and moments of experts go
// to a file where it does not.  Thread-compatible; reads how much memory there is through the job's input.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/config/config.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/job/job_context.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/step/training_memory.h"

namespace switchyard::train {

class MemoryFit {
 public:
  // All borrowed.  config: may still be empty; read by what follows CountNeighbours.
  MemoryFit(JobContext* context, const model::ModelConfig* config) : context_(*context), config_(*config) {}

  // Ranks of one machine, or of one control group, take from the same memory, at the same time.  Collective.
  absl::Status CountNeighbours();
  // This rank's share of what there is now, in bytes.  Each of its neighbours has made promises of its own.
  int64_t Available() const;

  // Whether the job fits without packing, which comes to be decided later, and whether it begins offloaded then.
  absl::Status Check();
  // Whether it fits with so many replicas of every expert, `files` of them on the disk at a time.  Returns whether it
  // begins offloaded with `first` of them.  REQUIRES: first <= most.
  absl::StatusOr<bool> CheckPacked(int32_t most, int32_t files, int32_t first) const;
  // Masters and moments of experts begin in a file.
  bool offloads() const { return offloads_; }
  void set_offloads(bool offloads) { offloads_ = offloads; }
  // Makes that file; null: nothing can be offloaded.
  OpenStateFileFn OffloadFile() const;
  // Says where masters and moments are, where that changes.
  void ReportOffload(const Parameters& parameters);

 private:
  int RanksOf(const MemoryPool& pool) const;
  TrainingNeed NeedOf(int32_t packing, bool offload) const;
  // Whether it fits into that memory only so; an error where it does not fit at all.
  absl::StatusOr<bool> MustOffload(int32_t packing, int64_t available) const;
  absl::Status DoesNotFit(const TrainingNeed& need, int64_t available, const absl::Status& status) const;
  absl::Status CheckOffloadRoom(int32_t packing) const;

  JobContext& context_;
  const model::ModelConfig& config_;
  // How many ranks take from each pool of the memory that this one takes from, by a hash of the pool's name.
  absl::flat_hash_map<std::string, int> ranks_of_pool_;
  int ranks_here_ = 1;  // of this machine
  bool offloads_ = false;
  int64_t reported_offload_ = 0;  // bytes of it
};

}  // namespace switchyard::train
