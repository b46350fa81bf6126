// Records every change of a server's readiness that the health service's Watch reports.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"

namespace switchyard {

class ReadyWatch {
 public:
  struct Change {
    absl::Time when;
    bool ready;
  };
  explicit ReadyWatch(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(grpc::health::v1::Health::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
    thread_ = std::thread([this] { Read(); });
  }
  ~ReadyWatch() {
    context_.TryCancel();
    thread_.join();
  }
  // Returns the time of the first change to `ready` after `since`; InfiniteFuture if none came within `timeout`.
  absl::Time WaitFor(bool ready, absl::Time since, absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    absl::Time found = absl::InfiniteFuture();
    const auto look = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      for (const Change& change : changes_) {
        if (change.when >= since && change.ready == ready) {
          found = change.when;
          return true;
        }
      }
      return false;
    };
    mu_.AwaitWithTimeout(absl::Condition(&look), timeout);
    return found;
  }

 private:
  void Read() {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service("readiness");
    const auto reader = stub_->Watch(&context_, request);
    grpc::health::v1::HealthCheckResponse response;
    while (reader->Read(&response)) {
      absl::MutexLock lock(&mu_);
      changes_.push_back({absl::Now(), response.status() == grpc::health::v1::HealthCheckResponse::SERVING});
    }
    (void)reader->Finish();  // cancelled, or the server is gone
  }

  const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  absl::Mutex mu_;
  std::vector<Change> changes_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace switchyard
