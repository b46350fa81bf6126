// The input of a rank's attempt at a training job: plain values, and functions that open files and measure memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/jobs/expert_packing.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/jobs/training_assignment.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

struct TrainJobInput {
  jobs::JobSpec spec = {};
  std::string job_id = {};                                  // also the name of its folder
  int64_t attempt = 0;                                      // rising with every start of the job
  std::optional<jobs::ForkOrigin> origin = {};              // unset: the job is no fork
  std::vector<jobs::TrainFile> data = {}, evaluation = {};  // .bin
  std::string dataset_root = {}, checkpoint_root = {};
  // Opens the job's folder in the checkpoint root; none: OpenJobFolder.
  std::function<absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>>()> open_checkpoints = {};
  std::function<MachineMemory()> memory = {};     // at the moment; not divided among ranks
  std::function<int64_t()> promised_memory = {};  // bytes of it that this process will need for other work; none: 0
  // For tests of packing by trials: when it is decided (except `world` and the limit), and a step's times (none:
  // TimesOf).
  jobs::PackingOptions packing = {};
  std::function<jobs::PackingTimes(int64_t step, const StepReport& report)> packing_times = {};
  std::string offload_dir = {};       // for the file of offloaded state; empty: there is none
  OpenStateFileFn open_offload = {};  // makes it; none: OpenStateFile in that directory
  std::string software = {};          // version, for manifests
  // (The server waits longer than these two: stall, server/jobs/run/attempt.h.)
  absl::Duration step_limit = absl::Hours(1);            // of a step, compute included; a lost rank is seen at once
  absl::Duration disk_limit = absl::Hours(1);            // … while one of them reads or writes files
  absl::Duration lock_patience = absl::Seconds(10);      // how long an ended attempt may hold the job's folder
  absl::Duration read_pause = absl::Seconds(1);          // before another try to read a checkpoint
  absl::Duration note_interval = absl::Seconds(2);       // between notes of long work
  absl::Duration reference_interval = absl::Minutes(1);  // between writes of log probabilities of the reference
};

}  // namespace switchyard::train
