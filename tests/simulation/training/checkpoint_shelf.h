// The checkpoints of all jobs, on a disk that outlives processes: which attempt owns a job's folder, and how far it is.
//
// As workers/checkpoint has it, a newer attempt takes the folder, and an older one then saves nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/simulation/core/world.h"

namespace switchyard::simulation {

class CheckpointShelf {
 public:
  explicit CheckpointShelf(World* world) : world_(*world) {}

  // Rank 0 begins.  Returns false if a newer attempt owns the job.  Violation: that attempt has begun before, or the
  // job is over.
  bool Claim(const std::string& job, int64_t attempt) {
    Folder& folder = folders_[job];
    world_.Require(attempt != folder.attempt, "attempt ", attempt, " of a job begins twice");
    world_.Require(!folder.over || attempt < folder.attempt, "attempt ", attempt, " of a job that is over begins");
    if (attempt < folder.attempt) return false;
    folder.attempt = attempt;
    return true;
  }
  // Returns false if a newer attempt owns the job.
  bool Save(const std::string& job, int64_t attempt, int64_t step) {
    Folder& folder = folders_[job];
    if (attempt < folder.attempt) return false;
    world_.Require(step >= folder.step, "a job's checkpoints go back from step ", folder.step, " to ", step);
    folder.step = step;
    return true;
  }
  int64_t step(const std::string& job) { return folders_[job].step; }
  // Somebody has seen that the job is over, and the journal has it.
  void NoteOver(const std::string& job) { folders_[job].over = true; }

 private:
  struct Folder {
    int64_t attempt = 0, step = 0;
    bool over = false;
  };
  World& world_;
  std::map<std::string, Folder> folders_;
};

}  // namespace switchyard::simulation
