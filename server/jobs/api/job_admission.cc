#include "server/jobs/api/job_admission.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "server/jobs/api/job_calls.h"
#include "server/jobs/api/job_queries.h"
#include "server/jobs/disk_quota.h"
#include "server/jobs/fork/fork_folder.h"
#include "server/jobs/fork/fork_spec.h"
#include "server/jobs/fork/seed_fork.h"
#include "server/jobs/journal/loss_log.h"
#include "server/jobs/run/job_runs.h"
#include "server/jobs/spec/spec_check.h"

namespace switchyard::server {
namespace {

// Of SubmitJob and ForkJob.
template <class Response = v1::SubmitJobResponse>
void AnswerSubmit(UnaryCall* call, const JobPtr& job, bool existed) {
  Response response;
  response.set_existed(existed);
  AnswerWithJob(call, job, std::move(response));
}

// Returns the quota of the key `owner` and the jobs that count.  On the jobs' thread.
DiskQuota QuotaOf(UnaryCall* call, const JobManager& manager, const std::string& owner) {
  const KeyRing* const keys = call->request_context()->keys;
  DiskQuota quota = {.owner = owner, .jobs = {}};
  if (keys != nullptr) quota.limit_bytes = keys->DiskGibOf(owner) << 30;
  if (quota.limit_bytes > 0) quota.jobs = manager.JobsOf(owner);
  return quota;
}

std::function<bool()> CancelOf(UnaryCall* call) {
  return [call] { return call->cancelled().load(); };
}

// Whether the new job may go into the journal.  A client that has cancelled, or waited for as long as it would, goes
// by there being no job.
absl::Status CheckStillWanted(UnaryCall* call) {
  return call->cancelled().load() ? absl::CancelledError("the client cancelled") : absl::OkStatus();
}

// What the jobs' thread says of a job before its files are looked at.
struct JobAdmission {
  DiskQuota quota;
  bool keeps_base = false;  // its base is no other key's
};
JobAdmission JobAdmissionOf(UnaryCall* call, const JobManager& manager, const jobs::JobSpec& spec) {
  const std::string& owner = call->caller().name;
  return {QuotaOf(call, manager, owner), !manager.BeginsFromOthers(spec, owner)};
}

void Submit(UnaryCall* call, const TrainingContext& training, SubmitArgs args, const JobAdmission& admission) {
  // Not on the jobs' thread, since this reads files.
  const RootDir& checkpoints = *training.checkpoints;
  const absl::StatusOr<double> bytes =
      CheckSpecFiles(args.spec, *training.datasets, checkpoints, training.check_model, CancelOf(call));
  if (!bytes.ok()) return call->Fail(bytes.status());
  absl::Status ready = CheckDiskQuota(admission.quota, checkpoints, *bytes, CancelOf(call));
  if (ready.ok() && admission.keeps_base) ready = KeepBase(args.spec, checkpoints);
  if (!ready.ok()) return call->Fail(ready);
  PostFor(call, training.jobs, [call, args = std::move(args)](JobManager& manager) {
    if (const absl::Status wanted = CheckStillWanted(call); !wanted.ok()) return call->Fail(wanted);
    const absl::StatusOr<JobManager::Submitted> submitted =
        manager.Submit(args.request_id, args.spec, call->caller().name);
    if (!submitted.ok()) return call->Fail(submitted.status());
    AnswerSubmit(call, submitted->job, submitted->existed);
  });
}

// On the jobs' thread: makes the job of a fork that has its folder.  Files are removed where files are handled.
void AddFork(UnaryCall* call, const RootDir* checkpoints, const ForkRequest& request, const Job& parent,
             const ForkedJob& forked, JobManager& manager) {
  const absl::Status wanted = CheckStillWanted(call);
  const absl::StatusOr<JobManager::Submitted> submitted =
      wanted.ok() ? manager.Fork(request, parent, forked, call->caller().name) : wanted;
  if (submitted.ok() && !submitted->existed) {
    if (const absl::Status confirmed = ConfirmForkFolder(*checkpoints, forked.id); !confirmed.ok()) {
      LogWarn(forked.id, ": ", confirmed.message());  // the next start of the server tries again
    }
    return AnswerSubmit<v1::ForkJobResponse>(call, submitted->job, /*existed=*/false);
  }
  // (If the pool takes no more calls, the next start of the server removes the folder.)
  call->StartOn(call->request_context()->file_pool, [checkpoints, submitted, id = forked.id](UnaryCall* call) {
    RemoveForkFolder(*checkpoints, id);
    if (!submitted.ok()) return call->Fail(submitted.status());
    AnswerSubmit<v1::ForkJobResponse>(call, submitted->job, /*existed=*/true);
  });
}

struct PlannedFork {
  ForkRequest request;
  JobPtr parent;
  jobs::JobSpec spec;
  std::string id;
  JobAdmission admission;
};

// Makes the fork's folder, then its job.  Not on the jobs' thread at first, since this reads and writes files.
void MakeFork(UnaryCall* call, const TrainingContext& training, const PlannedFork& fork) {
  const auto& [request, parent, spec, id, admission] = fork;
  const RootDir* const checkpoints = training.checkpoints;
  const absl::StatusOr<double> bytes = CheckSpecFiles(spec, *training.datasets, *checkpoints, training.check_model,
                                                      CancelOf(call), PackedForFork(*checkpoints, *parent, spec));
  if (!bytes.ok()) return call->Fail(bytes.status());
  absl::Status ready = CheckDiskQuota(admission.quota, *checkpoints, *bytes, CancelOf(call));
  if (ready.ok() && admission.keeps_base) ready = KeepBase(spec, *checkpoints);
  if (!ready.ok()) return call->Fail(ready);
  absl::StatusOr<ForkedJob> made =
      SeedFork(*checkpoints, *parent, request, spec, id, absl::ToUnixMillis(absl::Now()), CancelOf(call));
  if (!made.ok()) return call->Fail(WithReasonOfFiles(made.status()));
  const bool same_sets =
      spec.evaluation == parent->spec.evaluation && spec.evaluation_names == parent->spec.evaluation_names;
  CopyLosses(*checkpoints, parent->id, id, made->origin.step,
             {.evaluations = same_sets,
              .named_sets = same_sets && !spec.evaluation_names.empty(),
              .preferences = spec.has_pairs()});
  const bool posted =
      training.jobs->Post([call, checkpoints, request, parent, forked = *std::move(made)](JobManager& manager) {
        AddFork(call, checkpoints, request, *parent, forked, manager);
      });
  if (posted) return;
  RemoveForkFolder(*checkpoints, id);
  call->Fail(ServerStopsError());
}

}  // namespace

void SubmitJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, SubmitArgs args) {
  const absl::StatusOr<JobPtr> before = manager.FindRequest(args.request_id, args.spec, call->caller().name);
  if (!before.ok()) return call->Fail(before.status());
  if (*before != nullptr) return AnswerSubmit(call, *before, /*existed=*/true);
  if (const absl::Status allowed = manager.CheckAdmission(args.spec); !allowed.ok()) return call->Fail(allowed);
  const JobAdmission admission = JobAdmissionOf(call, manager, args.spec);
  call->StartOn(call->request_context()->file_pool,
                [training, args = std::move(args), admission](UnaryCall* call) mutable {
                  Submit(call, training, std::move(args), admission);
                });
}

void ForkJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, const ForkArgs& args) {
  const absl::StatusOr<JobPtr> before = manager.FindFork(args.request, call->caller().name);
  if (!before.ok()) return call->Fail(before.status());
  if (*before != nullptr) return AnswerSubmit<v1::ForkJobResponse>(call, *before, /*existed=*/true);
  const absl::StatusOr<JobPtr> parent = GetAs(call->caller(), manager, args.id);
  if (!parent.ok()) return call->Fail(parent.status());
  const absl::StatusOr<jobs::JobSpec> spec = ForkedSpec((*parent)->spec, args.changes, args.mask);
  if (!spec.ok()) return call->Fail(spec.status());
  if (const absl::Status allowed = manager.CheckAdmission(*spec); !allowed.ok()) return call->Fail(allowed);
  call->StartOn(call->request_context()->file_pool,
                [training, fork = PlannedFork{args.request, *parent, *spec, manager.DrawId(),
                                              JobAdmissionOf(call, manager, *spec)}](UnaryCall* call) {
                  MakeFork(call, training, fork);
                });
}

void ResumeJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, const std::string& id,
                 std::optional<int32_t> workers) {
  const absl::StatusOr<JobPtr> job = GetAs(call->caller(), manager, id);
  if (!job.ok()) return call->Fail(job.status());
  std::optional<jobs::JobSpec> spec;  // of other workers
  if (workers.has_value() && (*job)->spec.workers != *workers) {
    absl::StatusOr<jobs::JobSpec> other = manager.CheckOtherWorkers(**job, *workers);
    if (!other.ok()) return call->Fail(other.status());
    spec = *std::move(other);
  }
  DiskQuota quota;
  if ((*job)->state == jobs::JobState::kPaused) quota = QuotaOf(call, manager, (*job)->owner);
  quota.resumed = id;
  if (!spec.has_value() && quota.limit_bytes == 0)
    return AnswerWithJob<v1::ResumeJobResponse>(call, manager.Resume(id));
  call->StartOn(call->request_context()->file_pool, [training, id, spec, quota](UnaryCall* call) {
    const RootDir& checkpoints = *training.checkpoints;
    absl::Status allowed = CheckDiskQuota(quota, checkpoints, 0, CancelOf(call));
    if (allowed.ok() && spec.has_value()) allowed = CheckWorkersOfModel(*spec, checkpoints, training.check_model);
    if (!allowed.ok()) return call->Fail(allowed);
    PostFor(call, training.jobs, [call, id, spec](JobManager& manager) {
      AnswerWithJob<v1::ResumeJobResponse>(call,
                                           spec.has_value() ? manager.ResumeOn(id, spec->workers) : manager.Resume(id));
    });
  });
}

}  // namespace switchyard::server
