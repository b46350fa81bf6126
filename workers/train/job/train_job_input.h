// What a rank is given for its attempt at a training job.  Plain values, and what opens files and measures memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
  std::vector<jobs::TrainFile> data = {}, evaluation = {};  // .bin
  std::string dataset_root = {}, checkpoint_root = {};
  // Opens the job's folder of the checkpoint root; none: OpenJobFolder.
  std::function<absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>>()> open_checkpoints = {};
  std::function<MachineMemory()> memory = {};     // now; not shared out among ranks
  std::function<int64_t()> promised_memory = {};  // bytes of it that this process will want for others; none: 0
  // For tests of mode full: when packing is decided (but `world` and the most), and a step's times (none: TimesOf).
  jobs::PackingOptions packing = {};
  std::function<jobs::PackingTimes(int64_t step, const StepReport& report)> packing_times = {};
  std::string offload_dir = {};                      // for a file that offloaded state is in; empty: there is none
  OpenStateFileFn open_offload = {};                 // makes it; none: OpenStateFile in that directory
  std::string software = {};                         // version, for manifests
  absl::Duration step_limit = absl::Hours(1);        // of a step, compute included; who is lost is seen at once
  absl::Duration disk_limit = absl::Hours(1);        // … while one of them reads or writes files
  absl::Duration lock_patience = absl::Seconds(10);  // how long an attempt that is over may hold the job's folder
  absl::Duration read_pause = absl::Seconds(1);      // before another look at a checkpoint that could not be read
  absl::Duration note_interval = absl::Seconds(2);   // between notes of what takes long
};

}  // namespace switchyard::train
