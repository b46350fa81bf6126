#include "tests/simulation/training/job_user.h"

#include <utility>

#include "proto/support/errors.h"

namespace switchyard::simulation {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(200), kRetry = absl::Milliseconds(400);
// How often an end must be seen in a row until it counts as seen for good.
constexpr int kSure = 3;

}  // namespace

void JobUser::Begin() {
  Submit();
  AskFor("pause", &server::JobManager::Pause, plan_.pause);
  AskFor("resume", &server::JobManager::Resume, plan_.resume);
  AskFor("cancel", &server::JobManager::Cancel, plan_.cancel);
  world_.After(kLookAgain, [this] { Look(); });
}

void JobUser::Submit() {
  const auto again = [this] {
    if (!plan_.names_request && !healed_) {  // it cannot know whether it was heard
      over_ = true;
      return;
    }
    world_.After(kRetry, [this] { Submit(); });
  };
  if (!server_.runs() || !server_.has_jobs()) return again();
  auto answered = std::make_shared<bool>(false);  // shared with the task, which may be lost
  server_.PostJob([this, answered, again](server::JobManager& manager) {
    *answered = true;
    const std::string request = plan_.names_request ? name() : "";
    const absl::StatusOr<server::JobManager::Submitted> submitted = manager.Submit(request, plan_.spec);
    world_.Note(name(), ": submitted: ", submitted.ok() ? "acknowledged" : submitted.status().message());
    if (!submitted.ok()) {
      const bool may = absl::IsUnavailable(submitted.status()) || rpc::ReasonOf(submitted.status()) == v1::DISK_FULL;
      world_.Require(may, name(), " is refused: ", submitted.status().ToString());
      return again();
    }
    world_.Require(id_.empty() || id_ == submitted->job->id, name(), " has two ids");
    id_ = submitted->job->id;
  });
  world_.After(absl::Seconds(1), [answered, again] {
    if (!*answered) again();
  });
}

void JobUser::Look() {
  if (over_) return;
  if (!id_.empty() && server_.runs() && server_.has_jobs()) {
    server_.PostJob([this](server::JobManager& manager) {
      const absl::StatusOr<server::JobPtr> job = manager.Get(id_);
      if (!job.ok()) return world_.Violate(name(), " was acknowledged and is lost: ", job.status().ToString());
      if (plan_.names_request) {
        const absl::StatusOr<server::JobPtr> same = manager.FindRequest(name(), plan_.spec);
        world_.Require(same.ok() && *same != nullptr && (*same)->id == id_, name(), ": its request id names another");
      }
      See(**job, manager.counts().journal_ok);
      if (healed_ && !over_ && (*job)->state == jobs::JobState::kPaused) manager.Resume(id_).IgnoreError();
    });
  }
  world_.After(kLookAgain, [this] { Look(); });
}

void JobUser::See(const server::Job& job, bool journaled) {
  world_.Require(job.attempt >= attempt_, name(), ": attempt ", job.attempt, " after ", attempt_);
  attempt_ = job.attempt;
  world_.Require(job.state != jobs::JobState::kFailed, name(), " has failed: ", job.error.ToString());
  world_.Require(!final_.has_value() || job.state == *final_, name(), " was ",
                 final_.has_value() ? jobs::JobStateName(*final_) : "", ", is ", jobs::JobStateName(job.state));
  if (jobs::IsFinal(job.state)) {
    SeeEnd(job, journaled);
  } else {
    looks_at_end_ = 0;
    world_.Require(!cancel_acknowledged_ || job.state == jobs::JobState::kCancelling, name(),
                   ": its cancellation was acknowledged, it is ", jobs::JobStateName(job.state));
  }
}

void JobUser::SeeEnd(const server::Job& job, bool journaled) {
  if (job.state == jobs::JobState::kSucceeded) {
    world_.Require(shelf_.step(id_) == plan_.spec.steps, name(), " has succeeded at step ", shelf_.step(id_), " of ",
                   plan_.spec.steps);
  }
  looks_at_end_ = journaled ? looks_at_end_ + 1 : 0;
  if (looks_at_end_ < kSure) return;
  if (!final_.has_value()) {
    world_.Note(name(), " is ", jobs::JobStateName(job.state), " after ", job.attempt, " attempts");
    final_ = job.state;
    shelf_.NoteOver(id_);
  }
  if (healed_) over_ = true;
}

void JobUser::AskFor(const char* what, Ask ask, absl::Duration when) {
  if (when == absl::InfiniteDuration()) return;
  world_.After(when, [this, what, ask] {
    if (id_.empty() || !server_.runs() || !server_.has_jobs()) return;
    server_.PostJob([this, what, ask](server::JobManager& manager) {
      const absl::StatusOr<server::JobPtr> job = (manager.*ask)(id_);
      world_.Note(name(), ": ", what, ": ", job.ok() ? jobs::JobStateName((*job)->state) : job.status().message());
      if (job.ok() && ask == &server::JobManager::Cancel) cancel_acknowledged_ = true;
    });
  });
}

}  // namespace switchyard::simulation
