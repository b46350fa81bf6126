#include "server/jobs/api/training_service.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/api/feed_call.h"
#include "server/api/unary_call.h"
#include "server/jobs/api/delete_job.h"
#include "server/jobs/api/job_admission.h"
#include "server/jobs/api/job_calls.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/api/job_queries.h"
#include "server/jobs/api/training_requests.h"

namespace switchyard::server {
namespace {

constexpr char kPackPrefix[] = "call-";

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
    AnswerWithJob<Response>(call, job.ok() ? (manager.*method)(id) : job);
  });
  return call;
}

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceImpl::SubmitJob(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(request_context_, context, request, response, "TrainingService/SubmitJob");
  if (call->Refused()) return call;
  call->Start([training_context = training_](UnaryCall* call) {
    absl::StatusOr<SubmitArgs> args = Take<v1::SubmitJobRequest>(call->request(), CheckJobs(training_context));
    if (!args.ok()) return call->Fail(args.status());
    PostFor(call, training_context.jobs,
            [call, training_context, args = *std::move(args)](JobManager& manager) mutable {
              SubmitJobAs(call, training_context, manager, std::move(args));
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
      ForkJobAs(call, training_context, manager, args);
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
    return call;
  }
  const std::optional<int32_t> workers =
      message.has_workers() ? std::optional<int32_t>(message.workers()) : std::nullopt;
  PostFor(call, training_.jobs, [call, training_context = training_, id = message.id(), workers](JobManager& manager) {
    ResumeJobAs(call, training_context, manager, id, workers);
  });
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
        if (!packed.ok()) return feed->End(WithReasonOfFiles(packed.status()));
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
