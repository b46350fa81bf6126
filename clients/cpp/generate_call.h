// What is behind a GenerateStream: the call as gRPC sees it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "clients/cpp/generate_stream.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "switchyard/v1/inference.grpc.pb.h"

namespace switchyard::client {

class GenerateCall final : private grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  // Starts it.
  GenerateCall(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request, GenerateStream::Events events,
               absl::Duration timeout, std::string address);
  ~GenerateCall() override;

  void Cancel() { context_.TryCancel(); }
  absl::Status Wait();
  bool Done() const { return done_.HasBeenNotified(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const v1::GenerateRequest request_;
  const GenerateStream::Events events_;
  const std::string address_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  absl::Status status_;  // written before done_
  absl::Notification done_;
};

}  // namespace switchyard::client
