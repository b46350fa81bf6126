#include "workers/process/remote_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"

namespace switchyard::worker {
namespace {

constexpr absl::Duration kSetTimeout = absl::Seconds(5);
constexpr absl::Duration kLongestWait = absl::Minutes(1);  // the server's own limit

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::chrono::system_clock::time_point After(absl::Duration timeout) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
}

}  // namespace

RemoteStore::RemoteStore(std::shared_ptr<grpc::Channel> channel, std::string token)
    : stub_(v1::WorkerService::NewStub(std::move(channel))), token_(std::move(token)) {}

absl::Status RemoteStore::Set(absl::string_view key, absl::string_view value) {
  grpc::ClientContext context;
  context.set_deadline(After(kSetTimeout));
  v1::StoreSetRequest request;
  v1::StoreSetResponse response;
  request.set_store_token(token_);
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  return FromGrpc(stub_->StoreSet(&context, request, &response));
}

absl::StatusOr<std::vector<std::string>> RemoteStore::Get(absl::Span<const std::string> keys, absl::Time deadline) {
  for (;;) {
    absl::StatusOr<std::vector<std::string>> values = GetOnce(keys, deadline);
    if (!absl::IsDeadlineExceeded(values.status()) || MonotonicNow() >= deadline) return values;
  }
}

absl::StatusOr<std::vector<std::string>> RemoteStore::GetOnce(absl::Span<const std::string> keys, absl::Time deadline) {
  const absl::Duration left = std::min(deadline - MonotonicNow(), kLongestWait);
  grpc::ClientContext context;
  // A little longer than the server waits, so that its answer, which names the key, arrives.
  context.set_deadline(After(left + absl::Seconds(1)));
  {
    absl::MutexLock lock(&mu_);
    if (!cancelled_.empty()) return absl::CancelledError(cancelled_);
    waiting_.push_back(&context);
  }
  v1::StoreGetRequest request;
  v1::StoreGetResponse response;
  request.set_store_token(token_);
  for (const std::string& key : keys) request.add_keys(key);
  request.set_timeout_ms(std::max<int64_t>(0, absl::ToInt64Milliseconds(left)));
  const grpc::Status status = stub_->StoreGet(&context, request, &response);
  absl::MutexLock lock(&mu_);
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &context));
  if (!cancelled_.empty()) return absl::CancelledError(cancelled_);
  if (!status.ok()) return FromGrpc(status);
  if (response.values_size() != static_cast<int>(keys.size())) {
    return absl::InternalError(
        absl::StrCat("rendezvous: asked for ", keys.size(), " keys, got ", response.values_size()));
  }
  return std::vector<std::string>(response.values().begin(), response.values().end());
}

void RemoteStore::CancelWaits(absl::string_view reason) {
  absl::MutexLock lock(&mu_);
  cancelled_ = std::string(reason);
  if (cancelled_.empty()) cancelled_ = "cancelled";
  for (grpc::ClientContext* context : waiting_) context->TryCancel();
}

absl::Status RemoteStore::Cancelled() {
  absl::MutexLock lock(&mu_);
  return cancelled_.empty() ? absl::OkStatus() : absl::CancelledError(cancelled_);
}

}  // namespace switchyard::worker
