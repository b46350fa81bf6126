#include "clients/cpp/generate_stream.h"

#include <chrono>
#include <utility>

#include "clients/cpp/client_error.h"
#include "clients/cpp/generate_call.h"

namespace switchyard::client {

GenerateCall::GenerateCall(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request,
                           GenerateStream::Events events, absl::Duration timeout, std::string address)
    : request_(request), events_(std::move(events)), address_(std::move(address)) {
  context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  stub->async()->Generate(&context_, &request_, this);
  StartRead(&message_);
  StartCall();
}

GenerateCall::~GenerateCall() {
  if (!Done()) context_.TryCancel();
  done_.WaitForNotification();  // bounded: a cancelled call ends at once
}

absl::Status GenerateCall::Wait() {
  done_.WaitForNotification();  // bounded by the call's deadline
  return status_;
}

void GenerateCall::OnReadDone(bool ok) {
  if (!ok) return;  // the stream has ended: OnDone says how
  if (events_.on_message) events_.on_message(message_);
  message_.Clear();
  StartRead(&message_);
}

void GenerateCall::OnDone(const grpc::Status& status) {
  status_ = FromGrpcStatus(status, address_);
  if (events_.on_done) events_.on_done(status_);
  done_.Notify();  // the last touch: the owner may delete this now
}

GenerateStream::GenerateStream(std::unique_ptr<GenerateCall> call) : call_(std::move(call)) {}
GenerateStream::~GenerateStream() = default;
void GenerateStream::Cancel() { call_->Cancel(); }
absl::Status GenerateStream::Wait() { return call_->Wait(); }
bool GenerateStream::Done() const { return call_->Done(); }

}  // namespace switchyard::client
