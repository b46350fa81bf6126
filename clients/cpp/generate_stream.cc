#include "clients/cpp/generate_stream.h"

#include <chrono>
#include <utility>

#include "clients/cpp/client_error.h"

namespace switchyard {

GenerateStream::GenerateStream(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request, Events events,
                               absl::Duration timeout, std::string address)
    : request_(request), events_(std::move(events)), address_(std::move(address)) {
  context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  stub->async()->Generate(&context_, &request_, this);
  StartRead(&message_);
  StartCall();
}

GenerateStream::~GenerateStream() {
  if (!Done()) context_.TryCancel();
  done_.WaitForNotification();  // bounded: a cancelled call ends at once
}

void GenerateStream::Cancel() { context_.TryCancel(); }

absl::Status GenerateStream::Wait() {
  done_.WaitForNotification();  // bounded by the call's deadline
  return status_;
}

void GenerateStream::OnReadDone(bool ok) {
  if (!ok) return;  // the stream has ended: OnDone says how
  if (events_.on_message) events_.on_message(message_);
  message_.Clear();
  StartRead(&message_);
}

void GenerateStream::OnDone(const grpc::Status& status) {
  status_ = FromGrpcStatus(status, address_);
  if (events_.on_done) events_.on_done(status_);
  done_.Notify();  // the last touch: the owner may delete this now
}

}  // namespace switchyard
