// One Generate call under way.
//
// Messages arrive through a callback on gRPC's threads, in order, one at a time; a callback that blocks slows this
// stream down and (by flow control) the server's work on it, nothing else.  Made by Client::StartGenerate; must not
// outlive the Client's channel (it holds a reference) and must not be destroyed from within its own callbacks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "switchyard/v1/inference.grpc.pb.h"

namespace switchyard {

class GenerateStream final : private grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  struct Events {
    std::function<void(const v1::GenerateResponse&)> on_message;
    std::function<void(const absl::Status&)> on_done;  // exactly once, after the last message; may be empty
  };

  // Cancels what still runs and waits until on_done has returned.
  ~GenerateStream() override;
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

  // Thread-safe, returns at once; the call then ends with CANCELLED, unless it has just ended otherwise.
  void Cancel();
  // Blocks until the call has ended, at most until its deadline; returns how it ended.
  absl::Status Wait();
  bool Done() const { return done_.HasBeenNotified(); }

 private:
  friend class Client;
  GenerateStream(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request, Events events,
                 absl::Duration timeout, std::string address);
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const v1::GenerateRequest request_;
  const Events events_;
  const std::string address_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  absl::Status status_;  // written before done_
  absl::Notification done_;
};

}  // namespace switchyard
