// A fake TrainingService in this process, whose answers a test scripts.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/support/errors.h"
#include "switchyard/v1/training.grpc.pb.h"

namespace switchyard::client {

class FakeTraining final : public v1::TrainingService::Service {
 public:
  // Listens on the port; 0 = any free one.
  explicit FakeTraining(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeTraining() override { Stop(); }

  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  int port() const { return port_; }
  std::string flag() const { return absl::StrCat("--server=127.0.0.1:", port_); }

  // Script these before the calls that use them.
  v1::Job job;                 // what every call about one job answers
  int64_t freed_bytes = 0;     // what DeleteJob answers
  std::vector<v1::Job> watch;  // what WatchJob streams
  grpc::Status status;         // how every call ends
  std::vector<v1::ListJobsResponse> pages;
  std::vector<v1::PackDataResponse> packing;

  // The requests that were received.
  v1::SubmitJobRequest submitted;
  v1::ForkJobRequest forked;
  std::chrono::system_clock::time_point fork_deadline;
  v1::WatchJobRequest watched;
  std::vector<v1::ListJobsRequest> listed;
  v1::PackDataRequest packed;
  v1::ResumeJobRequest resumed;
  std::vector<std::string> calls;        // "pause job-1"
  absl::Notification was_watched_again;  // the first stream was read to its end

 private:
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    submitted = *request;
    *response->mutable_job() = job;
    *response->mutable_job()->mutable_spec() = request->spec();
    response->set_existed(request->request_id() == "again");
    return status;
  }
  grpc::Status ForkJob(grpc::ServerContext* context, const v1::ForkJobRequest* request,
                       v1::ForkJobResponse* response) override {
    forked = *request;
    fork_deadline = context->deadline();
    response->set_existed(request->request_id() == "again");
    return Answer("fork", *request, response);
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (listed.size() < pages.size()) *response = pages[listed.size()];
    listed.push_back(*request);
    return status;
  }
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    watched = *request;
    if (++num_watches_ == 2) was_watched_again.Notify();
    for (const v1::Job& state : watch) {
      v1::WatchJobResponse message;
      *message.mutable_job() = state;
      writer->Write(message);
    }
    return status;
  }
  template <class Request, class Response>
  grpc::Status Answer(const char* name, const Request& request, Response* response) {
    calls.push_back(absl::StrCat(name, " ", request.id()));
    *response->mutable_job() = job;
    return status;
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request, v1::GetJobResponse* response) override {
    return Answer("get", *request, response);
  }
  grpc::Status PauseJob(grpc::ServerContext*, const v1::PauseJobRequest* request,
                        v1::PauseJobResponse* response) override {
    return Answer("pause", *request, response);
  }
  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest* request,
                         v1::ResumeJobResponse* response) override {
    resumed = *request;
    return Answer("resume", *request, response);
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse* response) override {
    return Answer("cancel", *request, response);
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* response) override {
    calls.push_back(absl::StrCat("delete ", request->id()));
    response->set_freed_bytes(freed_bytes);
    return status;
  }
  grpc::Status PackData(grpc::ServerContext*, const v1::PackDataRequest* request,
                        grpc::ServerWriter<v1::PackDataResponse>* writer) override {
    packed = *request;
    for (const v1::PackDataResponse& message : packing) writer->Write(message);
    return status;
  }

  int port_ = 0;
  std::atomic<int> num_watches_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace switchyard::client
