// The gRPC service of training jobs.  Its methods are raw, as in server/api/inference_service.h.
#pragma once

#include <utility>

#include "scheduler/base/io/root_dir.h"
#include "server/api/request_context.h"
#include "server/jobs/job_loop.h"
#include "server/jobs/pack_runner.h"
#include "server/jobs/spec/model_check.h"
#include "switchyard/v1/training.grpc.pb.h"

namespace switchyard::server {

// The parts of the server that the service calls.  Borrowed; null if this server lacks them.
struct TrainingContext {
  JobLoop* jobs = nullptr;
  absl::Status no_jobs;  // why jobs are disabled although the server was started with them
  PackRunner* packs = nullptr;
  const RootDir* datasets = nullptr;
  const RootDir* checkpoints = nullptr;
  CheckModelFn check_model = nullptr;  // not borrowed
};

using RawTrainingService = v1::TrainingService::WithRawCallbackMethod_SubmitJob<
    v1::TrainingService::WithRawCallbackMethod_ForkJob<v1::TrainingService::WithRawCallbackMethod_GetJob<
        v1::TrainingService::WithRawCallbackMethod_ListJobs<v1::TrainingService::WithRawCallbackMethod_WatchJob<
            v1::TrainingService::WithRawCallbackMethod_PauseJob<v1::TrainingService::WithRawCallbackMethod_ResumeJob<
                v1::TrainingService::WithRawCallbackMethod_CancelJob<
                    v1::TrainingService::WithRawCallbackMethod_DeleteJob<
                        v1::TrainingService::WithRawCallbackMethod_PackData<v1::TrainingService::Service>>>>>>>>>>;

class TrainingServiceImpl final : public RawTrainingService {
 public:
  static constexpr int kMaxPackCalls = 4;  // at a time

  // Borrowed; outlive the gRPC server.
  TrainingServiceImpl(RequestContext* request_context, TrainingContext training)
      : request_context_(request_context), training_(std::move(training)) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ForkJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchJob(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* PackData(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;

  const TrainingContext& training() const { return training_; }

 private:
  RequestContext* const request_context_;
  const TrainingContext training_;
};

}  // namespace switchyard::server
