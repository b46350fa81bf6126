// A simulated user of training: submits one job, asks for its state, perhaps pauses, resumes or cancels it, and checks
// what the server says.
//
// Checks: a job that was acknowledged is there in every later life of the server, under the same id and once; its
// attempts only rise; an end that was seen and journaled stays; SUCCEEDED means that all steps are saved; it fails for
// no reason that passes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/simulation/training/checkpoint_shelf.h"
#include "tests/simulation/training/job_server.h"

namespace switchyard::simulation {

class JobUser {
 public:
  struct Plan {
    int id = 0;
    jobs::JobSpec spec;
    bool names_request = true;  // gives a request id, and asks again with it until it has an answer
    // What the user asks for, when; InfiniteDuration: never.
    absl::Duration pause = absl::InfiniteDuration(), resume = absl::InfiniteDuration(),
                   cancel = absl::InfiniteDuration();
  };
  JobUser(World* world, JobServer* server, CheckpointShelf* shelf, Plan plan)
      : world_(*world), server_(*server), shelf_(*shelf), plan_(std::move(plan)) {}

  void Begin();
  // The job is over, or will not be: it could not be submitted.
  bool over() const { return over_; }
  // Nothing fails any more: a paused job is resumed.
  void OnHealed() { healed_ = true; }
  std::string name() const { return absl::StrCat("job ", plan_.id); }

 private:
  using Ask = absl::StatusOr<server::JobPtr> (server::JobManager::*)(const std::string&);
  void Submit();
  void Look();
  void See(const server::Job& job, bool journaled);
  void SeeEnd(const server::Job& job, bool journaled);
  void AskFor(const char* what, Ask ask, absl::Duration when);

  World& world_;
  JobServer& server_;
  CheckpointShelf& shelf_;
  const Plan plan_;
  std::string id_;  // empty: not acknowledged
  int64_t attempt_ = 0;
  bool cancel_acknowledged_ = false, healed_ = false, over_ = false;
  int looks_at_end_ = 0;                 // in a row
  std::optional<jobs::JobState> final_;  // seen, and in the journal
};

}  // namespace switchyard::simulation
