#include "server/jobs/api/training_service.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/api/feed_call.h"
#include "server/api/unary_call.h"
#include "server/jobs/api/delete_job.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/api/job_queries.h"
#include "server/jobs/api/training_requests.h"
#include "server/jobs/disk_quota.h"
#include "server/jobs/fork/fork_folder.h"
#include "server/jobs/fork/seed_fork.h"
#include "server/jobs/journal/loss_log.h"
#include "server/jobs/spec/spec_check.h"

namespace switchyard::server {
namespace {

constexpr char kPackPrefix[] = "call-";

// Adds the reason for errors of files to a status that has no reason yet.
absl::Status OfFiles(const absl::Status& status) {
  if (rpc::ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED) return status;
  constexpr absl::StatusCode kOfFiles[] = {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                                           absl::StatusCode::kAlreadyExists, absl::StatusCode::kFailedPrecondition,
                                           absl::StatusCode::kPermissionDenied};
  const bool bad = std::find(std::begin(kOfFiles), std::end(kOfFiles), status.code()) != std::end(kOfFiles);
  if (!bad && !absl::IsResourceExhausted(status)) return status;
  return rpc::MakeError(status.code(), bad ? v1::BAD_FILE : v1::DISK_FULL, status.message());
}

// Runs `task` on the jobs' thread; it must lead to the end of the call.
void PostFor(UnaryCall* call, JobLoop* jobs, JobLoop::Task task) {
  if (!jobs->Post(std::move(task))) call->Fail(ServerStopsError());
}

// Parses the request into plain values.  `available`: whether this server has the part that the call needs.
template <class Request>
auto Take(const grpc::ByteBuffer& bytes, const absl::Status& available) -> decltype(FromProto(Request())) {
  Request message;
  RETURN_IF_ERROR(ParseTraining(bytes, &message));
  RETURN_IF_ERROR(available);
  return FromProto(message);
}

template <class Request>
absl::Status TakeAboutJob(const grpc::ByteBuffer& bytes, const TrainingContext& training_context, Request* message) {
  RETURN_IF_ERROR(ParseTraining(bytes, message));
  RETURN_IF_ERROR(CheckJobs(training_context));
  return CheckJobId(message->id());
}

template <class Response>
void Answer(UnaryCall* call, const absl::StatusOr<JobPtr>& job, Response response = {}) {
  if (!job.ok()) return call->Fail(job.status());
  *response.mutable_job() = ToProto(**job);
  call->Reply(response);
}

// Of SubmitJob and ForkJob.
template <class Response = v1::SubmitJobResponse>
void AnswerSubmit(UnaryCall* call, const JobPtr& job, bool existed) {
  Response response;
  response.set_existed(existed);
  Answer(call, job, std::move(response));
}

// Answers a method about one job with the job.
template <class Request, class Response>
grpc::ServerUnaryReactor* AboutJob(UnaryCall* call, const TrainingContext& training_context,
                                   absl::StatusOr<JobPtr> (JobManager::*method)(const std::string&)) {
  if (call->Refused()) return call;
  Request message;
  if (const absl::Status status = TakeAboutJob(call->request(), training_context, &message); !status.ok()) {
    call->Fail(status);
    return call;
  }
  PostFor(call, training_context.jobs, [call, method, id = message.id()](JobManager& manager) {
    const absl::StatusOr<JobPtr> job = GetAs(call->caller(), manager, id);
    Answer<Response>(call, job.ok() ? (manager.*method)(id) : job);
  });
  return call;
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

// What the jobs' thread says of a job before its files are looked at.
struct JobAdmission {
  DiskQuota quota;
  bool keeps_base = false;  // its base is no other key's
};
JobAdmission JobAdmissionOf(UnaryCall* call, const JobManager& manager, const jobs::JobSpec& spec) {
  const std::string& owner = call->caller().name;
  return {QuotaOf(call, manager, owner), !manager.BeginsFromOthers(spec, owner)};
}

void Submit(UnaryCall* call, const TrainingContext& training_context, SubmitArgs args, const JobAdmission& admission) {
  // Not on the jobs' thread, since this reads files.
  const RootDir& checkpoints = *training_context.checkpoints;
  const absl::StatusOr<double> bytes =
      CheckSpecFiles(args.spec, *training_context.datasets, checkpoints, training_context.check_model, CancelOf(call));
  if (!bytes.ok()) return call->Fail(bytes.status());
  absl::Status ready = CheckDiskQuota(admission.quota, checkpoints, *bytes, CancelOf(call));
  if (ready.ok() && admission.keeps_base) ready = KeepBase(args.spec, checkpoints);
  if (!ready.ok()) return call->Fail(ready);
  PostFor(call, training_context.jobs, [call, args = std::move(args)](JobManager& manager) {
    const absl::StatusOr<JobManager::Submitted> submitted =
        manager.Submit(args.request_id, args.spec, call->caller().name);
    if (!submitted.ok()) return call->Fail(submitted.status());
    AnswerSubmit(call, submitted->job, submitted->existed);
  });
}

// On the jobs' thread: makes the job of a fork that has its folder.  Files are removed where files are handled.
void AddFork(UnaryCall* call, const RootDir* checkpoints, const ForkRequest& request, const Job& parent,
             const ForkedJob& forked, JobManager& manager) {
  const absl::StatusOr<JobManager::Submitted> submitted = manager.Fork(request, parent, forked, call->caller().name);
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
void MakeFork(UnaryCall* call, const TrainingContext& training_context, const PlannedFork& fork) {
  const auto& [request, parent, spec, id, admission] = fork;
  const RootDir* const checkpoints = training_context.checkpoints;
  const absl::StatusOr<double> bytes =
      CheckSpecFiles(spec, *training_context.datasets, *checkpoints, training_context.check_model, CancelOf(call),
                     PackedForFork(*checkpoints, *parent, spec));
  if (!bytes.ok()) return call->Fail(bytes.status());
  absl::Status ready = CheckDiskQuota(admission.quota, *checkpoints, *bytes, CancelOf(call));
  if (ready.ok() && admission.keeps_base) ready = KeepBase(spec, *checkpoints);
  if (!ready.ok()) return call->Fail(ready);
  absl::StatusOr<ForkedJob> made =
      SeedFork(*checkpoints, *parent, request, spec, id, absl::ToUnixMillis(absl::Now()), CancelOf(call));
  if (!made.ok()) return call->Fail(OfFiles(made.status()));
  const bool same_sets =
      spec.evaluation == parent->spec.evaluation && spec.evaluation_names == parent->spec.evaluation_names;
  CopyLosses(*checkpoints, parent->id, id, made->origin.step,
             {.evaluations = same_sets,
              .named_sets = same_sets && !spec.evaluation_names.empty(),
              .preferences = spec.has_pairs()});
  const bool posted =
      training_context.jobs->Post([call, checkpoints, request, parent, forked = *std::move(made)](JobManager& manager) {
        AddFork(call, checkpoints, request, *parent, forked, manager);
      });
  if (posted) return;
  RemoveForkFolder(*checkpoints, id);
  call->Fail(ServerStopsError());
}

// On the jobs' thread: finds a fork that the request has made before, then the parent, which may be gone by then.
void Fork(UnaryCall* call, const TrainingContext& training_context, const ForkArgs& args, JobManager& manager) {
  const absl::StatusOr<JobPtr> before = manager.FindFork(args.request, call->caller().name);
  if (!before.ok()) return call->Fail(before.status());
  if (*before != nullptr) return AnswerSubmit<v1::ForkJobResponse>(call, *before, /*existed=*/true);
  const absl::StatusOr<JobPtr> parent = GetAs(call->caller(), manager, args.id);
  if (!parent.ok()) return call->Fail(parent.status());
  const absl::StatusOr<jobs::JobSpec> spec = ForkedSpec((*parent)->spec, args.changes, args.mask);
  if (!spec.ok()) return call->Fail(spec.status());
  if (const absl::Status allowed = manager.CheckFork(*spec); !allowed.ok()) return call->Fail(allowed);
  call->StartOn(call->request_context()->file_pool,
                [training_context, fork = PlannedFork{args.request, *parent, *spec, manager.DrawId(),
                                                      JobAdmissionOf(call, manager, *spec)}](UnaryCall* call) {
                  MakeFork(call, training_context, fork);
                });
}

// Resumes a job, perhaps on another number of workers: checks the limits of job and server first, then, not on the
// jobs' thread, the model, and whether the owner's other jobs are within their quota of the disk.
void Resume(UnaryCall* call, const TrainingContext& training_context, const std::string& id,
            std::optional<int32_t> workers) {
  PostFor(call, training_context.jobs, [call, training_context, id, workers](JobManager& manager) {
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
    if (!spec.has_value() && quota.limit_bytes == 0) return Answer<v1::ResumeJobResponse>(call, manager.Resume(id));
    call->StartOn(call->request_context()->file_pool, [training_context, id, spec, quota](UnaryCall* call) {
      const RootDir& checkpoints = *training_context.checkpoints;
      absl::Status allowed = CheckDiskQuota(quota, checkpoints, 0, CancelOf(call));
      if (allowed.ok() && spec.has_value())
        allowed = CheckWorkersOfModel(*spec, checkpoints, training_context.check_model);
      if (!allowed.ok()) return call->Fail(allowed);
      PostFor(call, training_context.jobs, [call, id, spec](JobManager& manager) {
        Answer<v1::ResumeJobResponse>(call,
                                      spec.has_value() ? manager.ResumeOn(id, spec->workers) : manager.Resume(id));
      });
    });
  });
}

}  // namespace

// A repeated request is looked up before its files are checked, since these may be gone by now.
grpc::ServerUnaryReactor* TrainingServiceImpl::SubmitJob(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "TrainingService/SubmitJob");
  if (call->Refused()) return call;
  call->Start([training_context = training_](UnaryCall* call) {
    absl::StatusOr<SubmitArgs> args = Take<v1::SubmitJobRequest>(call->request(), CheckJobs(training_context));
    if (!args.ok()) return call->Fail(args.status());
    PostFor(
        call, training_context.jobs, [call, training_context, args = *std::move(args)](JobManager& manager) mutable {
          const absl::StatusOr<JobPtr> before = manager.FindRequest(args.request_id, args.spec, call->caller().name);
          if (!before.ok()) return call->Fail(before.status());
          if (*before != nullptr) return AnswerSubmit(call, *before, /*existed=*/true);
          if (const absl::Status workers = manager.CheckWorkers(args.spec); !workers.ok()) return call->Fail(workers);
          const JobAdmission admission = JobAdmissionOf(call, manager, args.spec);
          call->StartOn(call->request_context()->file_pool,
                        [training_context, args = std::move(args), admission](UnaryCall* call) mutable {
                          Submit(call, training_context, std::move(args), admission);
                        });
        });
  });
  return call;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ForkJob(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "TrainingService/ForkJob");
  if (call->Refused()) return call;
  call->Start([training_context = training_](UnaryCall* call) {
    absl::StatusOr<ForkArgs> args = Take<v1::ForkJobRequest>(call->request(), CheckJobs(training_context));
    if (!args.ok()) return call->Fail(args.status());
    PostFor(call, training_context.jobs, [call, training_context, args = *std::move(args)](JobManager& manager) {
      Fork(call, training_context, args, manager);
    });
  });
  return call;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return AboutJob<v1::GetJobRequest, v1::GetJobResponse>(
      new UnaryCall(request_context_, context, request, response, "TrainingService/GetJob"), training_,
      &JobManager::Get);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::PauseJob(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return AboutJob<v1::PauseJobRequest, v1::PauseJobResponse>(
      new UnaryCall(request_context_, context, request, response, "TrainingService/PauseJob"), training_,
      &JobManager::Pause);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ResumeJob(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "TrainingService/ResumeJob");
  if (call->Refused()) return call;
  v1::ResumeJobRequest message;
  if (const absl::Status status = TakeAboutJob(call->request(), training_, &message); !status.ok()) {
    call->Fail(status);
  } else {
    Resume(call, training_, message.id(),
           message.has_workers() ? std::optional<int32_t>(message.workers()) : std::nullopt);
  }
  return call;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return AboutJob<v1::CancelJobRequest, v1::CancelJobResponse>(
      new UnaryCall(request_context_, context, request, response, "TrainingService/CancelJob"), training_,
      &JobManager::Cancel);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DeleteJob(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "TrainingService/DeleteJob");
  if (call->Refused()) return call;
  v1::DeleteJobRequest message;
  if (const absl::Status status = TakeAboutJob(call->request(), training_, &message); !status.ok()) {
    call->Fail(status);
    return call;
  }
  PostFor(call, training_.jobs, [call, training_context = training_, id = message.id()](JobManager& manager) {
    DeleteJobAs(call, training_context, manager, id);
  });
  return call;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "TrainingService/ListJobs");
  if (call->Refused()) return call;
  absl::StatusOr<JobFilter> filter = Take<v1::ListJobsRequest>(*request, CheckJobs(training_));
  if (!filter.ok()) {
    call->Fail(filter.status());
    return call;
  }
  ListJobsAs(training_, call->caller(), *std::move(filter), [call](const absl::StatusOr<JobPage>& page) {
    if (!page.ok()) return call->Fail(page.status());
    // Only copies of the jobs are taken on this thread; the pool converts them.
    call->Start([page = *page](UnaryCall* call) { call->Reply(ToProto(page)); });
  });
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* TrainingServiceImpl::WatchJob(grpc::CallbackServerContext* context,
                                                                          const grpc::ByteBuffer* request) {
  auto* call = new FeedCall(request_context_, context, "TrainingService/WatchJob");
  if (call->Refused()) return call;
  const std::shared_ptr<Feed> feed = call->feed();
  const absl::StatusOr<WatchArgs> args = Take<v1::WatchJobRequest>(*request, CheckJobs(training_));
  if (!args.ok()) {
    feed->End(args.status());
    return call;
  }
  call->set_min_interval(args->min_interval);
  auto watcher = std::make_shared<int64_t>(0);  // used on the jobs' thread; shared by both tasks
  JobLoop* jobs = training_.jobs;
  call->set_on_over([jobs, watcher] {  // (a loop that has stopped has ended all watches)
    static_cast<void>(jobs->Post([watcher](JobManager& manager) { manager.Unwatch(*watcher); }));
  });
  const bool posted = jobs->Post([feed, watcher, id = args->id, caller = call->caller()](JobManager& manager) {
    const auto report = [feed](const JobPtr& job) {
      if (job == nullptr) return feed->End(ServerStopsError());
      feed->Offer([job] {
        auto response = std::make_unique<v1::WatchJobResponse>();
        *response->mutable_job() = ToProto(*job);
        return response;
      });
      if (jobs::IsFinal(job->state)) feed->End(absl::OkStatus());
    };
    if (const absl::StatusOr<JobPtr> job = GetAs(caller, manager, id); !job.ok()) return feed->End(job.status());
    const absl::StatusOr<int64_t> watching = manager.Watch(id, report);
    if (!watching.ok()) return feed->End(watching.status());
    *watcher = *watching;
    if (feed->gone()) manager.Unwatch(*watcher);
  });
  if (!posted) feed->End(ServerStopsError());
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* TrainingServiceImpl::PackData(grpc::CallbackServerContext* context,
                                                                          const grpc::ByteBuffer* request) {
  static std::atomic<int64_t> calls{0};
  auto* call = new FeedCall(request_context_, context, "TrainingService/PackData");
  if (call->Refused()) return call;
  const std::shared_ptr<Feed> feed = call->feed();
  const absl::Status available = training_.packs != nullptr && training_.datasets != nullptr
                                     ? absl::OkStatus()
                                     : rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_TRAINING,
                                                      "this server has no data sets (--dataset_root)");
  absl::StatusOr<PackRequest> pack = Take<v1::PackDataRequest>(*request, available);
  if (!pack.ok()) {
    feed->End(pack.status());
    return call;
  }
  const std::string key = absl::StrCat(kPackPrefix, calls.fetch_add(1));
  call->set_on_over([packs = training_.packs, key] { packs->Cancel(key); });
  const bool started = training_.packs->StartIfFewer(
      kPackPrefix, kMaxPackCalls, key, *std::move(pack),
      [feed](int64_t done, int64_t total) {
        feed->Offer([done, total] {
          auto response = std::make_unique<v1::PackDataResponse>();
          response->set_bytes_done(done);
          response->set_bytes_total(total);
          return response;
        });
      },
      [feed](absl::StatusOr<PackedData> packed) {
        if (!packed.ok()) return feed->End(OfFiles(packed.status()));
        feed->Offer([packed = *packed] {
          auto response = std::make_unique<v1::PackDataResponse>();
          response->set_bytes_done(packed.bytes);
          response->set_bytes_total(packed.bytes);
          response->set_done(true);
          response->set_documents(packed.documents);
          response->set_tokens(packed.tokens);
          response->set_trained_tokens(packed.trained_tokens);
          return response;
        });
        feed->End(absl::OkStatus());
      });
  if (!started) {
    feed->End(rpc::WithRetry(
        rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL,
                       absl::StrCat("PackData calls: limit ", kMaxPackCalls), {{"limit", absl::StrCat(kMaxPackCalls)}}),
        absl::Seconds(5)));
  }
  return call;
}

}  // namespace switchyard::server
