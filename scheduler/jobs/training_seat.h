// A worker's assignment in a job's attempt: what it trains, on what, and as which rank.  Plain data;
// proto/link/training_seat_codec.h is its form on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/jobs/job_spec.h"

namespace switchyard::jobs {

// A file of packed tokens, beneath one of two roots.
struct TrainFile {
  bool of_job = false;    // made for the job, in its folder beneath the checkpoint root; else beneath the dataset root
  std::string name = {};  // .bin, relative to that

  bool operator==(const TrainFile& other) const = default;
};

struct TrainingAssignment {
  int64_t epoch = 0;    // of the group; never reused
  int64_t attempt = 0;  // of the job, rising: fences checkpoints
  std::string job_id;   // also the name of its folder beneath the checkpoint root
  JobSpec spec;
  std::vector<TrainFile> data;
  std::vector<TrainFile> evaluation;
  int rank = 0;
  int world = 1;
  std::string store_token;  // the group's secret
  int64_t form_deadline_ms = 0;
  std::string reach;  // a member's address that is not loopback; empty if there is none

  bool operator==(const TrainingAssignment& other) const = default;
};

}  // namespace switchyard::jobs
